//! `envoy.config.cluster.v3.OutlierDetection`, compiled.

use std::sync::Arc;
use std::time::Duration;

/// When a host counts as an outlier, and for how long it is ejected. Defaults are Envoy's.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlierDetection {
    /// Consecutive 5xx responses (5). Connection failures count as 5xx unless `split_local_origin`.
    pub consecutive_5xx: Threshold,
    /// Consecutive 502, 503 and 504 responses (5, enforced in 0 % of cases).
    pub consecutive_gateway_failure: Threshold,
    /// Consecutive connection failures, resets and timeouts (5); counted only with `split_local_origin`.
    pub consecutive_local_origin_failure: Threshold,
    /// Local origin errors (connection failures, timeouts) are counted apart from the host's responses.
    pub split_local_origin: bool,
    /// Interval at which rates and ejection times are evaluated (10 s).
    pub interval: Duration,
    /// Ejection time, multiplied by the number of ejections (30 s).
    pub base_ejection_time: Duration,
    /// Maximum ejection time without jitter (300 s, or the base if that is longer).
    pub max_ejection_time: Duration,
    /// Random time added to an ejection time, up to this much (0 s).
    pub max_ejection_time_jitter: Duration,
    /// Share of a cluster's hosts that may be ejected, in percent (10).
    pub max_ejection_percent: u32,
    /// Whether one host may be ejected whatever `max_ejection_percent` says.
    pub always_eject_one_host: bool,
    /// A host that passes its active health check is unejected (true).
    pub successful_health_check_unejects: bool,
    /// Ejects hosts whose success rate is far below the others'.
    pub success_rate: SuccessRate,
    /// Ejects hosts that fail too often, regardless of the others.
    pub failure_percentage: FailurePercentage,
    /// The statuses that count as errors, ascending (`HttpProtocolOptions.outlier_detection.error_matcher`); `None`: 5xx.
    pub error_statuses: Option<Arc<[u16]>>,
}

impl OutlierDetection {
    /// Returns the status that a response counts as: as in Envoy, 500 if `error_statuses` contains it, and 200 otherwise.
    pub fn counted_status(&self, status: u16) -> u16 {
        match &self.error_statuses {
            None => status,
            Some(errors) if errors.binary_search(&status).is_ok() => 500,
            Some(_) => 200,
        }
    }
}

/// A number of consecutive failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Failures; 0: never reached.
    pub count: u32,
    /// Probability that a host at the threshold is ejected, in percent.
    pub enforcing_percent: u32,
}

/// Compares success rates within a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuccessRate {
    /// Minimum number of hosts with enough requests (5).
    pub minimum_hosts: u32,
    /// Minimum number of requests in an interval (100).
    pub request_volume: u64,
    /// Standard deviations below the mean, in thousandths (1900).
    pub stdev_factor_thousandths: u32,
    /// Probability that an outlier is ejected, in percent (100).
    pub enforcing_percent: u32,
    /// Percentage for local origin failures (100).
    pub enforcing_local_origin_percent: u32,
}

/// Compares failure percentages with a fixed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailurePercentage {
    /// Failure percentage from which a host is an outlier (85).
    pub threshold: u32,
    /// Minimum number of hosts with enough requests (5).
    pub minimum_hosts: u32,
    /// Minimum number of requests in an interval (50).
    pub request_volume: u64,
    /// Probability that an outlier is ejected, in percent (0).
    pub enforcing_percent: u32,
    /// Percentage for local origin failures (0).
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
            error_statuses: None,
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
