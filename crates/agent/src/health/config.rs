//! `readinessProbe` of ProxyConfig, as JSON.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

/// How the health of a workload is checked (Istio's `ReadinessProbe`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessProbe {
    initial_delay_seconds: u32,
    timeout_seconds: u32,
    period_seconds: u32,
    success_threshold: u32,
    failure_threshold: u32,
    pub(super) http_get: Option<HttpGet>,
    pub(super) tcp_socket: Option<TcpSocket>,
    pub(super) exec: Option<Exec>,
    pub(super) grpc: Option<Grpc>,
}

/// A GET, which must answer with 200 to 399.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HttpGet {
    #[serde(default)]
    pub path: String,
    pub port: u16,
    #[serde(default)]
    pub host: String,
    #[serde(default)]
    pub scheme: String,
    #[serde(default)]
    pub http_headers: Vec<Header>,
}

/// A header of the GET.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Header {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// A port, which must accept connections.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct TcpSocket {
    #[serde(default)]
    pub host: String,
    pub port: u16,
}

/// A command, which must end with status 0.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Exec {
    pub command: Vec<String>,
}

/// gRPC's health service, which must say SERVING.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Grpc {
    pub port: u16,
    #[serde(default)]
    pub service: String,
}

impl ReadinessProbe {
    /// The probe of a ProxyConfig, if it has one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(proxy_config: &Map<String, Value>) -> Result<Option<Self>, serde_json::Error> {
        match proxy_config.get("readinessProbe") {
            None | Some(Value::Null) => Ok(None),
            Some(probe) => Self::deserialize(probe).map(Some),
        }
    }

    /// The time before the first check.
    pub fn initial_delay(&self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.into())
    }

    /// How long a check may take; 1 s if not given. 0 stands for the default, here and below (Istio's `fillInDefaults`).
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(or(self.timeout_seconds, 1).into())
    }

    /// The time between two checks; 10 s if not given.
    pub fn period(&self) -> Duration {
        Duration::from_secs(or(self.period_seconds, 10).into())
    }

    /// Consecutive successes until the workload is healthy; 1 if not given.
    pub fn successes(&self) -> u32 {
        or(self.success_threshold, 1)
    }

    /// Consecutive failures until the workload is unhealthy; 1 if not given.
    pub fn failures(&self) -> u32 {
        or(self.failure_threshold, 1)
    }
}

fn or(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_istios_agent() {
        let check = |json: &str, expected: Option<(u64, u64, u64, u32, u32)>| {
            let config = serde_json::from_str(json).expect("an object");
            let read = ReadinessProbe::of(&config).ok().flatten();
            let seconds = |probe: ReadinessProbe| {
                let times = [probe.initial_delay(), probe.timeout(), probe.period()].map(|time| time.as_secs());
                (times[0], times[1], times[2], probe.successes(), probe.failures())
            };
            assert_eq!(read.map(seconds), expected, "{json}");
        };
        check("{}", None);
        check(r#"{"readinessProbe": {}}"#, Some((0, 1, 10, 1, 1)));
        let given = r#"{"initialDelaySeconds": 5, "timeoutSeconds": 2, "periodSeconds": 3, "successThreshold": 4, "failureThreshold": 6}"#;
        check(&format!(r#"{{"readinessProbe": {given}}}"#), Some((5, 2, 3, 4, 6)));
        check(r#"{"readinessProbe": {"httpGet": {"port": 70000}}}"#, None);
        check(r#"{"readinessProbe": {"periodSeconds": -1}}"#, None);
    }
}
