//! The answer. Its JSON form is stable and described in docs/explain.md.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::place::Source;

/// The outcome of a call.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The call.
    pub call: Call,
    /// The final outcome.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The proxies on its way, in order; empty if it meets none.
    pub hops: Vec<Hop>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// The call as understood.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// `WORKLOAD.NAMESPACE`, or `outside`.
    pub from: String,
    /// `GET http://host:port/path`, `TCP host:port`, `UDP host:port`.
    pub to: String,
    /// The address that the host name resolves to.
    pub address: String,
    /// How the name was resolved.
    pub resolved: String,
}

/// The end of a call, or of its path through one proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The status that a proxy answers with.
    pub status: Option<u16>,
    /// Envoy's `%RESPONSE_FLAGS%`.
    pub response_flag: Option<&'static str>,
    /// Envoy's `%RESPONSE_CODE_DETAILS%`.
    pub details: Option<String>,
    /// The target of a redirect.
    pub location: Option<String>,
    /// The reason in one sentence.
    pub reason: String,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The call is forwarded.
    #[default]
    Forward,
    /// A proxy answers by itself.
    Direct,
    /// The client is sent elsewhere.
    Redirect,
    /// A policy denies it.
    Deny,
    /// The connection is closed.
    Reset,
    /// Datagrams are dropped.
    Drop,
}

impl Outcome {
    /// Returns the name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Direct => "direct",
            Self::Redirect => "redirect",
            Self::Deny => "deny",
            Self::Reset => "reset",
            Self::Drop => "drop",
        }
    }

    /// Parses a name; any unknown one is `reset`.
    pub fn parse(name: &str) -> Self {
        let all = [Self::Forward, Self::Direct, Self::Redirect, Self::Deny, Self::Drop];
        all.into_iter().find(|outcome| outcome.as_str() == name).unwrap_or(Self::Reset)
    }
}

/// The decision of one proxy.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// The proxy.
    pub proxy: ProxyName,
    /// How the call arrives, for people.
    pub arrives: String,
    /// The listener.
    pub listener: Option<String>,
    /// The filter chain.
    pub filter_chain: Option<String>,
    /// What clients must present here, on the receiving side.
    pub peer_authentication: Option<PeerAuthentication>,
    /// The virtual host.
    pub virtual_host: Option<String>,
    /// The route.
    pub route: Option<Route>,
    /// Rules that did not apply, and why.
    pub considered: Vec<Considered>,
    /// Policies that were asked.
    pub policies: Vec<Policy>,
    /// The clusters that it may go to.
    pub clusters: Vec<Cluster>,
    /// Changes to the request.
    pub rewrites: Rewrites,
    /// The time limit of the whole request; none = unlimited.
    #[serde(serialize_with = "duration")]
    pub timeout: Option<Duration>,
    /// Retries; none = none.
    pub retries: Option<Retries>,
    /// Copies.
    pub mirrors: Vec<Mirror>,
    /// The connection to the endpoint.
    pub transport: Option<Transport>,
    /// Notes of the filters.
    pub filters: Vec<String>,
    /// The running proxy's decision; none = it was not asked.
    pub running: Option<Running>,
    /// The outcome at this proxy.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A running proxy's decision about the call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    /// Whether it decides as the files say.
    pub agrees: bool,
    /// Differences from the files, one line each.
    pub differs: Vec<String>,
    /// Whether it has to ask its control plane first, because its workload has not used this yet (learned scope).
    pub held: bool,
    /// The number of the configuration that it runs, counted since its start.
    pub generation: u64,
    /// Why it could not be asked.
    pub error: Option<String>,
}

/// A proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyName {
    /// `outbound`, `inbound` or `gateway`.
    pub side: &'static str,
    /// The workload.
    pub workload: String,
    /// The Pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
}

/// A route.
#[derive(Debug, Clone, Serialize)]
pub struct Route {
    /// Its name; may be empty.
    pub name: String,
    /// The rule it comes from; none for what the mesh adds itself.
    pub source: Option<Source>,
}

/// A rule that did not apply.
#[derive(Debug, Clone, Serialize)]
pub struct Considered {
    /// Its name; may be empty.
    pub name: String,
    /// Where it is written.
    pub source: Source,
    /// Why it did not apply.
    pub reason: String,
    /// Whether it comes after the rule that applied, and was not asked.
    pub later: bool,
}

