//! Settings of fetching keys, from environment variables: who fetches, and how often.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::duration::DurationError;
use evenkeel_model::JwksFetching;
use ipnet::IpNet;

use super::client::BLOCKED_VARIABLE;

/// Istio's variable for who fetches keys.
const BY: &str = "PILOT_JWT_ENABLE_REMOTE_JWKS";
/// Istio's variable for the refresh interval.
const REFRESH: &str = "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL";
/// The default refresh interval (Istio's).
const DEFAULT_REFRESH: Duration = Duration::from_secs(20 * 60);
/// The minimum refresh interval: every mesh that uses an issuer fetches its keys.
const MIN_REFRESH: Duration = Duration::from_secs(1);

/// Who fetches keys, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JwksSettings {
    /// Who fetches (`PILOT_JWT_ENABLE_REMOTE_JWKS`).
    pub by: JwksFetching,
    /// The refresh interval of the control plane (`PILOT_JWT_PUB_KEY_REFRESH_INTERVAL`).
    pub refresh: Duration,
}

impl Default for JwksSettings {
    fn default() -> Self {
        Self { by: JwksFetching::ControlPlane, refresh: DEFAULT_REFRESH }
    }
}

/// The addresses of metadata services of clouds, which answer anyone on the machine with the machine's credentials: nothing is
/// fetched from link-local addresses, unless the variable is set.
const BLOCKED: &str = "169.254.0.0/16,fe80::/10";

/// Returns the ranges of addresses from which nothing is fetched (`BLOCKED_CIDRS_IN_JWKS_URIS`, separated by commas).
pub(crate) fn blocked(lookup: impl Fn(&str) -> Option<String>) -> Result<Arc<[IpNet]>, JwksSettingsError> {
    let text = lookup(BLOCKED_VARIABLE).unwrap_or_else(|| BLOCKED.to_owned());
    let ranges = text.split(',').map(str::trim).filter(|range| !range.is_empty());
    let range = |range: &str| {
        let single = || range.parse().map(|address: IpAddr| IpNet::from(address));
        range.parse().or_else(|_| single()).map_err(|_| JwksSettingsError::Blocked(range.to_owned()))
    };
    ranges.map(range).collect()
}

/// An environment variable with an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwksSettingsError {
    /// Not one of Istio's values.
    #[error(
        "environment variable {BY}: `{0}` is none of `false` or `istiod` (the control plane fetches keys), `hybrid` or `true` (proxies fetch those of hosts in the mesh), and `envoy` (proxies fetch)"
    )]
    By(String),
    /// Not a duration.
    #[error("environment variable {REFRESH}: {0}")]
    Refresh(DurationError),
    /// Not a range of addresses.
    #[error("environment variable {BLOCKED_VARIABLE}: `{0}` is no range of addresses, such as `10.0.0.0/8`")]
    Blocked(String),
    /// Too short.
    #[error("environment variable {REFRESH}: `{0}` is shorter than 1s")]
    TooShort(String),
}

impl JwksSettings {
    /// Reads the variables through `lookup`; variables that are not set keep their defaults.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, JwksSettingsError> {
        let default = Self::default();
        let by = match lookup(BY) {
            None => default.by,
            Some(word) => match word.to_ascii_lowercase().as_str() {
                "" | "false" | "istiod" => JwksFetching::ControlPlane,
                "true" | "hybrid" => JwksFetching::Hybrid,
                "envoy" => JwksFetching::Proxies,
                _ => return Err(JwksSettingsError::By(word)),
            },
        };
        let refresh = match lookup(REFRESH) {
            None => default.refresh,
            Some(text) => match evenkeel_base::duration::parse(&text).map_err(JwksSettingsError::Refresh)? {
                time if time < MIN_REFRESH => return Err(JwksSettingsError::TooShort(text)),
                time => time,
            },
        };
        Ok(Self { by, refresh })
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn the_environment_is_read_as_istio_reads_it() {
        let read = |name: &str, value: &str| {
            let settings = JwksSettings::from_env(|asked| (asked == name).then(|| value.to_owned()));
            settings.map(|settings| (settings.by, settings.refresh)).map_err(|error| error.to_string())
        };
        for (word, by) in [
            ("", JwksFetching::ControlPlane),
            ("false", JwksFetching::ControlPlane),
            ("istiod", JwksFetching::ControlPlane),
            ("true", JwksFetching::Hybrid),
            ("hybrid", JwksFetching::Hybrid),
            ("Hybrid", JwksFetching::Hybrid),
            ("envoy", JwksFetching::Proxies),
        ] {
            assert_eq!(read(BY, word), Ok((by, DEFAULT_REFRESH)), "{word}");
        }
        for (name, value, expected) in [
            (BY, "yes", "PILOT_JWT_ENABLE_REMOTE_JWKS: `yes` is none of"),
            (REFRESH, "soon", "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL: `soon`"),
            (REFRESH, "1ms", "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL: `1ms` is shorter than 1s"),
        ] {
            let error = read(name, value).expect_err(value);
            assert!(error.contains(expected), "{error}");
        }
        let ranges = |value: Option<&str>| {
            let found = blocked(|_| value.map(str::to_owned)).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.iter().map(IpNet::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(ranges(None), Ok(BLOCKED.to_owned()));
        assert_eq!(ranges(Some("")), Ok(String::new()));
        assert_eq!(ranges(Some("10.0.0.0/8, 127.0.0.1 ,::1/128")), Ok("10.0.0.0/8,127.0.0.1/32,::1/128".to_owned()));
        assert!(ranges(Some("inside")).is_err_and(|error| error.contains("`inside` is no range")));
        assert_eq!(read(REFRESH, "1m"), Ok((JwksFetching::ControlPlane, Duration::from_secs(60))));
        assert_eq!(read("OTHER", "1m"), Ok((JwksFetching::ControlPlane, DEFAULT_REFRESH)));
    }
}
