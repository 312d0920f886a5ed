//! The question, and the answer.

use std::sync::Arc;

use evenkeel_model::Workload;
use serde::Serialize;

use crate::place::Source;

/// A party.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// A workload, and its namespace.
    Workload(String, Option<String>),
    /// All workloads of a namespace.
    Namespace(String),
    /// Clients outside the mesh; hosts outside it.
    Outside,
    /// Everybody.
    Any,
}

/// The question.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The caller.
    pub from: Party,
    /// The callee.
    pub to: Party,
    /// Only this path, with or without a query.
    pub path: Option<String>,
    /// Only this method.
    pub method: Option<String>,
    /// Only this port, as the caller sees it.
    pub port: Option<u16>,
    /// Only this host.
    pub host: Option<String>,
    /// Requests carry no token.
    pub without_jwt: bool,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reachability {
    /// Some request gets through.
    Reachable,
    /// No request gets through.
    Unreachable,
    /// That is not decided.
    Undecided,
}

/// The answer.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// The caller.
    pub from: String,
    /// The callee.
    pub to: String,
    /// The result.
    pub verdict: Reachability,
    /// A request that gets through.
    pub witness: Option<Witness>,
    /// Why none does.
    pub reasons: Vec<Reason>,
    /// Number of call paths that were examined.
    pub call_paths: usize,
    /// Further notes: what was not decided, and why.
    pub notes: Vec<String>,
    /// Gateways that callers inside the mesh may call, each with what to say if a call path leads on from there.
    #[serde(skip)]
    pub(super) gateways: Vec<(Arc<Workload>, String)>,
    /// What closes services that callers may call and that lead to the callee.
    #[serde(skip)]
    pub(super) closed: Vec<String>,
}

/// A request that gets through.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Witness {
    /// The sender.
    pub from: String,
    /// The Pod that gets it, as `POD.NAMESPACE`, or an address.
    pub to: String,
    /// `http`, `bytes` or `tls`.
    pub kind: &'static str,
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// Its authority.
    pub authority: String,
    /// Its further headers.
    pub headers: Vec<(String, String)>,
    /// The address from which it is sent, if that matters.
    pub source: Option<String>,
    /// How the connection to the workload is secured.
    pub transport: &'static str,
    /// The policy that allows it; `null`: none is needed.
    pub allowed_by: Option<String>,
    /// Assumptions about other filters on the call path, such as that an external authorizer lets the request pass.
    pub provided: Vec<String>,
    /// The command that sends it.
    pub curl: String,
    /// The command that explains it; `null`: `explain` cannot be asked about such a call.
    pub explain: Option<String>,
}

/// Why nothing gets through on some call paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The reason in one sentence.
    pub text: String,
    /// The objects that say so.
    pub sources: Vec<Source>,
}

impl Party {
    /// Reads `WORKLOAD[.NAMESPACE]`, `NAMESPACE/WORKLOAD`, `NAMESPACE/*`, `outside` or `*`.
    pub fn parse(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            "outside" => Self::Outside,
            _ => match (text.split_once('/'), text.rsplit_once('.')) {
                (Some((namespace, "*")), _) => Self::Namespace(namespace.to_owned()),
                (Some((namespace, name)), _) | (None, Some((name, namespace))) => {
                    Self::Workload(name.to_owned(), Some(namespace.to_owned()))
                }
                (None, None) => Self::Workload(text.to_owned(), None),
            },
        }
    }
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(name, Some(namespace)) => write!(f, "{name}.{namespace}"),
            Self::Workload(name, None) => f.write_str(name),
            Self::Namespace(namespace) => write!(f, "{namespace}/*"),
            Self::Outside => f.write_str("outside"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Proof {
    /// The answer depends on these, which are not supported.
    pub(super) fn doubt(&mut self, unknown: Vec<String>) {
        if !unknown.is_empty() {
            self.verdict = Reachability::Undecided;
        }
        for note in unknown {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Creates an answer without call paths.
    pub(super) fn new(claim: &Claim) -> Self {
        Self {
            from: claim.from.to_string(),
            to: claim.to.to_string(),
            verdict: Reachability::Unreachable,
            witness: None,
            reasons: Vec::new(),
            call_paths: 0,
            notes: Vec::new(),
            gateways: Vec::new(),
            closed: Vec::new(),
        }
    }
}
