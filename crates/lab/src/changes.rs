//! Follows changes: the resources that each proxy must receive for a change, and when it has acknowledged them.

use std::time::{Duration, Instant};

use memchr::memmem;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::types::Type;

/// The kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Adds a service, with its endpoints, VirtualService and DestinationRule.
    AddService,
    /// Adds an endpoint to a service.
    AddEndpoint,
    /// Removes an endpoint of a service.
    RemoveEndpoint,
    /// Removes a service.
    RemoveService,
    /// Changes the VirtualService of a service.
    EditRoutes,
}

impl ChangeKind {
    /// The name in tables and figures.
    pub fn title(self) -> &'static str {
        match self {
            Self::AddService => "service added",
            Self::AddEndpoint => "endpoint added",
            Self::RemoveEndpoint => "endpoint removed",
            Self::RemoveService => "service removed",
            Self::EditRoutes => "routes changed",
        }
    }

    /// The parts that a proxy must have received for the change to be complete there.
    fn parts(self) -> u8 {
        match self {
            Self::AddService => CLUSTER | ENDPOINTS | ROUTE,
            Self::AddEndpoint | Self::RemoveEndpoint => ENDPOINTS,
            Self::RemoveService => CLUSTER,
            Self::EditRoutes => ROUTE,
        }
    }
}

const CLUSTER: u8 = 1;
const ENDPOINTS: u8 = 2;
const ROUTE: u8 = 4;

/// A change to the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its kind.
    pub kind: ChangeKind,
    /// Number of the service.
    pub service: usize,
    /// The service's host.
    pub host: String,
    /// What its resources contain from then on or no longer: the endpoint that is added or removed, or the value that the
    /// changed routes match; empty for changes of whole services.
    pub mark: String,
}

/// Identifies a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId(usize);

/// One part of a change, which a resource carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangePart {
    change: ChangeId,
    part: u8,
}

/// All changes of a run.
#[derive(Debug, Default)]
pub struct ChangeTracker {
    /// In the order of their ids.
    open: Vec<OpenChange>,
    /// Removals of services among them, by host: every proxy must drop the host.
    removals: FxHashMap<String, ChangeId>,
    finished: Vec<Finished>,
    next: usize,
}

#[derive(Debug)]
struct OpenChange {
    id: ChangeId,
    change: Change,
    since: Instant,
    /// The parts that each proxy still lacks. A proxy that has all of them is removed.
    lacking: FxHashMap<usize, u8>,
    acks: Vec<(usize, Duration)>,
}

/// A change that all concerned proxies have acknowledged.
#[derive(Debug)]
pub struct Finished {
    /// Its id.
    pub id: ChangeId,
    /// The change itself.
    pub change: Change,
    /// When it was made.
    pub since: Instant,
    /// For each proxy, the time until its acknowledgement, in the order of the acknowledgements.
    pub acks: Vec<(usize, Duration)>,
}

impl ChangeTracker {
    /// Records a change that is about to be made, and the proxies that it concerns. It must be called before the change
    /// is made, because a resource is only decoded when it is first seen.
    pub fn begin(&mut self, change: Change, concerned: impl IntoIterator<Item = usize>) -> ChangeId {
        let id = ChangeId(self.next);
        self.next += 1;
        let parts = change.kind.parts();
        if change.kind == ChangeKind::RemoveService {
            self.removals.insert(change.host.clone(), id);
        }
        let lacking = concerned.into_iter().map(|proxy| (proxy, parts)).collect();
        self.open.push(OpenChange { id, change, since: Instant::now(), lacking, acks: Vec::new() });
        id
    }

    /// Records when the change was made.
    pub fn made(&mut self, id: ChangeId, at: Instant) {
        if let Some(open) = self.open_mut(id) {
            open.since = at;
        }
        self.finish_complete();
    }

    /// The parts of pending changes that a resource carries. Called when the resource is first seen.
    pub fn marks(&self, kind: Type, name: &str, content: &[u8]) -> Vec<ChangePart> {
        self.open
            .iter()
            .filter_map(|open| open.change.part_in(kind, name, content).map(|part| open.mark(part)))
            .collect()
    }

    /// The part of a pending change that the removal of a resource carries.
    pub fn mark_of_removal(&self, kind: Type, name: &str) -> Option<ChangePart> {
        // outbound|PORT|SUBSET|HOST
        let host = name.rsplit('|').next().filter(|_| kind == Type::Cluster)?;
        self.removals.get(host).map(|id| ChangePart { change: *id, part: CLUSTER })
    }

