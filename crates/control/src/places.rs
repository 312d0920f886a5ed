//! Places for clients that have not authenticated: whoever comes gets one, and if there is none left, the oldest client of the
//! address that has most loses its place. A client that is honest is done within milliseconds, long before it is the oldest.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Maximum number of addresses that are remembered for having had a certificate.
const MAX_REMEMBERED: usize = 50_000;

/// Addresses from which clients with a certificate have come, the latest of them: they keep places that strangers do not get.
#[derive(Debug, Default)]
pub struct Acquaintances(Mutex<Generations>);

/// The younger addresses replace the older ones when they are as many as may be.
#[derive(Debug, Default)]
struct Generations {
    young: HashSet<IpAddr>,
    old: HashSet<IpAddr>,
}

impl Acquaintances {
    /// Remembers an address.
    pub fn note(&self, address: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.young.len() >= MAX_REMEMBERED / 2 && !known.young.contains(&address) {
            known.old = std::mem::take(&mut known.young);
        }
        known.young.insert(address);
    }

    /// Whether the address is remembered.
    pub fn knows(&self, address: &IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.young.contains(address) || known.old.contains(address)
    }
}

/// A number of places.
#[derive(Debug)]
pub struct Places {
    max: usize,
    max_each: usize,
    /// So many of them are only for acquaintances.
    kept: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    by: HashMap<IpAddr, Clients>,
}

/// The clients of one address, oldest first.
#[derive(Debug, Default)]
struct Clients {
    is_known: bool,
    clients: VecDeque<(u64, oneshot::Sender<()>)>,
}

/// A client's place, which it has until it is dropped or evicted.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    address: IpAddr,
    number: u64,
    /// `None` once it has been evicted.
    waits: Option<oneshot::Receiver<()>>,
}

impl Places {
    /// Creates `max` places, of which an address may have `max_each` and strangers may not have `kept`.
    pub fn new(max: usize, max_each: usize, kept: usize) -> Arc<Self> {
        Arc::new(Self { max, max_each, kept, taken: Mutex::default() })
    }

    /// Takes a place for a client of `address`, possibly that of another client.
    pub fn take(self: &Arc<Self>, address: IpAddr, is_known: bool) -> Place {
        let mut taken = self.lock();
        let own = taken.by.get(&address).map_or(0, |own| own.clients.len());
        if own >= self.max_each {
            taken.evict_oldest(&address);
        } else {
            if !is_known && taken.count(false) >= self.max - self.kept {
                taken.evict(false);
            }
            if taken.count(true) >= self.max {
                taken.evict(true);
            }
        }
        let number = taken.next;
        taken.next += 1;
        let (sender, waits) = oneshot::channel();
        let own = taken.by.entry(address).or_default();
        own.is_known = is_known;
        own.clients.push_back((number, sender));
        drop(taken);
        Place { places: self.clone(), address, number, waits: Some(waits) }
    }

    /// Returns how many places are taken.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().count(true)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Returns how many clients there are, of all addresses or of strangers only.
    fn count(&self, all: bool) -> usize {
        self.by.values().filter(|of| all || !of.is_known).map(|of| of.clients.len()).sum()
    }

    /// Evicts the oldest client of the address that has most, among all addresses or strangers only.
    fn evict(&mut self, all: bool) {
        let candidates = self.by.iter().filter(|(_, of)| all || !of.is_known);
        // Of addresses with as many clients, the one that has the oldest.
        let oldest = |of: &Clients| std::cmp::Reverse(of.clients.front().map(|(number, _)| *number));
        let most = candidates.max_by_key(|(_, of)| (of.clients.len(), oldest(of))).map(|(address, _)| *address);
        if let Some(address) = most {
            self.evict_oldest(&address);
        }
    }

    fn evict_oldest(&mut self, address: &IpAddr) {
        let Some(of) = self.by.get_mut(address) else { return };
        if let Some((_, client)) = of.clients.pop_front() {
            let _ = client.send(());
        }
        if of.clients.is_empty() {
            self.by.remove(address);
        }
    }
}

impl Place {
    /// Completes when the place is given to another client.
    pub async fn evicted(&mut self) {
        std::future::poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    /// Whether the place has been given to another client.
    pub fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(waits) = &mut self.waits
            && Pin::new(waits).poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.waits = None;
        Poll::Ready(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        let Some(of) = taken.by.get_mut(&self.address) else { return };
        of.clients.retain(|(number, _)| *number != self.number);
        if of.clients.is_empty() {
            taken.by.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_evicted(place: &mut Place) -> bool {
        place.poll_evicted(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    /// Five addresses without any credential kept all places.
    #[test]
    fn whoever_has_most_makes_room() {
        let places = Places::new(10, 8, 0);
        let mut greedy: Vec<Place> = (0..5).map(|_| places.take(address(1), false)).collect();
        let mut second: Vec<Place> = (0..5).map(|_| places.take(address(2), false)).collect();
        let mut modest = places.take(address(3), false);
        assert_eq!(places.count(), 10);
        assert!(is_evicted(&mut greedy[0]), "of two addresses with as many, the one that has the oldest");
        let mut other = places.take(address(4), false);
        assert!(is_evicted(&mut second[0]), "the one that has most");
        // Whatever the greedy ones do, they take from each other.
        let mut more: Vec<Place> = (0..100).map(|turn| places.take(address(1 + turn % 2), false)).collect();
        assert!(!is_evicted(&mut modest) && !is_evicted(&mut other));
        let left: usize = more.iter_mut().map(|place| usize::from(!is_evicted(place))).sum();
        assert_eq!((places.count(), left), (10, 8));
        drop((greedy, second, modest, other, more));
        assert_eq!((places.count(), places.lock().by.len()), (0, 0), "who has nothing is forgotten");
    }

    #[test]
    fn an_address_at_its_limit_makes_room_itself() {
        let places = Places::new(10, 3, 0);
        let mut other: Vec<Place> = (0..3).map(|_| places.take(address(2), false)).collect();
        let mut own: Vec<Place> = (0..4).map(|_| places.take(address(1), false)).collect();
        let evicted: Vec<bool> = own.iter_mut().map(is_evicted).collect();
        assert_eq!(evicted, [true, false, false, false]);
        assert!(!other.iter_mut().any(is_evicted));
    }

    #[test]
    fn acquaintances_keep_places() {
        let places = Places::new(10, 10, 4);
        let mut strangers: Vec<Place> = (1..=20).map(|last| places.take(address(last), false)).collect();
        assert_eq!(strangers.iter_mut().map(|place| usize::from(!is_evicted(place))).sum::<usize>(), 6);
        let mut known: Vec<Place> = (0..4).map(|turn| places.take(address(100 + turn), true)).collect();
        let mut more: Vec<Place> = (30..60).map(|last| places.take(address(last), false)).collect();
        assert!(!known.iter_mut().any(is_evicted), "strangers take no place of theirs");
        assert_eq!(
            (places.count(), more.iter_mut().map(|place| usize::from(!is_evicted(place))).sum::<usize>()),
            (10, 6)
        );
    }

    #[test]
    fn the_latest_addresses_are_remembered() {
        let known = Acquaintances::default();
        let address = |number: usize| IpAddr::from(u32::try_from(number).expect("a number").to_be_bytes());
        (0..MAX_REMEMBERED * 2).for_each(|number| known.note(address(number)));
        assert!(known.knows(&address(MAX_REMEMBERED * 2 - 1)) && !known.knows(&address(0)));
        let generations = known.0.lock().expect("the addresses");
        assert!(generations.young.len() + generations.old.len() <= MAX_REMEMBERED);
    }
}
