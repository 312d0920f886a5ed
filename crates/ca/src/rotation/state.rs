//! The state of a rotation, and the conditions for its next step.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{HOLDER_SKEW, Holder, Ledgers};

/// How long servers use their new certificates before the old roots are dropped: a proxy's workers use what the proxy has
/// confirmed within this time.
pub const SETTLE: Duration = Duration::from_secs(5);
/// Maximum number of steps of rotations that are kept.
const MAX_STEPS: usize = 40;

/// Used in place of a [`Signer::id`] for certificates of an external signer.
pub const EXTERNAL: &str = "external";

/// The authorities, and the progress of the rotation from one to the other. It is replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Increases with every change.
    pub generation: u64,
    /// The current phase.
    pub phase: Phase,
    /// When the phase began, in seconds since 1970.
    pub since: u64,
    /// The kind of the current rotation, or else of the last one.
    pub kind: Option<Kind>,
    /// The authority that signs certificates of workloads.
    pub active: Signer,
    /// The authority that will sign once its root is trusted everywhere (`Distributing`).
    pub next: Option<Signer>,
    /// The former authority, as long as certificates of it are in use (`Replacing`, `Retiring`).
    pub old: Option<Signer>,
    /// The steps so far, oldest first.
    pub steps: Vec<Step>,
    /// Workloads that the current rotation does not wait for, by order of the operator.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<String>,
}

/// The phase of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// There is no rotation.
    Steady,
    /// The new root is also trusted, and nothing is signed with it yet.
    Distributing,
    /// Workloads get certificates of the new authority.
    Replacing,
    /// The control planes' own certificates are of the new authority, too; the old root is still trusted.
    Retiring,
}

/// The kind of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The roots: peers have to trust the new one first.
    Root,
    /// Only the authority below the same roots.
    Intermediate,
}

/// The origin of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Created by the control plane, in the state directory itself.
    First,
    /// Created by a rotation.
    Own,
    /// Provided by the operator.
    PluggedIn,
}

/// An authority, without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// SHA-256 of its certificate.
    pub id: String,
    /// The authority key identifier in the certificates that it signs.
    pub key_id: String,
    /// Its origin.
    pub origin: Origin,
    /// The authority with the root's key, if this one is below it and the control plane created both.
    pub parent: Option<String>,
    /// Beginning of its validity, in seconds since 1970.
    pub not_before: u64,
    /// End of its validity, in seconds since 1970.
    pub not_after: u64,
    /// Beginning of the validity of its roots (of the root that expires first), in seconds since 1970.
    pub root_not_before: u64,
    /// End of the validity of its roots (of the root that expires first), in seconds since 1970.
    pub root_not_after: u64,
}

/// A step of a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When, in seconds since 1970.
    pub at: u64,
    /// The step, for people.
    pub what: String,
}

/// The input of [`State::advance`].
#[derive(Debug)]
pub struct Observed<'a> {
    /// The certificates of workloads, and what the control planes run.
    pub ledgers: &'a Ledgers,
    /// The version of the trusted roots in the present phase.
    pub bundle: &'a str,
}

/// What a rotation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Number of workloads that are done.
    pub done: usize,
    /// Number of all workloads with a certificate.
    pub total: usize,
    /// Workloads that are not done, the first [`Waiting::MAX_NAMES`] by name.
    pub workloads: Vec<String>,
    /// Control planes that do not run the current phase yet.
    pub control_planes: Vec<String>,
    /// Until when certificates of unknown workloads may be in use, in seconds since 1970.
    pub unknown_until: Option<u64>,
}

impl Waiting {
    /// Maximum number of names in a list.
    pub const MAX_NAMES: usize = 100;

    fn is_over(&self) -> bool {
        self.done == self.total && self.control_planes.is_empty() && self.unknown_until.is_none()
    }
}

impl State {
    /// Returns the state of a mesh with one authority.
    pub fn steady(active: Signer, now: u64) -> Self {
        Self {
            generation: 1,
            phase: Phase::Steady,
            since: now,
            kind: None,
            active,
            next: None,
            old: None,
            steps: Vec::new(),
            without: BTreeSet::new(),
        }
    }

    /// Begins a change to another authority. Returns `None` if a rotation is in progress.
    pub fn begin(&self, kind: Kind, next: Signer, now: u64) -> Option<Self> {
        if self.phase != Phase::Steady {
            return None;
        }
        let mut state = Self { kind: Some(kind), ..self.clone() };
        match kind {
            Kind::Root => {
                state.next = Some(next);
                state.enter(
                    Phase::Distributing,
                    "the new root is trusted in addition; nothing is signed with it yet",
                    now,
                );
            }
            Kind::Intermediate => {
                state.old = Some(std::mem::replace(&mut state.active, next));
                state.enter(Phase::Replacing, "the new intermediate signs; its root is trusted already", now);
            }
        }
        Some(state)
    }

