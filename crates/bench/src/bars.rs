//! The project's bars on speed and memory. They are printed with each run, and never asserted in a test: shared machines are
//! noisy. Instruction counts are what is gated.

use evenkeel_measure::Limit::{self, AtLeast, AtMost, Below};
use evenkeel_measure::metric::Metric;
use evenkeel_measure::metric::Metric::{
    CertificatesPerCpuSecond, ConnectionsPerCpuSecond, CpuMsPerChange, CpuUsPerRequest, KibEach, MbPerCpuSecond, P50Us,
    P99Us, ReadyMs, RequestsPerSecond, ResidentMib,
};
use evenkeel_measure::rounds::{Sample, Table};
use evenkeel_measure::{Bar, Spread};

use crate::peers::{DIRECT, ENVOY, EVENKEEL, HAPROXY, NGINX, RELAY};
use crate::scenarios::{
    AT_REST, AUTHORIZATION_CASE, CHANGING, ENDPOINTS_CASE, ENVOY_ASKS, ENVOY_HTTP1, ENVOY_TOKENS, EVENKEEL_500,
    EVENKEEL_10000, EVENKEEL_ASKS, EVENKEEL_LOAD, EVENKEEL_MESH, EVENKEEL_RULES, EVENKEEL_TOKENS, FORTIO,
    GENERATORS_CASE, GRPC_CASE, HTTP_CASE, IDLE_CASE, LATENCY_CASE, PLAIN_CASE, POLICY_CASE, REQUESTS_CASE,
    RESUMED_CASE, ROUTES_CASE, SIDECAR, SIGNING_CASE, STARTUP_CASE, STREAM_CASE, TLS_CASE, TOKENS_CASE, WRK,
    X25519_CASE,
};

/// What one bar promises.
pub struct Promise {
    scenario: &'static str,
    case: &'static str,
    measure: Measure,
    metric: Metric,
    limit: Limit,
}

