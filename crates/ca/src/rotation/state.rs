//! Where a rotation stands, and when it goes on.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{Holder, Ledgers};

/// How long servers show their new certificates before the old roots are dropped: what a proxy has confirmed, its workers use
/// within this time.
pub const SETTLE: Duration = Duration::from_secs(5);
/// How much longer than its validity a certificate may be in use, at a workload whose clock is slow.
pub const HOLDER_SKEW: Duration = Duration::from_secs(300);
/// Steps of rotations that are remembered.
const MAX_STEPS: usize = 40;

/// In place of a [`Signer::id`]: the certificate is of an external signer.
pub const EXTERNAL: &str = "external";

/// Which authorities there are, and where the rotation from one to the other stands. It is replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Grows with every change.
    pub generation: u64,
    /// What is going on.
    pub phase: Phase,
    /// When the phase began, in seconds since 1970.
    pub since: u64,
    /// What changes; of the last rotation while none is going on.
    pub kind: Option<Kind>,
    /// Who signs certificates of workloads.
    pub active: Signer,
    /// Who will, once its root is trusted everywhere (`Distributing`).
    pub next: Option<Signer>,
    /// Who did, as long as certificates of it are in use (`Replacing`, `Retiring`).
    pub old: Option<Signer>,
    /// What has happened, oldest first.
    pub steps: Vec<Step>,
}

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No rotation.
    Steady,
    /// The new root is trusted in addition, and nothing is signed with it.
    Distributing,
    /// Workloads get certificates of the new authority.
    Replacing,
    /// The control planes' own certificates are of the new authority, too; the old root is still trusted.
    Retiring,
}

/// What changes in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The roots: peers have to trust the new one first.
    Root,
    /// Only the authority below the same roots.
    Intermediate,
}

/// Where an authority comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Made by the control plane, in the state directory itself.
    First,
    /// Made by a rotation.
    Own,
    /// Provided by the operator.
    PluggedIn,
}

/// An authority, without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// SHA-256 of its certificate.
    pub id: String,
    /// The authority key identifier in what it signs.
    pub key_id: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The authority with the root's key, if this one is below it and the control plane made both.
    pub parent: Option<String>,
    /// Validity, in seconds since 1970.
    pub not_before: u64,
    /// See above.
    pub not_after: u64,
    /// Validity of its roots: of the one that ends first.
    pub root_not_before: u64,
    /// See above.
    pub root_not_after: u64,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When, in seconds since 1970.
    pub at: u64,
    /// What.
    pub what: String,
}

/// What [`State::advance`] decides on.
#[derive(Debug)]
pub struct Observed<'a> {
    /// Who has which certificate, and what the control planes run.
    pub ledgers: &'a Ledgers,
    /// The version of the trusted roots in the present phase.
    pub bundle: &'a str,
}

/// What a rotation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Waiting {
    /// Workloads that are done.
    pub done: usize,
    /// All workloads with a certificate.
    pub total: usize,
    /// Those that are not done, the first [`Waiting::MAX_NAMES`] by name.
    pub workloads: Vec<String>,
    /// Control planes that do not run the present phase yet.
    pub control_planes: Vec<String>,
    /// Until when certificates of unknown workloads may be in use, in seconds since 1970.
    pub unknown_until: Option<u64>,
}

impl Waiting {
    /// Names that are listed.
    pub const MAX_NAMES: usize = 100;

    fn is_over(&self) -> bool {
        self.done == self.total && self.control_planes.is_empty() && self.unknown_until.is_none()
    }
}

impl State {
    /// The state of a mesh with one authority.
    pub fn steady(active: Signer, now: u64) -> Self {
        let steps = Vec::new();
        Self { generation: 1, phase: Phase::Steady, since: now, kind: None, active, next: None, old: None, steps }
    }

    /// Begins to change to another authority. A rotation that is going on has to end first.
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

    /// The next state, if everything that the present one waits for has come to pass.
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
                state.enter(Phase::Steady, "the old authority is not trusted any more, and its key is deleted", now);
            }
        }
        Some(state)
    }

    /// What the present phase waits for.
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
        for (name, holder) in ledgers.holders.iter().filter(|(_, holder)| until(holder.not_after) > now) {
            waiting.total += 1;
            if self.is_done(holder, observed.bundle) {
                waiting.done += 1;
            } else if waiting.workloads.len() < Waiting::MAX_NAMES {
                waiting.workloads.push(name.clone());
            }
        }
        waiting
    }

    /// Whether a workload is where the present phase wants it.
    fn is_done(&self, holder: &Holder, bundle: &str) -> bool {
        match self.phase {
            Phase::Steady => true,
            Phase::Distributing => holder.bundle.as_deref() == Some(bundle),
            // An external signer's certificates are not replaced, whatever changes here.
            _ if holder.signer == EXTERNAL => true,
            // A new certificate that was not shown yet may have been lost on its way.
            Phase::Replacing | Phase::Retiring => holder.is_shown && holder.signer == self.active.id,
        }
    }

    /// Who signs the control planes' own certificates: the old authority as long as clients may know nothing else.
    pub fn server_signer(&self) -> &Signer {
        match (&self.phase, &self.old) {
            (Phase::Replacing, Some(old)) => old,
            _ => &self.active,
        }
    }

    /// Whose roots are trusted; the one that signs workloads' certificates is first.
    pub fn trusted(&self) -> impl Iterator<Item = &Signer> {
        std::iter::once(&self.active).chain(&self.next).chain(&self.old)
    }

    fn enter(&mut self, phase: Phase, what: &str, now: u64) {
        self.generation += 1;
        (self.phase, self.since) = (phase, now);
        self.steps.push(Step { at: now, what: what.to_owned() });
        let surplus = self.steps.len().saturating_sub(MAX_STEPS);
        self.steps.drain(..surplus);
    }
}

fn until(not_after: u64) -> u64 {
    not_after.saturating_add(HOLDER_SKEW.as_secs())
}
