//! Refused resources: they are held back until they change, and offered again at growing intervals. If the client does
//! not say which resource it refused, that is found out first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::{Resource, Version};

/// Time after which a refused resource is offered again, because the cause may be on the client (such as a port in
/// use).
pub const REOFFER_FIRST: Duration = Duration::from_secs(1);
/// Maximum wait between two offers of a rejected resource; each wait is twice the previous one.
pub const REOFFER_MAX: Duration = Duration::from_secs(300);

/// All refusals of one type on one stream.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    refused: BTreeMap<Arc<str>, Refused>,
    /// Groups of names, each with a bad one, to be sent separately.
    groups: VecDeque<Vec<Arc<str>>>,
}

/// A version of a resource that the client refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub version: Version,
    pub origin: Option<Arc<str>>,
    /// Times it was refused.
    pub times: u32,
    due: Duration,
}

impl Refusals {
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.groups.is_empty()
    }

    /// Whether the search for bad resources continues.
    pub fn is_searching(&self) -> bool {
        !self.groups.is_empty()
    }

    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Refused)> {
        self.refused.iter()
    }

    /// Whether this is the version that the client refused.
    pub fn holds_back(&self, name: &str, target: Option<&Arc<Resource>>) -> bool {
        let version = target.map(|resource| resource.version);
        self.refused.get(name).is_some_and(|refused| Some(refused.version) == version)
    }

    /// Records that the client refused this version.
    pub fn refuse(&mut self, name: &Arc<str>, resource: &Resource, now: Duration) {
        let times = match self.refused.get(name) {
            Some(before) if before.version == resource.version => before.times.saturating_add(1),
            _ => 1,
        };
        let wait = REOFFER_FIRST.saturating_mul(1 << (times - 1).min(16)).min(REOFFER_MAX);
        let refused = Refused {
            version: resource.version,
            origin: resource.origin.clone(),
            times,
            due: now.saturating_add(wait),
        };
        self.refused.insert(name.clone(), refused);
    }

    /// Records that the client accepted the resource.
    pub fn accept(&mut self, name: &str) {
        self.refused.remove(name);
    }

    /// Forgets the refusal, so that the resource is sent again.
    pub fn forget(&mut self, name: &str) {
        self.refused.remove(name);
    }

    pub fn retain(&mut self, keep: impl Fn(&Arc<str>) -> bool) {
        self.refused.retain(|name, _| keep(name));
    }

    /// Drops refusals of versions that are not in the target any more: the resource has changed and is sent normally.
    /// Returns the names.
    pub fn drop_outdated(&mut self, target: impl Fn(&str) -> Option<Version>) -> Vec<Arc<str>> {
        let outdated = |(name, refused): &(&Arc<str>, &Refused)| target(name) != Some(refused.version);
        let names: Vec<Arc<str>> = self.refused.iter().filter(outdated).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.forget(name));
        names
    }

    /// Begins a search for the bad one of these names, by offering halves.
    pub fn search(&mut self, names: Vec<Arc<str>>) {
        let mut first = names;
        let second = first.split_off(first.len().div_ceil(2));
        self.groups.push_front(second);
        self.groups.push_front(first);
        self.groups.retain(|group| !group.is_empty());
    }

    /// The next group to send separately.
    pub fn next_group(&mut self) -> Option<Vec<Arc<str>>> {
        self.groups.pop_front()
    }

    /// Refused resources that may be offered again.
    pub fn due(&self, now: Duration) -> Vec<Arc<str>> {
        self.refused.iter().filter(|(_, refused)| refused.due <= now).map(|(name, _)| name.clone()).collect()
    }

    /// Returns when the next one may be offered.
    pub fn next_due(&self) -> Option<Duration> {
        self.refused.values().map(|refused| refused.due).min()
    }
}

/// The names that a message contains, not as a part of a longer word.
pub(super) fn named_in<'a>(message: &str, names: impl Iterator<Item = &'a Arc<str>>) -> Vec<Arc<str>> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '|' | ':' | '/');
    let stands_alone = |at: usize, len: usize| {
        let before = message.get(..at).and_then(|text| text.chars().next_back());
        let mut after = message.get(at + len..).unwrap_or_default().chars();
        let after = match after.next() {
            // Punctuation at the end of a sentence or clause is not a part of the name.
            Some('.' | ':') => after.next().filter(|c| !c.is_whitespace()),
            other => other,
        };
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    };
    let mentioned = |name: &&Arc<str>| {
        !name.is_empty() && message.match_indices(&***name).any(|(at, found)| stands_alone(at, found.len()))
    };
    names.filter(mentioned).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_whole_names_in_messages() {
        let names: Vec<Arc<str>> = ["a", "outbound|80||a.b", "0.0.0.0_80", "80"].map(Arc::from).to_vec();
        let check = |message: &str, expected: &[&str]| {
            let found = named_in(message, names.iter());
            assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected, "{message}");
        };
        check("Error adding/updating cluster(s) outbound|80||a.b: no such thing", &["outbound|80||a.b"]);
        check("Error adding/updating listener(s) 0.0.0.0_80: cannot bind: Address in use", &["0.0.0.0_80"]);
        check("cluster \"a\" is bad.", &["a"]);
        check("RDS 80: bad", &["80"]);
        check("cannot connect to 10.0.0.80", &[]);
        check("Proto constraint validation failed", &[]);
    }

    #[test]
    fn offers_again_at_doubled_intervals_up_to_a_limit() {
        let mut refusals = Refusals::default();
        let name: Arc<str> = "a".into();
        let resource = Resource::new("a", &crate::Any { type_url: "t/x".into(), value: vec![1] });
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..11 {
            refusals.refuse(&name, &resource, now);
            let due = refusals.next_due().expect("a time");
            assert!(refusals.due(due - Duration::from_millis(1)).is_empty());
            waits.push((due - now).as_secs());
            now = due;
            assert_eq!(refusals.due(now).len(), 1);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn halves_what_it_searches() {
        let mut refusals = Refusals::default();
        refusals.search(["a", "b", "c"].map(Arc::from).to_vec());
        let group = refusals.next_group().expect("a group");
        assert_eq!(group.len(), 2);
        refusals.search(group);
        let sizes: Vec<usize> = std::iter::from_fn(|| refusals.next_group()).map(|group| group.len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
    }
}