/// The measure that is compared with the limit.
enum Measure {
    /// A peer's value.
    Value(&'static str),
    /// A peer's value divided by another's.
    Ratio(&'static str, &'static str),
    /// The cost that a peer adds to no proxy at all, divided by the cost that another adds.
    AddedRatio(&'static str, &'static str),
    /// The cost that a feature adds to a peer, divided by the cost that it adds to another; each as with and without.
    AddedToEach([&'static str; 2], [&'static str; 2]),
}

use Measure::{AddedRatio, AddedToEach, Ratio, Value as Own};

const fn bar(scenario: &'static str, case: &'static str, measure: Measure, metric: Metric, limit: Limit) -> Promise {
    Promise { scenario, case, measure, metric, limit }
}

/// The cost that asking adds to Evenkeel, and to Envoy.
const fn asking(way: usize) -> Measure {
    AddedToEach([EVENKEEL_ASKS[way], EVENKEEL_ASKS[0]], [ENVOY_ASKS[way], ENVOY_ASKS[0]])
}

const C1: &str = "1 connection";
const C32: &str = "32 connections";
const C256: &str = "256 connections";

/// All bars, in the order of the scenarios. For Envoy's pair the bars use HTTP/1.1 between its proxies, as in the design's
/// table and as Istio configures it for HTTP/1.1 applications; the ratio with HTTP/2 between them is in the pair's own
/// tables.
pub const PROMISES: &[Promise] = &[
    bar("startup", STARTUP_CASE, Own(SIDECAR), ReadyMs, AtMost(100.0)),
    bar("startup", STARTUP_CASE, Own(SIDECAR), ResidentMib, AtMost(15.0)),
    bar("memory", IDLE_CASE, Own(EVENKEEL), ResidentMib, AtMost(10.0)),
    bar("memory", PLAIN_CASE, Own(EVENKEEL), KibEach, AtMost(4.0)),
    bar("memory", TLS_CASE, Own(EVENKEEL), KibEach, AtMost(20.0)),
    bar("memory", STREAM_CASE, Own(EVENKEEL), KibEach, AtMost(8.0)),
    bar("hop", C1, Ratio(EVENKEEL, RELAY), CpuUsPerRequest, AtMost(1.35)),
    bar("hop", C32, Ratio(EVENKEEL, RELAY), CpuUsPerRequest, AtMost(1.35)),
    bar("hop", C256, Ratio(EVENKEEL, RELAY), CpuUsPerRequest, AtMost(1.35)),
    bar("hop", C32, Ratio(EVENKEEL, ENVOY), CpuUsPerRequest, AtMost(0.30)),
    bar("hop", C256, Ratio(EVENKEEL, ENVOY), CpuUsPerRequest, AtMost(0.18)),
    bar("hop", C1, Ratio(EVENKEEL, HAPROXY), CpuUsPerRequest, Below(1.0)),
    bar("hop", C32, Ratio(EVENKEEL, HAPROXY), CpuUsPerRequest, Below(1.0)),
    bar("hop", C256, Ratio(EVENKEEL, HAPROXY), CpuUsPerRequest, Below(1.0)),
    bar("hop", C1, Ratio(EVENKEEL, NGINX), CpuUsPerRequest, Below(1.0)),
    bar("hop", C32, Ratio(EVENKEEL, NGINX), CpuUsPerRequest, Below(1.0)),
    bar("hop", C256, Ratio(EVENKEEL, NGINX), CpuUsPerRequest, Below(1.0)),
    bar("pair", C32, Ratio(EVENKEEL_MESH, ENVOY_HTTP1), CpuUsPerRequest, AtMost(0.15)),
    bar("pair", C256, Ratio(EVENKEEL_MESH, ENVOY_HTTP1), CpuUsPerRequest, AtMost(0.08)),
    bar("pair", C32, Ratio(EVENKEEL_MESH, ENVOY_HTTP1), RequestsPerSecond, AtLeast(6.0)),
    bar("pair", C256, Ratio(EVENKEEL_MESH, ENVOY_HTTP1), RequestsPerSecond, AtLeast(10.0)),
    bar("pair", C256, Ratio(EVENKEEL_MESH, DIRECT), RequestsPerSecond, AtLeast(0.5)),
    bar("http2", HTTP_CASE, Ratio(EVENKEEL, ENVOY), CpuUsPerRequest, AtMost(0.5)),
    bar("http2", GRPC_CASE, Ratio(EVENKEEL, ENVOY), CpuUsPerRequest, AtMost(0.5)),
    bar("latency", LATENCY_CASE, AddedRatio(EVENKEEL_MESH, ENVOY_HTTP1), P50Us, AtMost(0.5)),
    bar("latency", LATENCY_CASE, AddedRatio(EVENKEEL_MESH, ENVOY_HTTP1), P99Us, AtMost(0.5)),
    bar("tcp", "1 stream, plain", Ratio(EVENKEEL, RELAY), MbPerCpuSecond, AtLeast(0.8)),
    bar("tcp", "1 stream, plain", Ratio(EVENKEEL, ENVOY), MbPerCpuSecond, AtLeast(1.0)),
    bar("tcp", "64 streams, plain", Ratio(EVENKEEL, RELAY), MbPerCpuSecond, AtLeast(0.8)),
    bar("tcp", "64 streams, plain", Ratio(EVENKEEL, ENVOY), MbPerCpuSecond, AtLeast(1.0)),
    bar("tcp", "1 stream, mutual TLS", Ratio(EVENKEEL, ENVOY), MbPerCpuSecond, AtLeast(1.0)),
    bar("tcp", "64 streams, mutual TLS", Ratio(EVENKEEL, ENVOY), MbPerCpuSecond, AtLeast(1.0)),
    bar("handshakes", X25519_CASE, Ratio(EVENKEEL, ENVOY), ConnectionsPerCpuSecond, AtLeast(1.0)),
    bar("handshakes", RESUMED_CASE, Ratio(EVENKEEL, ENVOY), ConnectionsPerCpuSecond, AtLeast(1.0)),
    bar("change", ENDPOINTS_CASE, Own(EVENKEEL_500), CpuMsPerChange, AtMost(0.3)),
    bar("change", ENDPOINTS_CASE, Ratio(EVENKEEL_10000, EVENKEEL_500), CpuMsPerChange, AtMost(1.5)),
    bar("change", ROUTES_CASE, Own(EVENKEEL_500), CpuMsPerChange, AtMost(0.3)),
    bar("change", ROUTES_CASE, Ratio(EVENKEEL_10000, EVENKEEL_500), CpuMsPerChange, AtMost(1.5)),
    bar("change", REQUESTS_CASE, Ratio(CHANGING, AT_REST), P99Us, AtMost(1.1)),
    bar("policy", POLICY_CASE, Ratio(EVENKEEL_RULES[1], EVENKEEL_RULES[0]), CpuUsPerRequest, AtMost(1.03)),
    bar("authorization", AUTHORIZATION_CASE, asking(1), CpuUsPerRequest, AtMost(0.5)),
    bar("authorization", AUTHORIZATION_CASE, asking(2), CpuUsPerRequest, AtMost(0.5)),
    bar("jwt", TOKENS_CASE, AddedToEach(EVENKEEL_TOKENS, ENVOY_TOKENS), CpuUsPerRequest, AtMost(0.5)),
    // Five times the requests for the CPU time of Fortio, and 1.1 times those of wrk.
    bar("generators", GENERATORS_CASE, Ratio(EVENKEEL_LOAD, FORTIO), CpuUsPerRequest, AtMost(1.0 / 5.0)),
    bar("generators", GENERATORS_CASE, Ratio(EVENKEEL_LOAD, WRK), CpuUsPerRequest, AtMost(1.0 / 1.1)),
    bar("signing", SIGNING_CASE, Own(EVENKEEL), CertificatesPerCpuSecond, AtLeast(5000.0)),
];

/// Holds every promise against the samples.
pub fn bars(samples: &[Sample]) -> Vec<Bar> {
    PROMISES.iter().map(|promise| promise.bar(samples)).collect()
}

impl Promise {
    fn bar(&self, samples: &[Sample]) -> Bar {
        Bar {
            scenario: self.scenario.to_owned(),
            what: self.what(),
            unit: String::new(),
            limit: Some(self.limit),
            measured: self.measured(samples),
        }
    }

