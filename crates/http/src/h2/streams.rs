//! Open streams, and a bounded record of those that were reset.

use std::collections::VecDeque;

use super::sink::StreamKey;

/// The progress of one direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// Its (final) head has not been sent or received.
    Head,
    /// Its body may follow.
    Body,
    /// It has ended.
    Ended,
}

/// One open stream. Kept small: there is one for each request of a connection.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// 0 while the slot is free.
    pub id: u32,
    /// Bytes of DATA that may be sent; negative after a change of settings.
    pub send_window: i32,
    /// Bytes of DATA that may be received; negative after a change of our settings.
    pub recv_window: i32,
    /// Maximum window of the peer: the value of `recv_window` when all bytes are released.
    pub recv_limit: i32,
    /// Bytes released but not yet announced to the peer in a WINDOW_UPDATE.
    pub released: u32,
    /// Bytes of DATA that `content-length` still expects.
    pub expected: Option<u64>,
    /// When it was opened, in seconds of the caller's clock.
    pub opened: u32,
    /// The turn that was granted to it last.
    pub granted: u32,
    pub recv: Direction,
    pub send: Direction,
    /// Whether it wants to send; while its window is open it is queued.
    pub waiting: bool,
    pub in_line: bool,
    /// The request is HEAD.
    pub to_head: bool,
    /// The request is CONNECT.
    pub connect: bool,
}

impl Stream {
    /// Whether half of the window is released, which is enough for a WINDOW_UPDATE.
    pub(super) fn is_worth_telling(&self) -> bool {
        i64::from(self.released) >= i64::from(self.recv_limit / 2)
    }
}

/// Streams by slot and by id.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// Ids and slots in the order of ids: new streams have the highest id, so this is a push, and looking up is a
    /// binary search. Streams that end are mostly among the oldest, so few entries have to move.
    by_id: VecDeque<(u32, u32)>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    #[inline]
    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.slot()).filter(|stream| stream.id == key.id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id)
    }

    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<StreamKey> {
        // Most frames belong to the newest stream.
        let newest = self.by_id.back().filter(|(newest, _)| *newest == id);
        let at = || self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok().and_then(|at| self.by_id.get(at));
        newest.or_else(at).map(|(id, slot)| StreamKey { id: *id, slot: *slot })
    }

    pub(super) fn insert(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.slots.get_mut(slot as usize) {
                    *place = stream;
                }
                slot
            }
            None => {
                self.slots.push(stream);
                self.slots.len() as u32 - 1
            }
        };
        self.by_id.push_back((id, slot));
        StreamKey { id, slot }
    }

    pub(super) fn remove(&mut self, key: StreamKey) {
        let Some(stream) = self.get_mut(key) else { return };
        stream.id = 0;
        self.free.push(key.slot);
        if let Ok(at) = self.by_id.binary_search_by_key(&key.id, |(id, _)| *id) {
            self.by_id.remove(at);
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamKey, &mut Stream)> {
        let slots = self.slots.iter_mut().enumerate().filter(|(_, stream)| stream.id != 0);
        slots.map(|(slot, stream)| (StreamKey { id: stream.id, slot: slot as u32 }, stream))
    }

    /// Keys of the streams above an id.
    pub(super) fn above(&self, id: u32) -> Vec<StreamKey> {
        let from = self.by_id.partition_point(|(other, _)| *other <= id);
        self.by_id.iter().skip(from).map(|(id, slot)| StreamKey { id: *id, slot: *slot }).collect()
    }

    /// Frees memory when no stream is open.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// How a stream that is no longer open was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// Both sides ended it, or nothing is known.
    Ended,
    /// This side reset it: the peer may not have known when it sent more.
    ResetHere,
    /// The peer reset it, and should not send more.
    ResetByPeer,
    /// Its id was skipped and can no longer be used (RFC 9113 section 5.1.1).
    Skipped,
}

/// The recent streams that were reset or skipped.
#[derive(Debug, Default)]
pub(super) struct ClosedStreams {
    resets: VecDeque<(u32, ClosedBy)>,
    /// The highest id that is no longer remembered.
    forgotten: u32,
    skipped: VecDeque<(u32, u32)>,
}

/// Number of resets remembered, at most 8 KB for a connection.
const MAX_RESETS: usize = 1024;
const MAX_SKIPPED: usize = 32;

impl ClosedStreams {
    pub(super) fn record(&mut self, id: u32, how: ClosedBy) {
        if self.resets.len() == MAX_RESETS
            && let Some((id, _)) = self.resets.pop_front()
        {
            self.forgotten = self.forgotten.max(id);
        }
        self.resets.push_back((id, how));
    }

    /// Ids from the first to the last were not used.
    pub(super) fn skip(&mut self, first: u32, last: u32) {
        if self.skipped.len() == MAX_SKIPPED {
            self.skipped.pop_front();
        }
        self.skipped.push_back((first, last));
    }

    pub(super) fn look_up(&self, id: u32) -> ClosedBy {
        if let Some((_, how)) = self.resets.iter().rev().find(|(other, _)| *other == id) {
            *how
        } else if self.skipped.iter().any(|(first, last)| (*first..=*last).contains(&id)) {
            ClosedBy::Skipped
        } else if id <= self.forgotten {
            ClosedBy::ResetHere
        } else {
            ClosedBy::Ended
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u32) -> Stream {
        Stream {
            id,
            send_window: 0,
            recv_window: 0,
            recv_limit: 0,
            released: 0,
            expected: None,
            opened: 0,
            granted: 0,
            recv: Direction::Head,
            send: Direction::Head,
            waiting: false,
            in_line: false,
            to_head: false,
            connect: false,
        }
    }

    #[test]
    fn slots_are_dense_and_used_again() {
        let mut streams = Streams::default();
        let keys: Vec<_> = [1, 3, 7].map(|id| streams.insert(stream(id))).to_vec();
        assert_eq!(keys.iter().map(|key| key.slot()).collect::<Vec<_>>(), [0, 1, 2]);
        streams.remove(keys[1]);
        assert!(streams.get(keys[1]).is_none() && streams.find(3).is_none());
        let again = streams.insert(stream(9));
        assert_eq!((again.slot(), streams.len(), streams.find(9)), (1, 3, Some(again)));
        assert!(streams.get(keys[1]).is_none(), "an old key does not reach the new stream");
        assert_eq!(streams.above(1).iter().map(|key| key.id()).collect::<Vec<_>>(), [7, 9]);
        assert!(size_of::<Stream>() <= 56, "{}", size_of::<Stream>());
    }

    #[test]
    fn remembers_so_many_resets() {
        let mut closed_streams = ClosedStreams::default();
        closed_streams.skip(3, 9);
        (0..2_000).for_each(|n| closed_streams.record(11 + 2 * n, ClosedBy::ResetByPeer));
        assert_eq!(closed_streams.look_up(11 + 2 * 1_999), ClosedBy::ResetByPeer);
        assert_eq!(closed_streams.look_up(11), ClosedBy::ResetHere, "forgotten: in doubt for the peer");
        assert_eq!(closed_streams.look_up(5), ClosedBy::Skipped);
        assert_eq!(closed_streams.look_up(100_001), ClosedBy::Ended);
        assert_eq!(closed_streams.resets.len(), MAX_RESETS);
    }
}
