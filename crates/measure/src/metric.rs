//! The measured quantities, their units, and their keys in `results.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// User and system time of all of a peer's processes per request, in microseconds.
    CpuUsPerRequest,
    /// Answers per second.
    RequestsPerSecond,
    /// Median latency in microseconds.
    P50Us,
    /// 99th percentile of the latency in microseconds.
    P99Us,
    /// Bytes carried, in millions, per second of CPU time.
    MbPerCpuSecond,
    /// Bytes carried, in millions, per second.
    MbPerSecond,
    /// Connections accepted, served one request and closed per second of CPU time.
    ConnectionsPerCpuSecond,
    /// Such connections per second.
    ConnectionsPerSecond,
    /// Milliseconds from exec until `/ready` answers 200.
    ReadyMs,
    /// Resident memory in MiB: after the load, or of an idle process once its start is over.
    ResidentMib,
    /// Resident memory of one idle connection or stream more, in KiB.
    KibEach,
    /// Certificates signed per second of CPU time.
    CertificatesPerCpuSecond,
    /// User and system time per change of the configuration, in milliseconds.
    CpuMsPerChange,
}

/// The values measured in one turn.
pub type Values = BTreeMap<Metric, f64>;

impl Metric {
    /// Head of its column.
    pub fn head(self) -> &'static str {
        match self {
            Self::CpuUsPerRequest => "CPU µs/request",
            Self::RequestsPerSecond => "requests/s",
            Self::P50Us => "p50 µs",
            Self::P99Us => "p99 µs",
            Self::MbPerCpuSecond => "MB/CPU second",
            Self::MbPerSecond => "MB/s",
            Self::ConnectionsPerCpuSecond => "connections/CPU second",
            Self::ConnectionsPerSecond => "connections/s",
            Self::ReadyMs => "ready after ms",
            Self::ResidentMib => "resident MiB",
            Self::KibEach => "KiB each",
            Self::CertificatesPerCpuSecond => "certificates/CPU second",
            Self::CpuMsPerChange => "CPU ms/change",
        }
    }

    /// Number of significant digits after the point.
    pub fn digits(self) -> usize {
        match self {
            Self::CpuUsPerRequest | Self::ResidentMib | Self::KibEach => 1,
            Self::CpuMsPerChange => 3,
            _ => 0,
        }
    }

    /// Whether it is a cost, which is shown relative to the costs of other proxies; a rate is shown relative to the rate
    /// without a proxy.
    pub fn is_cost(self) -> bool {
        matches!(self, Self::CpuUsPerRequest | Self::MbPerCpuSecond | Self::ConnectionsPerCpuSecond | Self::KibEach)
    }
}