    fn open_mut(&mut self, id: ChangeId) -> Option<&mut OpenChange> {
        let at = self.open.binary_search_by_key(&id, |open| open.id).ok()?;
        self.open.get_mut(at)
    }

    /// Records that a proxy acknowledged resources with these parts. Returns whether this completes a change.
    pub fn acknowledged(&mut self, proxy: usize, marks: &[ChangePart], now: Instant) -> bool {
        let finished = self.finished.len();
        let mut any_complete = false;
        for mark in marks {
            let Some(open) = self.open_mut(mark.change) else { continue };
            let Some(lacking) = open.lacking.get_mut(&proxy) else { continue };
            *lacking &= !mark.part;
            if *lacking == 0 {
                open.lacking.remove(&proxy);
                open.acks.push((proxy, now.saturating_duration_since(open.since)));
                any_complete |= open.lacking.is_empty();
            }
        }
        if any_complete {
            self.finish_complete();
        }
        self.finished.len() > finished
    }

    fn finish_complete(&mut self) {
        for open in self.open.extract_if(.., |open| open.lacking.is_empty()) {
            let OpenChange { id, change, since, acks, .. } = open;
            if change.kind == ChangeKind::RemoveService {
                self.removals.remove(&change.host);
            }
            self.finished.push(Finished { id, change, since, acks });
        }
    }

    /// The number of changes begun so far.
    pub fn begun(&self) -> usize {
        self.next
    }

    /// The number of changes that some concerned proxy has not acknowledged.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// Whether a change of this service is pending.
    pub fn is_changing(&self, service: usize) -> bool {
        self.open.iter().any(|open| open.change.service == service)
    }

    /// Whether all concerned proxies have acknowledged the change.
    #[cfg(test)]
    fn is_finished(&self, id: ChangeId) -> bool {
        id.0 < self.next && !self.open.iter().any(|open| open.id == id)
    }

    /// Completed changes, in the order of completion.
    pub fn finished(&self) -> &[Finished] {
        &self.finished
    }

    /// Which proxies still lack which parts, for an error message.
    pub fn describe(&self) -> String {
        let Some(open) = self.open.first() else { return "no change is under way".to_owned() };
        let parts = |bits: u8| {
            let names = [(CLUSTER, "cluster"), (ENDPOINTS, "endpoints"), (ROUTE, "route")];
            names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
        };
        let example = open.lacking.iter().min_by_key(|(proxy, _)| **proxy);
        let example = example.map(|(proxy, bits)| format!("; proxy {proxy} lacks its {}", parts(*bits)));
        format!(
            "{} changes under way; the first, {} {}, reached {} proxies and not {}{}",
            self.open.len(),
            open.change.kind.title(),
            open.change.host,
            open.acks.len(),
            open.lacking.len(),
            example.unwrap_or_default()
        )
    }
}

impl OpenChange {
    fn mark(&self, part: u8) -> ChangePart {
        ChangePart { change: self.id, part }
    }
}

