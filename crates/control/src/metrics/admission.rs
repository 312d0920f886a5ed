//! What the admission webhooks count, under Istio's names.

use std::time::Duration;

use evenkeel_stats::{Families, FamiliesOptions, Registry, Reported, ScopeName, SharedWriter, layout};
use http::StatusCode;
use serde_json::Value;

/// Upper bounds of the time that an injection takes, in seconds: Istio's, with finer ones below the first.
const INJECTION_BOUNDS: [f64; 7] = [0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 5.0];
/// Maximum number of series per metric of validation: their labels come from the API server.
const MAX_RESOURCES: usize = 500;
/// Istio's reason for objects with errors.
const INVALID: &str = "invalid_resource";

layout! {
    /// `sidecar_injection_`
    pub mod injection {
        counters {
            /// Reviews of Pods.
            requests_total,
            /// Pods that got a sidecar.
            success_total,
            /// Pods that were refused, and reviews that could not be read.
            failure_total,
            /// Pods that need no sidecar.
            skip_total,
        }
        gauges {}
        histograms {
            /// Seconds for the answer to a review of a Pod.
            time_seconds in super::INJECTION_BOUNDS,
        }
        statuses None
    }
}

layout! {
    /// By the type of objects.
    pub mod passed {
        counters {
            /// Objects without errors.
            galley_validation_passed,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// By the type of objects, and the reason.
    pub mod failed {
        counters {
            /// Objects that were refused.
            galley_validation_failed,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// By the status of the answer.
    pub mod http_errors {
        counters {
            /// Requests for validation that were no review.
            galley_validation_http_error,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// The metrics of both webhooks.
#[derive(Debug)]
pub struct Admission {
    injection: SharedWriter<injection::Stats>,
    passed: Families<passed::Stats>,
    failed: Families<failed::Stats>,
    http_errors: Families<http_errors::Stats>,
}

impl Admission {
    /// Creates the metrics in a registry.
    pub fn new(registry: &Registry) -> Self {
        let scope = registry.scope(ScopeName::labelled("sidecar_injection_", Vec::new()));
        Self {
            injection: SharedWriter::of(scope.writer()),
            passed: registry.families(options("galley_validation_passed", &["group", "version", "resource"])),
            failed: registry.families(options("galley_validation_failed", &["group", "version", "resource", "reason"])),
            http_errors: registry.families(options("galley_validation_http_error", &["status"])),
        }
    }

    /// Counts the answer to the review of a Pod, which took so long.
    pub fn injected(&self, answer: &Value, took: Duration) {
        let response = &answer["response"];
        self.injection.inc(injection::Counter::requests_total);
        self.injection.inc(match (response["allowed"] == true, response["patch"].is_string()) {
            (false, _) => injection::Counter::failure_total,
            (true, true) => injection::Counter::success_total,
            (true, false) => injection::Counter::skip_total,
        });
        self.injection.record(injection::Histogram::time_seconds, took.as_secs_f64(), 1);
    }

    /// Counts the answer to the review of an object of the configuration.
    pub fn judged(&self, review: &Value, answer: &Value) {
        let resource = &review["request"]["resource"];
        let [group, version, name] = ["group", "version", "resource"].map(|part| resource[part].as_str().unwrap_or(""));
        if answer["response"]["allowed"] == true {
            let series = self.passed.shared(&[group, version, name]);
            series.inc(passed::Counter::galley_validation_passed);
        } else {
            let series = self.failed.shared(&[group, version, name, INVALID]);
            series.inc(failed::Counter::galley_validation_failed);
        }
    }

    /// Counts a request for injection that is no review.
    pub fn not_injected(&self) {
        self.injection.inc(injection::Counter::requests_total);
        self.injection.inc(injection::Counter::failure_total);
    }

    /// Counts a request for validation that is no review.
    pub fn not_judged(&self, status: StatusCode) {
        let series = self.http_errors.shared(&[status.as_str()]);
        series.inc(http_errors::Counter::galley_validation_http_error);
    }
}

fn options(name: &'static str, labels: &'static [&'static str]) -> FamiliesOptions {
    FamiliesOptions {
        name,
        prefix: "",
        labels,
        max_series: MAX_RESOURCES,
        expire_after: None,
        reported: Reported::Everywhere,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_stats::Exposition;
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_under_istios_names() {
        let registry = Registry::new();
        let admission = Admission::new(&registry);
        let review =
            json!({"request": {"resource": {"group": "networking.istio.io", "version": "v1", "resource": "gateways"}}});
        let allowed = json!({"response": {"allowed": true}});
        let patched = json!({"response": {"allowed": true, "patch": "W10="}});
        let refused = json!({"response": {"allowed": false}});
        for answer in [&patched, &patched, &patched, &allowed, &allowed, &refused] {
            admission.injected(answer, Duration::from_millis(7));
        }
        admission.not_injected();
        for answer in [&allowed, &allowed, &refused] {
            admission.judged(&review, answer);
        }
        admission.judged(&json!({}), &refused);
        admission.not_judged(StatusCode::BAD_REQUEST);
        let text = registry.exposition(Exposition::Prometheus, None);
        let of = "group=\"networking.istio.io\",version=\"v1\",resource=\"gateways\"";
        for expected in [
            "sidecar_injection_requests_total 7\n".to_owned(),
            "sidecar_injection_success_total 3\n".to_owned(),
            "sidecar_injection_skip_total 2\n".to_owned(),
            "sidecar_injection_failure_total 2\n".to_owned(),
            "sidecar_injection_time_seconds_bucket{le=\"0.001\"} 0\n".to_owned(),
            "sidecar_injection_time_seconds_bucket{le=\"0.01\"} 6\n".to_owned(),
            format!("galley_validation_passed{{{of}}} 2\n"),
            format!("galley_validation_failed{{{of},reason=\"invalid_resource\"}} 1\n"),
            "galley_validation_failed{group=\"\",version=\"\",resource=\"\",reason=\"invalid_resource\"} 1\n"
                .to_owned(),
            "galley_validation_http_error{status=\"400\"} 1\n".to_owned(),
        ] {
            assert!(text.contains(&expected), "{expected} not in\n{text}");
        }
    }
}
