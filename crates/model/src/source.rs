//! Sources of objects, and the order of precedence among their objects.
//!
//! The model does not depend on files or an API server. A source delivers its objects in *entries*, each of which is added,
//! changed and removed as a whole: a file with all its objects, or one object of an API server.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Object, ObjectKey};
use evenkeel_base::{Diagnostics, SourceId};

use crate::StatusSink;

/// A source of objects: configuration directories, or the API server of a cluster.
pub trait Source {
    /// Its name and rank.
    fn id(&self) -> &SourceId;

    /// The events since the last call, in order.
    fn events(&mut self) -> Vec<SourceEvent>;

    /// The findings about its objects that each object shows by itself.
    fn findings(&self) -> Diagnostics;

    /// Where statuses of its objects are written; `None` if they have none, as in files.
    fn status_sink(&mut self) -> Option<&mut dyn StatusSink> {
        None
    }

    /// The [events](Self::events), with the source's name: what [`Builder::apply`](crate::Builder::apply) takes.
    fn tell(&mut self) -> Vec<(SourceId, SourceEvent)> {
        let id = self.id().clone();
        self.events().into_iter().map(|event| (id.clone(), event)).collect()
    }
}

/// The objects of an entry that are in force: its present objects, or if these have errors, the last ones without. All
/// sources refuse entries this way.
#[derive(Debug, Default)]
pub struct LastGood {
    objects: Vec<Arc<Object>>,
    was_good: bool,
}

/// The effect of an entry's new content.
#[derive(Debug)]
pub enum EntryChange {
    /// It is refused: the last content without errors stays in force.
    Refused,
    /// The objects in force have not changed.
    Same,
    /// The objects in force have changed; these were in force before.
    Changed(Vec<Arc<Object>>),
}

impl LastGood {
    /// Begins with these objects in force; `was_good` says whether they had no errors.
    pub fn new(objects: Vec<Arc<Object>>, was_good: bool) -> Self {
        Self { objects, was_good }
    }

    /// The objects in force.
    pub fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    /// Whether its content ever had no errors. Until then its valid objects are in force, and stand-ins for the others.
    pub fn was_good(&self) -> bool {
        self.was_good
    }

    /// Sets the entry's new content, with errors or without. Objects that are written as before keep their allocation.
    pub fn take(&mut self, objects: Vec<Object>, has_errors: bool) -> EntryChange {
        if self.was_good && has_errors {
            return EntryChange::Refused;
        }
        self.was_good |= !has_errors;
        // Positions count as a change: resources name them as their origin.
        let old = std::mem::take(&mut self.objects);
        let same = |at: usize, new: &Object| old.get(at).filter(|old| old.same_as_written(new)).cloned();
        let new = objects.into_iter().enumerate().map(|(at, new)| same(at, &new).unwrap_or_else(|| Arc::new(new)));
        self.objects = new.collect();
        if old.len() == self.objects.len() && old.iter().zip(&self.objects).all(|(a, b)| Arc::ptr_eq(a, b)) {
            EntryChange::Same
        } else {
            EntryChange::Changed(old)
        }
    }
}

/// An event of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceEvent {
    /// All of the source's entries. Entries that are missing here are gone.
    Snapshot(Vec<Entry>),
    /// An entry was added or changed.
    Upsert(Entry),
    /// An entry was removed.
    Delete(Address),
    /// The source may have missed something and announces all its entries again, up to [`Synced`](Self::Synced). Its
    /// previous entries stay in force meanwhile.
    Resync,
    /// The source has announced all its entries: those that it has not announced again are gone.
    Synced,
}

impl SourceEvent {
    /// A file has these objects now; none means that it is gone.
    pub fn of_file(path: Arc<Path>, objects: Vec<Arc<Object>>) -> Self {
        Self::of(Address::File(path), 0, objects)
    }

    /// An API server has this object now. `objects` is the result of [`load_object`](evenkeel_api::load_object), or
    /// what stays in force ([`LastGood`]), which may be nothing; `created` is its creation time.
    pub fn of_object(key: ObjectKey, created: i64, objects: Vec<Arc<Object>>) -> Self {
        Self::of(Address::Object(Arc::new(key)), created, objects)
    }