impl Change {
    /// The part of this change that a resource carries.
    fn part_in(&self, kind: Type, name: &str, content: &[u8]) -> Option<u8> {
        let holds = |text: &str| memmem::find(content, text.as_bytes()).is_some();
        let named = name.contains(&self.host);
        // Searched with its length prefix, as on the wire, so that 10.0.0.7 is not found in 10.0.0.70.
        let has_mark = || {
            let length = u8::try_from(self.mark.len()).unwrap_or(u8::MAX);
            memmem::find(content, &[&[length], self.mark.as_bytes()].concat()).is_some()
        };
        match (self.kind, kind) {
            (ChangeKind::AddService, Type::Cluster) => named.then_some(CLUSTER),
            (ChangeKind::AddService, Type::Endpoint) => named.then_some(ENDPOINTS),
            (ChangeKind::AddService, Type::VirtualHost) => named.then_some(ROUTE),
            (ChangeKind::AddService, Type::Route) => holds(&self.host).then_some(ROUTE),
            (ChangeKind::AddEndpoint, Type::Endpoint) => (named && has_mark()).then_some(ENDPOINTS),
            (ChangeKind::RemoveEndpoint, Type::Endpoint) => (named && !has_mark()).then_some(ENDPOINTS),
            (ChangeKind::EditRoutes, Type::VirtualHost | Type::Route) => has_mark().then_some(ROUTE),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind) -> Change {
        Change { kind, service: 7, host: "svc-7.lab".to_owned(), mark: "10.0.0.7".to_owned() }
    }

    #[test]
    fn resources_bring_parts_of_a_change() {
        let check = |change_kind, kind, name: &str, content: &str, expected: Option<u8>| {
            let found = change(change_kind).part_in(kind, name, content.as_bytes());
            assert_eq!(found, expected, "{change_kind:?} {kind:?} {name} {content}");
        };
        let name = "outbound|80||svc-7.lab";
        check(ChangeKind::AddService, Type::Cluster, name, "", Some(CLUSTER));
        check(ChangeKind::AddService, Type::Cluster, "outbound|80||svc-8.lab", "", None);
        check(ChangeKind::AddService, Type::Route, "80", "…svc-7.lab…", Some(ROUTE));
        check(ChangeKind::AddService, Type::Route, "80", "…svc-8.lab…", None);
        check(ChangeKind::AddService, Type::VirtualHost, "80/svc-7.lab", "", Some(ROUTE));
        check(ChangeKind::AddEndpoint, Type::Endpoint, name, "\u{8}10.0.0.7", Some(ENDPOINTS));
        check(ChangeKind::AddEndpoint, Type::Endpoint, name, "\u{9}10.0.0.70", None);
        check(ChangeKind::RemoveEndpoint, Type::Endpoint, name, "\u{8}10.0.0.7", None);
        check(ChangeKind::RemoveEndpoint, Type::Endpoint, name, "\u{9}10.0.0.70", Some(ENDPOINTS));
        check(ChangeKind::RemoveEndpoint, Type::Endpoint, name, "\u{9}110.0.0.7", Some(ENDPOINTS));
        check(ChangeKind::RemoveEndpoint, Type::Cluster, name, "", None);
        check(ChangeKind::RemoveService, Type::Cluster, name, "", None);
        check(ChangeKind::EditRoutes, Type::VirtualHost, "80/svc-7.lab", "\u{8}10.0.0.7", Some(ROUTE));
        check(ChangeKind::EditRoutes, Type::Route, "80", "svc-7.lab \u{9}10.0.0.70", None);
        check(ChangeKind::EditRoutes, Type::Cluster, name, "\u{8}10.0.0.7", None);
    }

    #[test]
    fn a_change_is_finished_when_all_have_all_of_it() {
        let mut tracker = ChangeTracker::default();
        let id = tracker.begin(change(ChangeKind::AddService), [0, 3]);
        let since = Instant::now();
        tracker.made(id, since);
        let at = |ms| since + Duration::from_millis(ms);
        let name = "outbound|80||svc-7.lab";
        let (cluster, endpoints) = (tracker.marks(Type::Cluster, name, b""), tracker.marks(Type::Endpoint, name, b""));
        let route = tracker.marks(Type::Route, "80", b"svc-7.lab");
        let all = [cluster.clone(), endpoints, route].concat();
        tracker.acknowledged(0, &all, at(5));
        tracker.acknowledged(3, &cluster, at(6));
        // A proxy that is not concerned does not count.
        tracker.acknowledged(9, &all, at(7));
        assert_eq!((tracker.under_way(), tracker.is_finished(id)), (1, false));
        assert!(tracker.is_changing(7) && !tracker.is_changing(8));
        assert!(
            tracker.describe().ends_with("reached 1 proxies and not 1; proxy 3 lacks its endpoints, route"),
            "{}",
            tracker.describe()
        );
        tracker.acknowledged(3, &all, at(20));
        tracker.acknowledged(3, &all, at(30));
        assert!(tracker.is_finished(id));
        assert_eq!(tracker.finished()[0].acks, [(0, Duration::from_millis(5)), (3, Duration::from_millis(20))]);
    }

    #[test]
    fn a_removed_service_is_gone_with_its_cluster() {
        let mut tracker = ChangeTracker::default();
        let id = tracker.begin(change(ChangeKind::RemoveService), [1]);
        assert_eq!(tracker.mark_of_removal(Type::Endpoint, "outbound|80||svc-7.lab"), None);
        assert_eq!(tracker.mark_of_removal(Type::Cluster, "outbound|80||svc-77.lab"), None);
        let gone = tracker.mark_of_removal(Type::Cluster, "outbound|80||svc-7.lab");
        tracker.acknowledged(1, gone.as_slice(), Instant::now());
        assert!(tracker.is_finished(id));
        assert_eq!(tracker.mark_of_removal(Type::Cluster, "outbound|80||svc-7.lab"), None);
    }

    #[test]
    fn what_concerns_nobody_is_finished_at_once() {
        let mut tracker = ChangeTracker::default();
        let id = tracker.begin(change(ChangeKind::AddService), []);
        assert!(!tracker.is_finished(id));
        tracker.made(id, Instant::now());
        assert!(tracker.is_finished(id));
    }
}
