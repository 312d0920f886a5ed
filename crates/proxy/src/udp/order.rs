//! Which session gives its place to a new one: clients may be spoofed, so what has cost a client nothing goes first.
//!
//! A session is *new* until its client has sent again after an answer, which a client with a forged address does not see. New sessions
//! give their places first, the one that has been silent longest, and the others only if there are none, or more of them than their part.
//! One source has a part of the places, and beyond it takes those of its own sessions.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::{Rc, Weak};

use evenkeel_runtime_config::FastMap;
use tokio::time::Instant;

/// One source has at most one of so many places.
const PARTS_OF_SOURCES: usize = 8;
/// Sessions whose clients have shown that they are there keep at most all places but one of so many.
const PARTS_OF_KNOWN: usize = 4;
/// Sessions that are looked at for one that gives its place.
const MAX_LOOKS: usize = 64;
/// Entries of sessions that have ended are removed when a queue has so many more than twice its sessions.
const SLACK: usize = 64;

/// A session, as far as its place depends on it.
pub(super) trait Occupant {
    /// The client's address.
    fn client(&self) -> IpAddr;
    /// When it was last used.
    fn last_used(&self) -> Instant;
    /// Whether its client has shown that it is there.
    fn is_known(&self) -> bool;
    /// Whether it has its place among those of such clients.
    fn is_queued_as_known(&self) -> bool;
    /// Notes that it has.
    fn queue_as_known(&self);
    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}

/// A session in a queue, and when it had last been used when it was put there.
struct Queued<S> {
    session: Weak<S>,
    used: Instant,
}

/// Sessions, the one that has been silent longest about first. A use of a session costs nothing: it is noticed when its turn comes.
struct Queue<S> {
    entries: VecDeque<Queued<S>>,
}

impl<S> Default for Queue<S> {
    fn default() -> Self {
        Self { entries: VecDeque::new() }
    }
}

impl<S: Occupant> Queue<S> {
    fn push(&mut self, session: &Rc<S>, live: usize) {
        if self.entries.len() > 2 * live + SLACK {
            self.entries.retain(|queued| queued.session.upgrade().is_some_and(|session| !session.has_ended()));
        }
        self.entries.push_back(Queued { session: Rc::downgrade(session), used: session.last_used() });
    }

    /// Takes the first session that has not been used since it was put here; after some looks, the one that comes first.
    fn pop(&mut self) -> Option<Rc<S>> {
        for look in 0..=MAX_LOOKS {
            let queued = loop {
                let queued = self.entries.pop_front()?;
                if let Some(session) = queued.session.upgrade().filter(|session| !session.has_ended()) {
                    break (session, queued.used);
                }
            };
            let (session, used) = queued;
            if session.last_used() == used || look == MAX_LOOKS {
                return Some(session);
            }
            self.entries.push_back(Queued { session: Rc::downgrade(&session), used: session.last_used() });
        }
        None
    }
}

/// The sessions of a source.
struct OfSource<S> {
    queue: Queue<S>,
    live: usize,
}

impl<S> Default for OfSource<S> {
    fn default() -> Self {
        Self { queue: Queue::default(), live: 0 }
    }
}

/// The order in which sessions of one socket give their places.
pub(super) struct Order<S> {
    new: Queue<S>,
    known: Queue<S>,
    sources: FastMap<IpAddr, OfSource<S>>,
    live: usize,
    /// Those of `live` in `known`.
    known_live: usize,
}

impl<S> Default for Order<S> {
    fn default() -> Self {
        Self { new: Queue::default(), known: Queue::default(), sources: FastMap::default(), live: 0, known_live: 0 }
    }
}

impl<S: Occupant> Order<S> {
    /// A session has begun.
    pub(super) fn add(&mut self, session: &Rc<S>) {
        self.live += 1;
        self.new.push(session, self.live);
        let source = self.sources.entry(source(session.client())).or_default();
        source.live += 1;
        source.queue.push(session, source.live);
    }

    /// A session has ended.
    pub(super) fn remove(&mut self, session: &S) {
        self.live = self.live.saturating_sub(1);
        if session.is_queued_as_known() {
            self.known_live = self.known_live.saturating_sub(1);
        }
        let source = source(session.client());
        if let Some(of_source) = self.sources.get_mut(&source) {
            of_source.live = of_source.live.saturating_sub(1);
            if of_source.live == 0 {
                self.sources.remove(&source);
            }
        }
    }

    /// The session that has to end before one of this client begins, where `places` sessions may be; `None`: there is room.
    pub(super) fn gives_place(&mut self, client: IpAddr, places: usize) -> Option<Rc<S>> {
        let part = (places / PARTS_OF_SOURCES).max(1);
        // Clients behind a NAT are one source, and take nothing from others while half of the places are free.
        let is_scarce = self.live >= places / 2;
        let own = self.sources.get_mut(&source(client)).filter(|source| is_scarce && source.live >= part);
        if let Some(session) = own.and_then(|source| source.queue.pop()) {
            return Some(session);
        }
        if self.live < places {
            return None;
        }
        self.promote();
        let most_known = places - places / PARTS_OF_KNOWN;
        if self.known_live > most_known {
            return self.known.pop().or_else(|| self.new.pop());
        }
        self.new.pop().or_else(|| self.known.pop())
    }

