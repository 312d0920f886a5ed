//! The data about a workload's protection.

use serde::Serialize;

use crate::place::Source;

/// The protection of a workload.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Protection {
    /// The workload.
    pub workload: String,
    /// Its namespace.
    pub namespace: String,
    /// Its Pods.
    pub pods: Vec<String>,
    /// Its identity.
    pub identity: String,
    /// `sidecar`, `gateway` or `none`.
    pub proxy: &'static str,
    /// Its ports. The last entry has no number: it stands for all other ports.
    pub ports: Vec<Port>,
    /// RequestAuthentications, which are asked first.
    pub request_authentications: Vec<RequestAuthentication>,
    /// AuthorizationPolicies in the order in which they are asked.
    pub policies: Vec<Policy>,
    /// Services whose calls its proxy refuses, because policies judge them at waypoints.
    pub closed_services: Vec<ClosedService>,
    /// What is not protected, one sentence each.
    pub not_protected: Vec<String>,
    /// The running proxy's rules; `null`: it was not asked.
    pub running: Option<Running>,
}

/// A service that a policy closes to its clients.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedService {
    /// Where it is written.
    pub service: Source,
    /// The policy, and where it is written.
    pub policy: Source,
}

/// A port of the workload.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its number; `null`: all others.
    pub port: Option<u16>,
    /// Its protocol.
    pub protocol: String,
    /// The service that leads there, as `NAMESPACE/NAME:PORT`.
    pub service: Option<String>,
    /// Whether connections to it go through the proxy.
    pub captured: bool,
    /// `STRICT`, `PERMISSIVE` or `DISABLE`.
    pub mutual_tls: String,
    /// The PeerAuthentication that says so; `null`: the default.
    pub source: Option<Source>,
    /// Who may call, one sentence each.
    pub who_may_call: Vec<String>,
}

/// A RequestAuthentication.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAuthentication {
    /// Where it is written.
    pub source: Source,
    /// `mesh`, `namespace` or `workload`.
    pub scope: &'static str,
    /// The issuers, each with its audiences and where its keys come from.
    pub issuers: Vec<String>,
    /// Findings about it, or what stands in for it.
    pub notes: Vec<String>,
}

/// An AuthorizationPolicy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Its position in the order of evaluation, from 1.
    pub order: usize,
    /// `CUSTOM`, `DENY`, `ALLOW` or `AUDIT`.
    pub action: String,
    /// Where it is written.
    pub source: Source,
    /// `mesh`, `namespace` or `workload`.
    pub scope: &'static str,
    /// Whether it is only logged and counted.
    pub dry_run: bool,
    /// Whether it has errors, so that a stricter stand-in applies.
    pub refused: bool,
    /// What it stands in for, if that is not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    /// Whether it refuses anything: what is not supported and left out refuses nothing.
    #[serde(skip)]
    pub closes: bool,
    /// Whether it judges what the workload is sent; else only what that sends.
    #[serde(skip)]
    pub is_of_callers: bool,
    /// The external authorizer of a CUSTOM policy.
    pub provider: Option<String>,
    /// Whether it can only be asked about requests: it speaks HTTP.
    #[serde(skip)]
    pub asks_about_requests: bool,
    /// Its rules.
    pub rules: Vec<Rule>,
    /// Findings about it.
    pub notes: Vec<String>,
}

/// A rule.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Where it is written.
    pub source: Source,
    /// The callers and requests that it matches.
    pub text: String,
    /// The callers that it matches.
    pub callers: String,
    /// Whether it has conditions that only HTTP can meet.
    pub needs_http: bool,
    /// The ports that it is limited to; empty: all.
    pub ports: Vec<u16>,
}

/// The rules of the workload's running proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Running {
    /// Whether they enforce exactly these rules.
    pub agrees: bool,
    /// Rules that a proxy does not have, or has beyond them, one line each.
    pub differs: Vec<String>,
}
