//! `envoy.config.cluster.v3.OutlierDetection`, compiled.

use std::time::Duration;

/// When a host is taken for an outlier, and for how long it is then ejected. Defaults are Envoy's.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlierDetection {
    /// Answers of 5xx in a row (5). Connection failures count as 5xx unless `split_local_origin`.
    pub consecutive_5xx: Threshold,
    /// Answers of 502, 503, 504 in a row (5, enforced in 0 % of cases).
    pub consecutive_gateway_failure: Threshold,
    /// Failures to connect, resets and timeouts in a row (5); counted only with `split_local_origin`.
    pub consecutive_local_origin_failure: Threshold,
    /// What the proxy itself sees (connect failures, timeouts) is told apart from what the host answers.
    pub split_local_origin: bool,
    /// Between two looks at rates and at ejection times (10 s).
    pub interval: Duration,
    /// Ejection time, multiplied by how often the host was ejected (30 s).
    pub base_ejection_time: Duration,
    /// Longest ejection time without jitter (300 s, or the base if that is longer).
    pub max_ejection_time: Duration,
    /// Up to this much is added to an ejection time, at random (0 s).
    pub max_ejection_time_jitter: Duration,
    /// Share of a cluster's hosts that may be ejected, in percent (10).
    pub max_ejection_percent: u32,
    /// The first host is ejected whatever `max_ejection_percent` says.
    pub always_eject_one_host: bool,
    /// A host that passes its active health check is no longer ejected (true).
    pub successful_health_check_unejects: bool,
    /// Hosts whose success rate is far below the others'.
    pub success_rate: SuccessRate,
    /// Hosts that fail too often, whatever the others do.
    pub failure_percentage: FailurePercentage,
}

/// A number of failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Failures; 0: never reached.
    pub count: u32,
    /// How likely a host that reached it is ejected, in percent.
    pub enforcing_percent: u32,
}

/// Compares success rates within a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuccessRate {
    /// Hosts with enough requests there must be (5).
    pub minimum_hosts: u32,
    /// Requests in an interval that are enough (100).
    pub request_volume: u64,
    /// Standard deviations below the mean, in thousandths (1900).
    pub stdev_factor_thousandths: u32,
    /// How likely an outlier is ejected, in percent (100).
    pub enforcing_percent: u32,
    /// The same for local origin (100).
    pub enforcing_local_origin_percent: u32,
}

/// Compares failures with a fixed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailurePercentage {
    /// Failures from which on a host is an outlier, in percent (85).
    pub threshold: u32,
    /// Hosts with enough requests there must be (5).
    pub minimum_hosts: u32,
    /// Requests in an interval that are enough (50).
    pub request_volume: u64,
    /// How likely an outlier is ejected, in percent (0).
    pub enforcing_percent: u32,
    /// The same for local origin (0).
    pub enforcing_local_origin_percent: u32,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self {
            consecutive_5xx: Threshold { count: 5, enforcing_percent: 100 },
            consecutive_gateway_failure: Threshold { count: 5, enforcing_percent: 0 },
            consecutive_local_origin_failure: Threshold { count: 5, enforcing_percent: 100 },
            split_local_origin: false,
            interval: Duration::from_secs(10),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_time_jitter: Duration::ZERO,
            max_ejection_percent: 10,
            always_eject_one_host: false,
            successful_health_check_unejects: true,
            success_rate: SuccessRate {
                minimum_hosts: 5,
                request_volume: 100,
                stdev_factor_thousandths: 1900,
                enforcing_percent: 100,
                enforcing_local_origin_percent: 100,
            },
            failure_percentage: FailurePercentage {
                threshold: 85,
                minimum_hosts: 5,
                request_volume: 50,
                enforcing_percent: 0,
                enforcing_local_origin_percent: 0,
            },
        }
    }
}