    /// Moves sessions of clients that are there from the head of the new ones.
    fn promote(&mut self) {
        for _ in 0..MAX_LOOKS {
            let Some(head) = self.new.entries.front() else { return };
            let session = head.session.upgrade().filter(|session| !session.has_ended());
            if session.as_ref().is_some_and(|session| !session.is_known()) {
                return;
            }
            self.new.entries.pop_front();
            if let Some(session) = session {
                session.queue_as_known();
                self.known_live += 1;
                self.known.push(&session, self.known_live);
            }
        }
    }
}

/// What one party can send from: an address, or a network of IPv6.
fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    /// A session that is nothing but its place.
    struct Seat {
        client: IpAddr,
        used: Cell<Instant>,
        is_known: Cell<bool>,
        queued_as_known: Cell<bool>,
        has_ended: Cell<bool>,
    }

    impl Occupant for Seat {
        fn client(&self) -> IpAddr {
            self.client
        }
        fn last_used(&self) -> Instant {
            self.used.get()
        }
        fn is_known(&self) -> bool {
            self.is_known.get()
        }
        fn is_queued_as_known(&self) -> bool {
            self.queued_as_known.get()
        }
        fn queue_as_known(&self) {
            self.queued_as_known.set(true);
        }
        fn has_ended(&self) -> bool {
            self.has_ended.get()
        }
    }

    /// A socket with places, and a clock.
    struct Table {
        order: Order<Seat>,
        seats: Vec<Rc<Seat>>,
        places: usize,
        now: Instant,
    }

    impl Table {
        fn new(places: usize) -> Self {
            Self { order: Order::default(), seats: Vec::new(), places, now: Instant::now() }
        }

        /// A client begins a session; at most one other ends for it.
        fn begin(&mut self, client: IpAddr) -> Rc<Seat> {
            self.now += Duration::from_micros(1);
            if let Some(silent) = self.order.gives_place(client, self.places) {
                self.order.remove(&silent);
                silent.has_ended.set(true);
                self.seats.retain(|seat| !seat.has_ended());
            }
            let seat = Rc::new(Seat {
                client,
                used: Cell::new(self.now),
                is_known: Cell::new(false),
                queued_as_known: Cell::new(false),
                has_ended: Cell::new(false),
            });
            self.order.add(&seat);
            self.seats.push(Rc::clone(&seat));
            assert!(self.seats.len() <= self.places, "{} of {}", self.seats.len(), self.places);
            seat
        }

        /// The client of a session is there, and sends.
        fn confirm(&mut self, seat: &Seat) {
            self.now += Duration::from_micros(1);
            seat.used.set(self.now);
            seat.is_known.set(true);
        }
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn forged_clients_take_the_places_of_forged_clients() {
        let mut table = Table::new(64);
        let there: Vec<_> = (0..16).map(|number| table.begin(address(number))).collect();
        there.iter().for_each(|seat| table.confirm(seat));
        for number in 100..100_000 {
            let newcomer = table.begin(address(number));
            assert!(!newcomer.has_ended(), "a newcomer is served");
        }
        assert!(there.iter().all(|seat| !seat.has_ended()), "those who are there stay, though they are silent");
        assert!(table.order.new.entries.len() <= 2 * 64 + SLACK + 1, "{}", table.order.new.entries.len());
    }

    #[test]
    fn the_one_that_is_silent_longest_goes_first() {
        let mut table = Table::new(16);
        let seats: Vec<_> = (0..16).map(|number| table.begin(address(number))).collect();
        table.now += Duration::from_secs(1);
        seats[0].used.set(table.now);
        table.begin(address(100));
        let ended: Vec<usize> = (0..16).filter(|at| seats[*at].has_ended()).collect();
        assert_eq!(ended, [1]);
    }

    #[test]
    fn a_source_has_a_part_of_the_places() {
        let mut table = Table::new(64);
        let others: Vec<_> = (1..9).map(|number| table.begin(address(number))).collect();
        let own: Vec<_> = (0..100).map(|_| table.begin(address(0))).collect();
        assert!(others.iter().all(|seat| !seat.has_ended()));
        let live = own.iter().filter(|seat| !seat.has_ended()).count();
        assert_eq!(live, 64 / 2 - 8, "as long as half is free it takes more than its part");
        assert!(!own[99].has_ended() && own[0].has_ended(), "its newest is served");
        assert_eq!(table.seats.len(), 8 + live);
    }

    #[test]
    fn those_who_are_there_leave_places_for_newcomers() {
        let mut table = Table::new(64);
        for number in 0..1000 {
            let seat = table.begin(address(number));
            table.confirm(&seat);
        }
        let newcomer = table.begin(address(5000));
        for number in 6000..6010 {
            let seat = table.begin(address(number));
            table.confirm(&seat);
        }
        assert!(!newcomer.has_ended(), "it has the time of some others to show that it is there");
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let check = |one: &str, other: &str, expected: bool| {
            let same = source(one.parse().expect("an address")) == source(other.parse().expect("an address"));
            assert_eq!(same, expected, "{one} {other}");
        };
        check("2001:db8::1", "2001:db8::ffff:1", true);
        check("2001:db8::1", "2001:db8:0:1::1", false);
        check("::ffff:192.0.2.1", "192.0.2.1", true);
        check("192.0.2.1", "192.0.2.2", false);
    }
}
