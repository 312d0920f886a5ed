//! What a proxy's page `/stats/prometheus` says about traffic: Istio's metrics, summed up by edge.
//! <https://istio.io/latest/docs/reference/config/metrics/>

use std::collections::{BTreeMap, HashMap};

use crate::exposition::{Sample, samples};
use crate::node::{EdgeKey, NodeKey};
use crate::series::Totals;

/// The page, with the metrics that are read.
pub(crate) const PAGE: &str =
    "/stats/prometheus?filter=%5Eistio_%28requests_total%7Crequest_duration_milliseconds%7Ctcp_%29";

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// The calls of an edge, as its client reports them.
    Edge(EdgeKey),
    /// The calls that a workload received.
    Inbound(NodeKey),
}

/// What one proxy has reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// Counters since the proxy's start.
    pub(crate) totals: HashMap<Counted, Totals>,
    /// Failures by kind, `CODE FLAGS`, since the proxy's start.
    pub(crate) failures: HashMap<Counted, BTreeMap<String, u64>>,
}

/// Reads the page of a proxy of this node.
pub(crate) fn report(page: &str, own: &NodeKey, is_gateway: bool) -> Report {
    let mut report = Report::default();
    let mut buckets: HashMap<Counted, Vec<Bucket>> = HashMap::new();
    for sample in samples(page) {
        let Some(metric) = Metric::of(sample.name) else { continue };
        for counted in counted(&sample, own, is_gateway) {
            if metric == Metric::DurationBucket {
                let upper = sample.label("le").parse().unwrap_or(f64::INFINITY);
                buckets.entry(counted).or_default().push(Bucket { upper, cumulative: sample.value as u64 });
            } else {
                report.count(metric, &sample, counted);
            }
        }
    }
    for (counted, buckets) in buckets {
        report.totals.entry(counted).or_default().durations = durations(&buckets);
    }
    report
}

/// A bucket of a histogram.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    upper: f64,
    cumulative: u64,
}

/// Requests by upper bound, from the buckets of one or more series with the same bounds.
fn durations(buckets: &[Bucket]) -> BTreeMap<u64, u64> {
    let mut cumulative: BTreeMap<u64, u64> = BTreeMap::new();
    for bucket in buckets {
        *cumulative.entry(bucket.upper.max(0.0).to_bits()).or_default() += bucket.cumulative;
    }
    let mut below = 0;
    for count in cumulative.values_mut() {
        (below, *count) = (*count, count.saturating_sub(below));
    }
    cumulative
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    Requests,
    DurationBucket,
    TcpOpened,
    TcpSent,
    TcpReceived,
}

impl Metric {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "istio_requests_total" => Self::Requests,
            "istio_request_duration_milliseconds_bucket" => Self::DurationBucket,
            "istio_tcp_connections_opened_total" => Self::TcpOpened,
            "istio_tcp_sent_bytes_total" => Self::TcpSent,
            "istio_tcp_received_bytes_total" => Self::TcpReceived,
            _ => return None,
        })
    }
}

