//! Replays the log: rebuilds the files as they were, and the resources that one proxy had.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use evenkeel_base::SourceId;
use evenkeel_model::{Builder, MeshConfig, Snapshot, Source};
use evenkeel_translate::Translator;
use evenkeel_xds::{Cause, Resource, ResourceSet, ResourceType};

use super::error::HistoryError;
use super::log::{Change, Checkpoint, Record, Writer};
use super::object::{ObjectContent, ObjectId};
use super::seen::Seen;
use crate::source::LiveSource;
use crate::source::feed::{ObjectFeed, ObjectSource};
use crate::source::files::Files;

/// A generation and the objects whose change caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeBy {
    /// The generation.
    pub generation: u64,
    /// When its change was noticed, in µs since 1970.
    pub at: u64,
    /// The objects that changed, with their places.
    pub causes: Arc<[String]>,
}

/// A proxy's resources at the end of the replay, and the change that caused each.
pub(super) struct Followed {
    pub set: Arc<ResourceSet>,
    pub made_by: BTreeMap<(ResourceType, Arc<str>), MadeBy>,
    pub units_made: u64,
}

/// Follows one proxy from the beginning of the segment; for each change only the affected resources are rebuilt.
pub(super) fn follow(segments: &[Vec<Record>], seen: &Seen<'_>) -> Result<Followed, HistoryError> {
    let (mut playback, changes) = begin(segments, seen)?;
    let view = Arc::new(seen.run.view());
    let mut translator = Translator::new(playback.snapshot.clone(), Cause::default());
    let mut set = translator.join(view.clone()).set();
    let mut made_by = BTreeMap::new();
    for change in changes {
        playback.take(change);
        let cause = Cause { generation: change.generation, time_us: change.at };
        translator.update(playback.snapshot.clone(), cause);
        let Some(now) = translator.joined(&view).map(|joined| joined.set()) else { continue };
        let made = MadeBy::of(change);
        for (kind, name, _, new) in differing(&set, &now) {
            match new {
                Some(_) => {
                    made_by.insert((kind, name), made.clone());
                }
                None => {
                    made_by.remove(&(kind, name));
                }
            }
        }
        set = now;
    }
    Ok(Followed { set, made_by, units_made: translator.units_made() })
}

/// A change, and the resources of the proxy that it changed.
#[derive(Debug)]
pub struct ChangeSince {
    /// The change.
    pub made_by: MadeBy,
    /// The control plane that recorded it.
    pub writer: Writer,
    /// The resources: whether they were `added`, `changed` or `removed`, with type and name.
    pub touched: Vec<(&'static str, ResourceType, Arc<str>)>,
}

/// Returns the latest changes of a proxy's resources between two times at which it was seen, at most `max`, oldest first; from
/// the beginning of the log if there is no first one. Changes back to what was before are among them, and so is what a control
/// plane found when it started.
pub(super) fn between(
    segments: &[Vec<Record>],
    seen: Option<&Seen<'_>>,
    now: &Seen<'_>,
    max: usize,
) -> Vec<ChangeSince> {
    let mut found: VecDeque<ChangeSince> = VecDeque::new();
    let view = Arc::new(now.run.view());
    // When the segment before ended, and the resources then.
    let mut before: Option<(u64, Arc<ResourceSet>)> = None;
    for records in segments {
        let Some(Record::Checkpoint(checkpoint)) = records.first() else { continue };
        let is_later = |at: u64, generation: u64| match seen {
            None => true,
            Some(seen) if checkpoint.writer == *seen.writer => generation > seen.run.generation,
            Some(seen) => at > seen.run.since,
        };
        let ran = |generation: u64| checkpoint.writer != *now.writer || generation <= now.run.generation;
        let mut playback = Playback::new((**checkpoint).clone());
        let mut translator = Translator::new(playback.snapshot.clone(), Cause::default());
        let mut set = translator.join(view.clone()).set();
        let mut add = |made_by: MadeBy, old: &ResourceSet, new: &ResourceSet| {
            let differing = differing(old, new);
            if !differing.is_empty() && is_later(made_by.at, made_by.generation) {
                let touched = differing.into_iter().map(|(kind, name, old, new)| (what(&old, &new), kind, name));
                let (writer, touched) = (checkpoint.writer.clone(), touched.collect());
                found.push_back(ChangeSince { made_by, writer, touched });
            }
            if found.len() > max {
                found.pop_front();
            }
        };
        // Segments of control planes that ran at the same time do not continue each other.
        if let Some((_, old)) = before.take().filter(|(ended, _)| *ended <= checkpoint.at) {
            let made_by = MadeBy { generation: checkpoint.generation, at: checkpoint.at, causes: Arc::new([]) };
            add(made_by, &old, &set);
        }
        let mut ended = checkpoint.at;
        for record in records {
            let Record::Change(change) = record else { continue };
            if !ran(change.generation) {
                break;
            }
            playback.take(change);
            translator.update(playback.snapshot.clone(), Cause { generation: change.generation, time_us: change.at });
            ended = change.at;
            let Some(next) = translator.joined(&view).map(|joined| joined.set()) else { continue };
            add(MadeBy::of(change), &set, &next);
            set = next;
        }
        before = Some((ended, set));
    }
    found.into()
}

/// What happened to a resource.
pub(super) fn what(old: &Option<Arc<Resource>>, new: &Option<Arc<Resource>>) -> &'static str {
    match (old, new) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    }
}