    /// Returns the state in which the rotation does not wait for these workloads, or the one that begins next does not.
    /// `None` if it does not wait for them anyway.
    pub fn without(&self, names: &[String], now: u64) -> Option<Self> {
        let new: Vec<&String> = names.iter().filter(|name| !self.without.contains(*name)).collect();
        if new.is_empty() {
            return None;
        }
        let mut state = self.clone();
        state.without.extend(new.iter().map(|name| (*name).clone()));
        if self.phase != Phase::Steady {
            let text = new.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
            state.step(&format!("by order of the operator the rotation does not wait for {text}"), now);
        }
        Some(state)
    }

    /// Returns the next state, if everything that the current phase waits for has happened.
    pub fn advance(&self, observed: &Observed<'_>, now: u64) -> Option<Self> {
        if self.phase == Phase::Steady || !self.waiting(observed, now).is_over() {
            return None;
        }
        let mut state = self.clone();
        match self.phase {
            Phase::Steady => return None,
            Phase::Distributing => {
                state.old = Some(std::mem::replace(&mut state.active, state.next.take()?));
                state.enter(Phase::Replacing, "every workload trusts the new root; it signs from now on", now);
            }
            Phase::Replacing => {
                let text =
                    "every workload has a certificate of the new authority; the control planes replace their own";
                state.enter(Phase::Retiring, text, now);
            }
            Phase::Retiring => {
                if now < self.since.saturating_add(SETTLE.as_secs()) {
                    return None;
                }
                state.old = None;
                state.without.clear();
                state.enter(Phase::Steady, "the old authority is not trusted any more, and its key is deleted", now);
            }
        }
        Some(state)
    }

    /// Returns what the current phase waits for.
    pub fn waiting(&self, observed: &Observed<'_>, now: u64) -> Waiting {
        let ledgers = observed.ledgers;
        let mut waiting = Waiting::default();
        let behind = ledgers.replicas.iter().filter(|replica| replica.generation < self.generation);
        waiting.control_planes = behind.map(|replica| replica.name.clone()).collect();
        if self.phase == Phase::Steady {
            waiting.control_planes.clear();
            return waiting;
        }
        waiting.unknown_until = ledgers.unknown_until.map(until).filter(|end| *end > now);
        let counts =
            |(name, holder): &(&String, &Holder)| until(holder.not_after) > now && !self.without.contains(*name);
        for (name, holder) in ledgers.holders.iter().filter(counts) {
            waiting.total += 1;
            if self.is_done(holder, observed.bundle) {
                waiting.done += 1;
            } else if waiting.workloads.len() < Waiting::MAX_NAMES {
                waiting.workloads.push(name.clone());
            }
        }
        waiting
    }

    /// Whether a workload has done what the current phase requires.
    fn is_done(&self, holder: &Holder, bundle: &str) -> bool {
        match self.phase {
            Phase::Steady => true,
            Phase::Distributing => holder.bundle.as_deref() == Some(bundle),
            // Certificates of an external signer are not replaced by a rotation here.
            _ if holder.signer == EXTERNAL => true,
            // A new certificate that was never presented may have been lost on its way.
            Phase::Replacing | Phase::Retiring => holder.is_shown && holder.signer == self.active.id,
        }
    }

    /// Returns the authority that signs the control planes' own certificates: the old one as long as clients may trust
    /// nothing else.
    pub fn server_signer(&self) -> &Signer {
        match (&self.phase, &self.old) {
            (Phase::Replacing, Some(old)) => old,
            _ => &self.active,
        }
    }

    /// Returns the authorities whose roots are trusted; the one that signs workloads' certificates is first.
    pub fn trusted(&self) -> impl Iterator<Item = &Signer> {
        std::iter::once(&self.active).chain(&self.next).chain(&self.old)
    }

    fn enter(&mut self, phase: Phase, what: &str, now: u64) {
        (self.phase, self.since) = (phase, now);
        self.step(what, now);
    }

    fn step(&mut self, what: &str, now: u64) {
        self.generation += 1;
        self.steps.push(Step { at: now, what: what.to_owned() });
        let surplus = self.steps.len().saturating_sub(MAX_STEPS);
        self.steps.drain(..surplus);
    }
}

fn until(not_after: u64) -> u64 {
    not_after.saturating_add(HOLDER_SKEW.as_secs())
}
