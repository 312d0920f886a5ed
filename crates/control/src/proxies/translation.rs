//! Runs the translator on a separate thread: tasks wait for it only when they need an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::{io, thread};

use evenkeel_translate::{Changed, Translator};
use tokio::sync::watch;

use super::cause;
use super::mailbox::{Join, Mailbox, Work};
use super::streams::{Registered, Streams};
use crate::memory;
use crate::metrics::{Metrics, plane};
use crate::tasks::panic_text;
use crate::world::World;

/// The translator, and everything it needs.
#[derive(Debug)]
pub(super) struct Translation {
    translator: Translator,
    world: watch::Receiver<Arc<World>>,
    mailbox: Arc<Mailbox<Registered>>,
    streams: Arc<Streams>,
    metrics: Arc<Metrics>,
    compare: bool,
    published: watch::Sender<u64>,
}

/// What others observe of the translator.
#[derive(Debug)]
pub(super) struct Following {
    /// Generation of the world whose resources have been handed out.
    pub published: watch::Receiver<u64>,
    /// Why it failed, if it did.
    pub failure: watch::Receiver<Option<String>>,
}

impl Translation {
    /// Starts the thread. It ends when the mailbox is closed.
    ///
    /// If the translator panics, its state of the proxies is partly that of the old world and partly that of the new. It
    /// cannot be used, and no proxy can join any more. So the mailbox is closed and `failure` gives the reason, on which the
    /// control plane ends.
    pub fn start(
        world: watch::Receiver<Arc<World>>,
        mailbox: Arc<Mailbox<Registered>>,
        streams: Arc<Streams>,
        metrics: Arc<Metrics>,
        compare: bool,
    ) -> io::Result<Following> {
        let first = world.borrow().clone();
        let (published, followed) = watch::channel(first.generation);
        let (failed, failure) = watch::channel(None);
        let translator = Translator::new(first.snapshot.clone(), cause(&first));
        drop(first);
        let translation = Self { translator, world, mailbox: mailbox.clone(), streams, metrics, compare, published };
        thread::Builder::new().name("translator".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| translation.run()));
            // Waiting requests get no answer.
            mailbox.close();
            if let Err(panic) = ended {
                failed.send_replace(Some(panic_text(&*panic)));
            }
        })?;
        Ok(Following { published: followed, failure })
    }

    fn run(mut self) {
        let mut join_first = false;
        while let Some(work) = self.mailbox.next(join_first) {
            match work {
                Work::Publish => {
                    self.publish();
                    join_first = true;
                }
                Work::Join(join) => {
                    self.join(*join);
                    join_first = false;
                }
                Work::Leave(views) => views.iter().for_each(|view| self.translator.leave(view)),
                Work::Rebuild(waiting) => {
                    self.rebuild();
                    // The requester may have stopped waiting.
                    waiting.into_iter().for_each(|done| _ = done.send(()));
                }
                Work::GiveBack => memory::collect(),
                #[cfg(test)]
                Work::Ask(question) => question.0(&mut self.translator),
            }
        }
    }

    fn join(&mut self, join: Join<Registered>) {
        let Join { client, admitted, answer, .. } = join;
        if answer.is_closed() {
            return;
        }
        if let Err(error) = self.streams.have_room() {
            _ = answer.send(Err(error));
            return;
        }
        // The view stays with the stream when the configuration changes.
        let view = Arc::new(client.view.clone());
        let apart = memory::apart();
        let joined = self.translator.join(view);
        drop(apart);
        // If the client has disconnected meanwhile, the registration is dropped, which removes the stream again.
        _ = answer.send(self.streams.register(client, admitted, joined, &self.mailbox));
    }

    /// Tells the proxies that the current world concerns.
    fn publish(&mut self) {
        let _apart = memory::apart();
        let world = self.world.borrow_and_update().clone();
        let changed = self.translator.update(world.snapshot.clone(), cause(&world));
        self.hand_out(changed, &world);
        if self.compare {
            let (mismatches, healed) = self.translator.verify();
            for mismatch in &mismatches {
                tracing::error!(%mismatch, generation = world.generation, "a change was followed wrongly; please report this");
            }
            self.metrics.plane.add(plane::Counter::pilot_total_xds_internal_errors, mismatches.len() as u64);
            self.hand_out(healed, &world);
        }
        self.published.send_replace(world.generation);
    }

    /// Rebuilds the resources from a snapshot that is equal but lies elsewhere in memory; nothing is sent.
    fn rebuild(&mut self) {
        let _apart = memory::apart();
        let world = self.world.borrow_and_update().clone();
        let changed = self.translator.rebuild(world.snapshot.clone());
        let differing = changed.proxies.iter().filter(|change| !change.touched.is_empty());
        for change in differing.clone() {
            let (namespace, pod) = (&change.now.view.namespace, &change.now.view.pod);
            tracing::error!("what was made from nothing for {namespace}/{pod} differs; please report this");
        }
        self.metrics.plane.add(plane::Counter::pilot_total_xds_internal_errors, differing.count() as u64);
        self.hand_out(changed, &world);
        self.metrics.plane.inc(plane::Counter::evenkeel_config_rebuilds);
        // Streams still hold the old resources.
        self.streams.tell_all();
    }

    fn hand_out(&self, changed: Changed, world: &World) {
        let told = self.streams.hand_out(changed, world);
        self.metrics.queued(world.noticed.instant.elapsed(), told);
    }
}
