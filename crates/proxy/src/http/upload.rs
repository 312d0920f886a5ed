//! The request on its way to the upstream: what of its body is kept for another try, and how far this try is.

use evenkeel_filters::{BadBody, Data, Flow};
use evenkeel_http::{Framing, Headers};
use evenkeel_upstream::conn::HeldBytes;

use super::announced_length::AnnouncedLength;
use super::mirror::Mirrors;
use super::pause::Held;
use super::upstream::Upstream;

/// Maximum size of a request body that is kept for another try while it streams, in bytes.
const MAX_REPLAY_BYTES: usize = 64 * 1024;

/// The request on its way to the upstream.
pub(super) struct Upload {
    /// All body bytes so far, as long as the request can be repeated.
    pub(super) replay: Option<HeldBytes>,
    /// How many of them this try has sent.
    pub(super) replayed: usize,
    /// A byte of the body was received and passed on, in some try.
    begun: bool,
    /// The end was handed over to the upstream.
    pub(super) ended: bool,
    /// The upstream has taken all of it.
    pub(super) finished: bool,
    /// The upstream accepts no more; its response may still come.
    pub(super) refused: bool,
    /// Whether sending waits until the upstream accepts the tunnel, because the client's bytes belong inside it.
    pub(super) paused: bool,
    /// Mirrors (`request_mirror_policies`).
    pub(super) mirrors: Option<Box<Mirrors>>,
    /// How many body bytes filters may still send.
    pub(super) left: AnnouncedLength,
    /// The filters have seen the end of the body.
    pub(super) filtered_end: bool,
    /// A filter holds back some of the body until this is ready.
    pub(super) held: Option<Held>,
}

/// Why a piece of the request's body is not sent.
#[derive(Clone, Copy)]
pub(super) enum Unfit {
    /// A filter finds it invalid.
    Body(BadBody),
    /// The body is longer than the head announces.
    Length,
}

impl Upload {
    /// `keep`: the request may be tried again. `paused`: nothing is sent before [`Upload::open_tunnel`].
    pub(super) fn new(keep: bool, paused: bool) -> Self {
        let replay = (keep || paused).then(HeldBytes::default);
        Self {
            replay,
            replayed: 0,
            begun: false,
            ended: false,
            finished: false,
            refused: false,
            paused,
            mirrors: None,
            left: AnnouncedLength::default(),
            filtered_end: false,
            held: None,
        }
    }

    /// Filters may change the body, which the head frames like this.
    pub(super) fn filtered(&mut self, framing: Framing) {
        if !self.filtered_end {
            self.left = AnnouncedLength::of(framing);
        }
    }

    /// Passes a piece of the body to the upstream and to the mirrors.
    pub(super) fn pass(&mut self, up: &mut Upstream, data: &[u8], last: bool) {
        self.keep(data);
        if let Some(mirrors) = &mut self.mirrors {
            mirrors.send(data);
        }
        up.send(data, last);
    }

    /// Passes on what the filters released of a piece; if one holds some back, notes what it waits for.
    pub(super) fn pass_filtered(&mut self, up: &mut Upstream, data: &Data<'_>, flow: Flow) -> Result<(), Unfit> {
        if !self.left.take(data.bytes.len()) {
            return Err(Unfit::Length);
        }
        if !data.bytes.is_empty() || data.ends {
            self.pass(up, &data.bytes, data.ends);
        }
        self.held = match flow {
            Flow::Pause(pause) => Some(Held::new(pause)),
            Flow::Continue => None,
        };
        Ok(())
    }

    /// Whether more of the body is read while a filter holds back some of it.
    pub(super) fn reads_on(&self) -> bool {
        !self.filtered_end && self.held.as_ref().is_some_and(|held| held.reads_on)
    }

    /// A body that was collected and that the filters have seen: it can be sent as often as needed.
    pub(super) fn collected(body: HeldBytes) -> Self {
        Self { replay: Some(body), begun: true, filtered_end: true, ..Self::new(false, false) }
    }

    /// A body whose beginning was collected. More of it is kept up to the limit, as of any body.
    pub(super) fn begun(body: HeldBytes) -> Self {
        Self { replay: Some(body), begun: true, ..Self::new(false, false) }
    }

    /// Appends the collected rest of the body to what is known already, and sends it to the mirrors as well.
    pub(super) fn take_collected(&mut self, rest: HeldBytes, trailers: &Headers) {
        if let Some(mirrors) = &mut self.mirrors {
            mirrors.send(&rest);
            mirrors.finish(trailers);
        }
        self.begun = true;
        match &mut self.replay {
            Some(known) if !known.is_empty() => known.extend(&rest),
            _ => self.replay = Some(rest),
        }
        self.replayed = 0;
    }

    /// Begins a try. False when the body can no longer be repeated.
    pub(super) fn begin(&mut self) -> bool {
        (self.replayed, self.ended, self.finished, self.refused) = (0, false, false, false);
        self.can_replay()
    }

    /// Whether all received body bytes can be sent again.
    pub(super) fn can_replay(&self) -> bool {
        self.replay.is_some() || !self.begun
    }

    /// The client sends nothing more that belongs outside the tunnel.
    pub(super) fn may_become_tunnel(&self) -> bool {
        self.paused || self.finished
    }

    /// From here on the client's bytes go through the tunnel.
    pub(super) fn open_tunnel(&mut self) {
        *self = Self::new(false, false);
    }

    /// The body bytes kept so far, if they are all kept.
    pub(super) fn known(&self) -> Option<&[u8]> {
        self.replay.as_deref()
    }

    fn keep(&mut self, data: &[u8]) {
        self.begun = true;
        if let Some(replay) = &mut self.replay {
            if replay.len() + data.len() > MAX_REPLAY_BYTES {
                self.replay = None;
            } else {
                replay.extend(data);
                self.replayed = replay.len();
            }
        }
    }
}