/// A policy that was asked.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// `CUSTOM`, `AUDIT`, `DENY` or `ALLOW`.
    pub action: String,
    /// The extension provider that decides about what a CUSTOM policy matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The policy, or its rule.
    pub source: Source,
    /// Whether one of its rules matches the call.
    pub matches: bool,
    /// Whether it decided.
    pub decides: bool,
    /// The number of the rule that matches, or that comes closest.
    pub rule: Option<usize>,
    /// What the call lacks to match the closest rule.
    pub missing: Vec<Missing>,
    /// The Pod whose proxy asks.
    pub at: String,
}

/// A condition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The field.
    pub field: String,
    /// The value that the rule requires.
    pub wanted: String,
    /// The value that the call has.
    pub got: String,
}

/// What clients must present.
#[derive(Debug, Clone, Serialize)]
pub struct PeerAuthentication {
    /// `STRICT`, `PERMISSIVE` or `DISABLE`.
    pub mode: String,
    /// The object that says so; none = the default.
    pub source: Option<Source>,
}

/// A destination.
#[derive(Debug, Clone, Serialize)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Its share, out of the sum of all.
    pub weight: u32,
    /// Whether this answer follows it.
    pub chosen: bool,
    /// Whether it exists.
    pub exists: bool,
    /// The objects that it was made of: the service, and the DestinationRule that configures it.
    pub sources: Vec<Source>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Its address and port.
    pub address: String,
    /// The Pod behind it, as `POD.NAMESPACE`.
    pub workload: Option<String>,
    /// Its locality; may be empty.
    pub locality: String,
    /// Its priority; 0 is used first.
    pub priority: u32,
    /// Whether it takes requests.
    pub healthy: bool,
    /// Health flags reported by a running proxy, as Envoy names them, such as `failed_outlier_check` (ejected).
    pub flags: Vec<String>,
}

/// Changes to the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Rewrites {
    /// The path, if it is changed.
    pub path: Option<String>,
    /// The authority, if it is changed.
    pub authority: Option<String>,
    /// Edits of headers, in order.
    pub headers: Vec<String>,
}

/// Retries.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Retries {
    /// Maximum number of attempts.
    pub attempts: u32,
    /// When.
    pub on: Vec<&'static str>,
    /// The time limit of each try.
    #[serde(serialize_with = "duration")]
    pub per_try_timeout: Option<Duration>,
}

/// Copies of a request.
#[derive(Debug, Clone, Serialize)]
pub struct Mirror {
    /// The cluster that gets them.
    pub cluster: String,
    /// The share of requests, in percent.
    pub percentage: f64,
}

/// The connection to the endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Transport {
    /// `mtls`, `tls` or `plaintext`.
    pub mode: &'static str,
    /// The server name that is sent.
    pub sni: Option<String>,
    /// The identity that the proxy presents.
    pub identity: Option<String>,
    /// Names, one of which the server must have; empty: any.
    pub accepts: Vec<String>,
    /// The object that decides it; none = the mesh's default.
    pub source: Option<Source>,
    /// Why, for people.
    pub reason: String,
}

/// A duration as Istio writes it: `1.5s`, `250ms`.
pub fn written(duration: Duration) -> String {
    match duration.as_millis() {
        0 if !duration.is_zero() => format!("{}us", duration.as_micros()),
        millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis if millis < 1000 => format!("{millis}ms"),
        _ => format!("{}s", duration.as_secs_f64()),
    }
}

fn duration<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    value.map(written).serialize(serializer)
}

impl Answer {
    /// The answer as JSON: the first proxy's decision, the call's outcome, the policies of all proxies, and `hops`.
    pub fn to_json(&self) -> Value {
        let (Ok(Value::Object(mut own)), Ok(Value::Object(mut first))) =
            (serde_json::to_value(self), serde_json::to_value(self.hops.first().unwrap_or(&Hop::default())))
        else {
            return Value::Null;
        };
        let (hops, notes) = (own.remove("hops"), own.remove("notes"));
        let policies: Vec<&Policy> = self.hops.iter().flat_map(|hop| &hop.policies).collect();
        first.insert("policies".to_owned(), serde_json::to_value(policies).unwrap_or_default());
        first.retain(|name, _| name != "proxy" && name != "notes" && !own.contains_key(name));
        own.extend(first);
        own.insert("notes".to_owned(), notes.unwrap_or_default());
        own.insert("hops".to_owned(), hops.unwrap_or_default());
        Value::Object(own)
    }
}
