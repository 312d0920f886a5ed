//! What a node's agent does about Pods of its node that are, or may be, outside the mesh: decided from the state of each Pod and from
//! what a probe of its network has found.

use std::collections::BTreeMap;

/// What happens to Pods without rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// They are reported.
    Report,
    /// They get a label.
    Label,
    /// They are deleted: their owner creates new ones.
    Delete,
    /// Their rules are loaded.
    Repair,
}

/// Who loads the rules of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// The plugin.
    Plugin,
    /// An init container of the Pod.
    Container,
}

/// The state of a Pod's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its init container waits for the rules, and tries again.
    Waiting,
    /// Its init container has failed, and is not started again (`restartPolicy: Never`).
    Failed,
    /// Its rules are needed: programs run, or start next.
    Running,
    /// It is earlier, or it has ended: nothing is to be known of it.
    Other,
}

/// What was found in a Pod's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The rules are there, and a connection has reached the sidecar's port, if one was made.
    Captured,
    /// Rules are missing.
    Missing(String),
    /// The rules are there, and a connection has passed them by.
    Bypassed(String),
    /// The rules are there, and the sidecar does not accept: connections fail.
    Refused(String),
    /// It could not be looked at.
    Unknown(String),
}

impl Probe {
    /// The label `result` of metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Missing(_) => "missing",
            Self::Bypassed(_) => "bypassed",
            Self::Refused(_) => "refused",
            Self::Unknown(_) => "unknown",
        }
    }

    /// All names.
    pub const NAMES: [&'static str; 5] = ["captured", "missing", "bypassed", "refused", "unknown"];

    /// Whether programs of the Pod are reached, or reach others, past the mesh.
    fn is_outside(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Bypassed(_))
    }
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// An Event with a reason (CamelCase) and a message.
    Report {
        /// The Event's reason.
        reason: &'static str,
        /// Its message.
        message: String,
        /// What is done beside it.
        remedy: Remedy,
    },
}

/// The Event of a Pod that waits for its rules.
const WAITS: &str = "CaptureRulesMissing";
/// The Event of a Pod that runs outside the mesh.
const OUTSIDE: &str = "OutsideMesh";
/// The Event of a Pod whose sidecar does not accept captured connections.
const REFUSED: &str = "SidecarNotListening";

/// Decides about one Pod.
pub fn decide(stage: Stage, loader: Loader, probe: &Probe, configured: Remedy) -> Action {
    match (stage, probe) {
        (Stage::Other, _) | (_, Probe::Captured | Probe::Unknown(_)) => Action::None,
        (Stage::Failed, Probe::Missing(what)) => Action::Report {
            reason: WAITS,
            message: format!(
                "the Pod has failed, as its capture rules were not loaded ({what}), and is never started again"
            ),
            // Rules do not help a Pod that has ended.
            remedy: if configured == Remedy::Repair { Remedy::Report } else { configured },
        },
        (Stage::Waiting, Probe::Missing(what)) => Action::Report {
            reason: WAITS,
            message: format!("the Pod was started before the CNI plugin was ready: {what}"),
            remedy: configured,
        },
        (Stage::Running, probe) if probe.is_outside() => outside(loader, probe, configured),
        (Stage::Running, Probe::Refused(what)) => Action::Report {
            reason: REFUSED,
            message: format!("captured connections fail: {what}"),
            remedy: Remedy::Report,
        },
        _ => Action::None,
    }
}

fn outside(loader: Loader, probe: &Probe, configured: Remedy) -> Action {
    let (Probe::Missing(what) | Probe::Bypassed(what)) = probe else { return Action::None };
    let remedy = match configured {
        // Rules of an init container may be in another program's tables, where further ones would not replace them.
        Remedy::Repair if loader == Loader::Plugin && matches!(probe, Probe::Missing(_)) => Remedy::Repair,
        // One mistake of a probe must not end all Pods of a node that serve.
        Remedy::Repair | Remedy::Delete | Remedy::Report => Remedy::Report,
        Remedy::Label => Remedy::Label,
    };
    let message = format!("the Pod runs outside the mesh, in plain text and without policies: {what}");
    Action::Report { reason: OUTSIDE, message, remedy }
}

/// Which Pods have been reported, so that each finding is one Event.
#[derive(Debug, Default)]
pub struct Reported {
    by_pod: BTreeMap<String, &'static str>,
}

impl Reported {
    /// Whether a finding about a Pod is new.
    pub fn is_new(&mut self, uid: &str, reason: &'static str) -> bool {
        self.by_pod.insert(uid.to_owned(), reason) != Some(reason)
    }

    /// Nothing is wrong with a Pod any more; returns whether something was.
    pub fn clear(&mut self, uid: &str) -> bool {
        self.by_pod.remove(uid).is_some()
    }

    /// Forgets Pods that are not on the node any more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.by_pod.retain(|uid, _| is_there(uid));
    }

    /// How many Pods run outside the mesh.
    pub fn outside(&self) -> usize {
        self.by_pod.values().filter(|reason| **reason == OUTSIDE).count()
    }
}