    fn of(address: Address, created: i64, objects: Vec<Arc<Object>>) -> Self {
        if objects.is_empty() { Self::Delete(address) } else { Self::Upsert(Entry { address, created, objects }) }
    }
}

/// The unit that a source adds, changes and removes as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its address within the source.
    pub address: Address,
    /// Its creation time in seconds since 1970, or 0 if the source does not know it. If two entries conflict, the older
    /// one wins.
    pub created: i64,
    /// Its objects; of two with the same name the first one wins.
    pub objects: Vec<Arc<Object>>,
}

/// The address of an entry within its source. Entries of the same age are ordered by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A file, by its path.
    File(Arc<Path>),
    /// An object, by its key.
    Object(Arc<ObjectKey>),
}

/// A place in the order of precedence: first objects applied to a running mesh, then by rank of the source, age and
/// address of the entry, and position in the entry. Cloning it copies a pointer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    written: bool,
    entry: EntryId,
    position: u32,
}

/// The identity of an entry among those of all sources.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct EntryId(Arc<Identity>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Identity {
    source: SourceId,
    created: i64,
    address: Address,
}

impl EntryId {
    pub(crate) fn new(source: &SourceId, created: i64, address: &Address) -> Self {
        Self(Arc::new(Identity { source: source.clone(), created, address: address.clone() }))
    }

    pub(crate) fn created(&self) -> i64 {
        self.0.created
    }

    /// The place of the entry's object at a position.
    pub(crate) fn place(&self, position: usize, object: &Object) -> Place {
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        Place { written: !object.is_applied(), entry: self.clone(), position }
    }
}

impl PartialOrd for EntryId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Rank;

    use super::*;

    fn object(annotation: &str) -> Object {
        let meta = format!("{{name: a, annotations: {{{annotation}}}}}");
        let text = format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {meta}\n");
        let (mut objects, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        objects.remove(0)
    }

    #[test]
    fn places_are_ordered_by_rank_age_address_and_position() {
        let (written, applied) = (object(""), object("local.evenkeel.dev/applied-over: x"));
        let (first, files) = (SourceId::new("first", Rank(1)), SourceId::files());
        let place = |source: &SourceId, created, path: &str, position, object: &Object| {
            EntryId::new(source, created, &Address::File(Path::new(path).into())).place(position, object)
        };
        let all = [
            place(&files, 0, "z.yaml", 3, &applied),
            place(&first, 1, "z.yaml", 7, &written),
            place(&first, 2, "a.yaml", 0, &written),
            place(&files, 0, "a/b.yaml", 1, &written),
            place(&files, 0, "a/b.yaml", 2, &written),
            place(&files, 0, "a-b.yaml", 0, &written),
        ];
        assert!(all.is_sorted(), "{all:#?}");
        // A dozen indexes contain it for each object.
        assert_eq!(size_of::<Place>(), 16);
    }

    #[test]
    fn what_was_good_stays_until_all_is_good_again() {
        let service = |name: &str| {
            let mut object = object("");
            object.name = name.into();
            object
        };
        let names = |held: &LastGood| held.objects().iter().map(|object| object.name.to_string()).collect::<Vec<_>>();
        let mut held = LastGood::default();
        let is = |taken: EntryChange, text: &str| assert_eq!(format!("{taken:?}").split('(').next(), Some(text));
        is(held.take(vec![service("a")], true), "Changed");
        assert!(!held.was_good() && names(&held) == ["a"], "until then what can be used is");
        is(held.take(vec![service("b")], false), "Changed");
        let before = held.objects().to_vec();
        is(held.take(vec![service("b")], false), "Same");
        assert!(Arc::ptr_eq(&before[0], &held.objects()[0]));
        is(held.take(vec![service("c")], true), "Refused");
        assert!(held.was_good() && names(&held) == ["b"]);
    }
}
