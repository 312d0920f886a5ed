//! The lanes of the sources: each source has its own, in which a change waits until it takes effect.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use evenkeel_api::Kind;
use evenkeel_base::SourceId;
use evenkeel_model::SourceEvent;

use super::debounce::{Debounce, DebounceOptions, Lane};
use super::{Extent, LiveSource, Refresh};
use crate::metrics::{Event, Trigger};

/// All sources of a control plane.
#[derive(Debug)]
pub struct Lanes(Vec<SourceLane>);

#[derive(Debug)]
struct SourceLane {
    source: Box<dyn LiveSource>,
    debounce: Debounce,
}

/// A source has ended, which none does while the control plane runs.
#[derive(Debug)]
pub struct SourceEnded(pub SourceId);

impl Lanes {
    /// Gives each source a lane.
    pub fn new(sources: Vec<Box<dyn LiveSource>>) -> Self {
        let lane = |source| SourceLane { source, debounce: Debounce::new(DebounceOptions::default()) };
        Self(sources.into_iter().map(lane).collect())
    }

    /// Sets the timing of all lanes.
    pub fn set_options(&mut self, options: DebounceOptions) {
        self.0.iter_mut().for_each(|lane| lane.debounce = Debounce::new(options));
    }

    /// Returns the sources.
    pub fn sources(&self) -> impl Iterator<Item = &dyn LiveSource> {
        self.0.iter().map(|lane| &*lane.source)
    }

    /// Returns the sources, to change them.
    pub fn sources_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn LiveSource>> {
        self.0.iter_mut().map(|lane| &mut lane.source)
    }

    /// Returns the number of changes since the last call that changed nothing.
    pub fn unchanged(&mut self) -> impl Iterator<Item = BTreeMap<(Kind, Event), u64>> {
        self.sources_mut().map(|source| source.unchanged())
    }

    /// Returns the events that the model has not received yet.
    pub fn events(&mut self) -> Vec<(SourceId, SourceEvent)> {
        self.sources_mut().flat_map(|source| source.tell()).collect()
    }

    /// Waits for changes, and notes them in the lanes of their sources. May be dropped while it waits.
    pub async fn changed(&mut self) -> Result<(), SourceEnded> {
        let changes = {
            let mut waiting: Vec<_> = self.0.iter_mut().map(|lane| lane.source.changed()).collect();
            // Each source is polled each time, so that a busy one does not keep the others waiting.
            poll_fn(|cx| {
                let polled = waiting.iter_mut().map(|changed| changed.as_mut().poll(cx));
                let polled: Vec<_> = polled.collect();
                if polled.iter().any(Poll::is_ready) { Poll::Ready(polled) } else { Poll::Pending }
            })
            .await
        };
        for (lane, change) in self.0.iter_mut().zip(changes) {
            match change {
                Poll::Ready(Some(change)) => lane.debounce.change(change, Instant::now()),
                Poll::Ready(None) => return Err(SourceEnded(lane.source.id().clone())),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Returns when the next changes take effect.
    pub fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|lane| lane.debounce.due()).min()
    }

    /// Takes over the changes that are due, and says whether they are of more than endpoints.
    pub async fn refresh_due(&mut self) -> (Refresh, Trigger) {
        let (mut all, mut trigger) = (Refresh::default(), Trigger::Endpoint);
        let now = Instant::now();
        for lane in self.0.iter_mut().filter(|lane| lane.debounce.due().is_some_and(|due| due <= now)) {
            let extent = match lane.debounce.act(now) {
                Lane::Endpoints => Extent::Endpoints,
                Lane::Everything => Extent::Noticed,
            };
            if extent == Extent::Noticed {
                trigger = Trigger::Config;
            }
            all.join(lane.source.refresh(extent).await);
        }
        (all, trigger)
    }

    /// Takes over all changes until now.
    pub async fn refresh_all(&mut self) -> Refresh {
        let mut all = Refresh::default();
        for lane in &mut self.0 {
            all.join(lane.source.refresh(Extent::All).await);
        }
        all
    }
}