impl Report {
    fn count(&mut self, metric: Metric, sample: &Sample<'_>, counted: Counted) {
        let value = sample.value as u64;
        let totals = self.totals.entry(counted.clone()).or_default();
        match metric {
            Metric::Requests => {
                totals.requests += value;
                match outcome(sample) {
                    Outcome::Success => {}
                    Outcome::ClientError => totals.client_errors += value,
                    Outcome::Failure => totals.errors += value,
                }
                if outcome(sample) != Outcome::Success {
                    *self.failures.entry(counted).or_default().entry(failure(sample)).or_default() += value;
                }
            }
            Metric::TcpOpened => totals.connections += value,
            Metric::TcpSent => totals.bytes_sent += value,
            Metric::TcpReceived => totals.bytes_received += value,
            Metric::DurationBucket => {}
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Success,
    ClientError,
    Failure,
}

fn outcome(sample: &Sample<'_>) -> Outcome {
    // Failures of gRPC have the status 200: https://grpc.io/docs/guides/status-codes/.
    let grpc = sample.label("grpc_response_status").parse().unwrap_or(0);
    let code: u16 = sample.label("response_code").parse().unwrap_or(0);
    match (code, grpc) {
        (0 | 500.., _) | (_, 2 | 4 | 8 | 13 | 14 | 15) => Outcome::Failure,
        (400..=499, _) | (_, 1..) => Outcome::ClientError,
        _ => Outcome::Success,
    }
}

/// `503 UF`, `grpc 14`.
fn failure(sample: &Sample<'_>) -> String {
    let (code, grpc) = (sample.label("response_code"), sample.label("grpc_response_status"));
    let flags = sample.label("response_flags");
    let code = match (code, grpc) {
        ("0", _) => "no response".to_owned(),
        ("200", grpc) if !grpc.is_empty() => format!("grpc {grpc}"),
        (code, _) => code.to_owned(),
    };
    if matches!(flags, "" | "-") { code } else { format!("{code} {flags}") }
}

/// What a sample counts towards.
fn counted(sample: &Sample<'_>, own: &NodeKey, is_gateway: bool) -> Vec<Counted> {
    if sample.label("reporter") == "destination" {
        return vec![Counted::Inbound(own.clone())];
    }
    let protocol = match sample.label("request_protocol") {
        "" | "unknown" => "http",
        protocol => protocol,
    };
    let edge = EdgeKey {
        from: own.clone(),
        to: server(sample),
        service: known(sample, "destination_service").unwrap_or_default().to_owned(),
        protocol: protocol.to_owned(),
    };
    // What a gateway sends on is what it received.
    let inbound = is_gateway.then(|| Counted::Inbound(own.clone()));
    std::iter::once(Counted::Edge(edge)).chain(inbound).collect()
}

/// The node that a client's sample names as the server.
fn server(sample: &Sample<'_>) -> NodeKey {
    if let Some(name) = known(sample, "destination_workload") {
        let namespace = known(sample, "destination_workload_namespace").unwrap_or("default").to_owned();
        return NodeKey::Workload { namespace, name: name.to_owned() };
    }
    match known(sample, "destination_service") {
        Some(host) if host.contains(".svc.") => NodeKey::Service(host.to_owned()),
        Some(host) => NodeKey::External(host.to_owned()),
        None => NodeKey::Unrouted,
    }
}

fn known<'s>(sample: &'s Sample<'_>, label: &str) -> Option<&'s str> {
    Some(sample.label(label)).filter(|value| !matches!(*value, "" | "unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> NodeKey {
        NodeKey::Workload { namespace: "shop".into(), name: "web".into() }
    }

    #[test]
    fn a_sample_counts_towards_the_edge_that_its_labels_name() {
        let check = |labels: &str, expected: &str| {
            let page = format!("istio_requests_total{{{labels}}} 7\n");
            let report = report(&page, &web(), false);
            let found: Vec<String> = report
                .totals
                .iter()
                .map(|(counted, totals)| {
                    let key = match counted {
                        Counted::Edge(edge) => edge.to_string(),
                        Counted::Inbound(node) => format!("inbound {node}"),
                    };
                    let failures: Vec<_> = report.failures.values().flatten().map(|(kind, _)| kind.as_str()).collect();
                    let (all, errors, client) = (totals.requests, totals.errors, totals.client_errors);
                    format!("{key} {all}/{errors}/{client} {}", failures.join(","))
                })
                .collect();
            assert_eq!(found, [expected], "{labels}");
        };
        let api = "destination_workload=\"api\",destination_workload_namespace=\"shop\",\
                   destination_service=\"api.shop.svc.cluster.local\",request_protocol=\"http\"";
        let host = "api.shop.svc.cluster.local";
        let source = |more: &str| format!("reporter=\"source\",{more}");
        check(&source(&format!("{api},response_code=\"200\"")), &format!("shop/web>shop/api>{host}>http 7/0/0 "));
        check(
            &source(&format!("{api},response_code=\"503\",response_flags=\"UF\"")),
            &format!("shop/web>shop/api>{host}>http 7/7/0 503 UF"),
        );
        check(
            &source(&format!("{api},response_code=\"404\",response_flags=\"-\"")),
            &format!("shop/web>shop/api>{host}>http 7/0/7 404"),
        );
        check(
            &source(&format!("{api},response_code=\"200\",grpc_response_status=\"14\"")),
            &format!("shop/web>shop/api>{host}>http 7/7/0 grpc 14"),
        );
        check(
            &source(&format!("destination_workload=\"unknown\",destination_service=\"{host}\",response_code=\"503\"")),
            &format!("shop/web>service:{host}>{host}>http 7/7/0 503"),
        );
        check(
            &source("destination_service=\"example.com\",response_code=\"200\",request_protocol=\"http\""),
            "shop/web>external:example.com>example.com>http 7/0/0 ",
        );
        check(
            &source("destination_service=\"unknown\",response_code=\"404\",response_flags=\"NR\""),
            "shop/web>unrouted>>http 7/0/7 404 NR",
        );
        check("reporter=\"destination\",response_code=\"200\"", "inbound shop/web 7/0/0 ");
    }

    #[test]
    fn durations_of_all_series_of_an_edge_are_one_histogram() {
        let page = ["200", "500"].map(|code| {
            let labels = format!("reporter=\"destination\",response_code=\"{code}\"");
            let name = "istio_request_duration_milliseconds_bucket";
            format!("{name}{{{labels},le=\"1\"}} 2\n{name}{{{labels},le=\"5\"}} 3\n{name}{{{labels},le=\"+Inf\"}} 3\n")
        });
        let report = report(&page.concat(), &web(), false);
        let totals = &report.totals[&Counted::Inbound(web())];
        let expected = [(1f64, 4), (5.0, 2), (f64::INFINITY, 0)].map(|(bound, count)| (bound.to_bits(), count));
        assert_eq!(totals.durations, BTreeMap::from(expected));
    }
}