impl MadeBy {
    fn of(change: &Change) -> Self {
        Self { generation: change.generation, at: change.at, causes: change.causes.iter().cloned().collect() }
    }
}

/// Builds the proxy's resources once, at the end.
pub(super) fn at_end(segments: &[Vec<Record>], seen: &Seen<'_>) -> Result<Arc<ResourceSet>, HistoryError> {
    let (mut playback, changes) = begin(segments, seen)?;
    changes.for_each(|change| playback.take(change));
    Ok(Arc::new(evenkeel_translate::resources(&seen.run.view(), &playback.snapshot, seen.run.generation)))
}

/// Returns the checkpoint of the segment that leads to what was seen, and the changes up to there.
fn begin<'s>(
    segments: &'s [Vec<Record>],
    seen: &Seen<'_>,
) -> Result<(Playback, impl Iterator<Item = &'s Change>), HistoryError> {
    let until = seen.run.generation;
    let checkpoint = |records: &'s Vec<Record>| match records.first() {
        Some(Record::Checkpoint(c)) if c.writer == *seen.writer && c.generation <= until => Some(&**c),
        _ => None,
    };
    let found = segments.iter().rev().find_map(|records| Some((checkpoint(records)?, records)));
    let (checkpoint, records) = found.ok_or(HistoryError::Forgotten(until))?;
    let changes = records.iter().filter_map(|record| match record {
        Record::Change(change) => Some(change),
        _ => None,
    });
    Ok((Playback::new(checkpoint.clone()), changes.take_while(move |change| change.generation <= until)))
}

/// The files and the builder, as they were at some point.
struct Playback {
    files: Files,
    /// The sources without files.
    sources: BTreeMap<SourceId, (ObjectFeed, ObjectSource)>,
    builder: Builder,
    snapshot: Arc<Snapshot>,
}

impl Playback {
    fn new(checkpoint: Checkpoint) -> Self {
        let mesh = MeshConfig {
            trust_domain: checkpoint.trust_domain.as_str().into(),
            leave_out_refused: checkpoint.leave_out_refused,
            on_one_machine: checkpoint.on_one_machine,
            jwks_fetching: checkpoint.jwks_fetching,
            ..MeshConfig::default()
        };
        let builder = Builder::new(mesh, checkpoint.addresses).checked(false);
        let mut files = Files::new(Vec::new());
        for (path, text) in checkpoint.files {
            let good = text.good.into_iter().chain([text.present]);
            good.for_each(|text| files.replay(&path, Some(&text)));
        }
        let mut this = Self { files, sources: BTreeMap::new(), builder, snapshot: Arc::default() };
        for state in &checkpoint.objects {
            let contents = state.good.iter().chain([&state.present]);
            contents.for_each(|content| this.set(&state.id, Some(content)));
        }
        this.build();
        this
    }

    fn take(&mut self, change: &Change) {
        change.files.iter().for_each(|(path, text)| self.files.replay(path, text.as_deref()));
        change.objects.iter().for_each(|own| self.set(&own.id, own.new.as_ref()));
        self.build();
    }

    /// Sets an object of a source without files; `None`: it is gone.
    fn set(&mut self, id: &ObjectId, content: Option<&ObjectContent>) {
        let source = id.source();
        let (feed, _) = self.sources.entry(source.clone()).or_insert_with(|| ObjectFeed::new(source));
        match (content, id.key()) {
            (Some(content), _) => feed.put(content.object.clone(), content.created),
            (None, Some(key)) => feed.remove(&key),
            (None, None) => {}
        }
    }

    fn build(&mut self) {
        let mut events = self.files.tell();
        for (_, source) in self.sources.values_mut() {
            source.first();
            events.extend(source.tell());
        }
        self.snapshot = self.builder.apply(events).snapshot;
    }
}

pub(super) type Pair = (ResourceType, Arc<str>, Option<Arc<Resource>>, Option<Arc<Resource>>);

/// Returns the resources in which two sets differ.
pub(super) fn differing(old: &ResourceSet, new: &ResourceSet) -> Vec<Pair> {
    let mut found: Vec<Pair> = Vec::new();
    for kind in ResourceType::ALL {
        for resource in new.of(kind).values() {
            let before = old.get(kind, &resource.name);
            if before.is_none_or(|before| before.version != resource.version) {
                found.push((kind, resource.name.clone(), before.cloned(), Some(resource.clone())));
            }
        }
        let gone = old.of(kind).values().filter(|resource| new.get(kind, &resource.name).is_none());
        found.extend(gone.map(|resource| (kind, resource.name.clone(), Some(resource.clone()), None)));
    }
    found
}