    fn measured(&self, samples: &[Sample]) -> Option<Spread> {
        let table = Table { samples, scenario: self.scenario, case: self.case };
        match self.measure {
            Own(peer) => table.spread(peer, self.metric),
            Ratio(peer, other) => table.ratio(peer, other, self.metric),
            AddedRatio(peer, other) => table.added_ratio((peer, DIRECT), (other, DIRECT), self.metric),
            AddedToEach([peer, without], [other, base]) => {
                table.added_ratio((peer, without), (other, base), self.metric)
            }
        }
    }

    /// The peers whose values it needs.
    #[cfg(test)]
    pub fn peers(&self) -> Vec<&'static str> {
        match self.measure {
            Own(peer) => vec![peer],
            Ratio(peer, other) => vec![peer, other],
            AddedRatio(peer, other) => vec![peer, other, DIRECT],
            AddedToEach(one, other) => [one, other].concat(),
        }
    }

    /// Describes the measure.
    fn what(&self) -> String {
        let (scenario, case, metric) = (self.scenario, self.case, self.metric.head());
        match self.measure {
            Own(peer) => format!("{scenario}, {case}: {metric}, {peer}"),
            Ratio(peer, other) => format!("{scenario}, {case}: {metric}, {peer} ÷ {other}"),
            AddedRatio(peer, other) | AddedToEach([peer, _], [other, _]) => {
                format!("{scenario}, {case}: added {metric}, {peer} ÷ {other}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PROMISES;
    use crate::scenarios;

    #[test]
    fn every_bar_belongs_to_a_scenario() {
        for bar in PROMISES {
            assert!(scenarios::ALL.iter().any(|scenario| scenario.name == bar.scenario), "{}", bar.what());
        }
    }
}
