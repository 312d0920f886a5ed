//! Flags of `evenkeel control-plane`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_ca::{DEFAULT_TTL, MAX_TTL, MIN_TTL};

use crate::external_signer::SignerOptions;
use crate::jwks::settings::JwksSettings;
use crate::webhooks::InjectionOptions;

/// Reads the mesh's configuration, serves it to proxies over xDS, and issues their certificates.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Directory with the configuration (*.yaml, *.yml, *.json), read recursively and watched; may be repeated.
    #[arg(long = "config", value_name = "DIR", required_unless_present_any = ["kubernetes", "kubeconfig", "context"])]
    pub config: Vec<PathBuf>,

    /// Directory that keeps the root certificate, keys, virtual addresses and history over a restart.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,

    /// Trust domain of all identities, unless the mesh configuration sets one [default: cluster.local].
    #[arg(long, value_name = "DOMAIN")]
    pub trust_domain: Option<String>,

    /// Directory with the operator's certificate authority: ca-cert.pem, ca-key.pem, root-cert.pem and cert-chain.pem (Istio's
    /// `cacerts`), or tls.crt, tls.key and ca.crt. When the files change, the mesh changes to the new authority without an outage
    /// [default: $ROOT_CA_DIR, or an authority that the control plane makes].
    #[arg(long, value_name = "DIR")]
    pub ca_certs: Option<PathBuf>,

    /// Longest lifetime of a workload's certificate, in seconds; a request for a longer one gets this one [default:
    /// $MAX_WORKLOAD_CERT_TTL, or 24 hours].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..=7_776_000))]
    pub max_certificate_ttl_s: Option<u64>,

    /// Who signs instead, if somebody else does.
    #[command(flatten)]
    pub signer: SignerOptions,

    /// Address of plaintext xDS, for proxies on this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15010", value_parser = address)]
    pub grpc_address: SocketAddr,

    /// Address of xDS and the certificate service over TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:15012", value_parser = address)]
    pub secure_grpc_address: SocketAddr,

    /// Address of metrics, readiness and debug pages.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014", value_parser = address)]
    pub http_address: SocketAddr,

    /// Address of the admission webhooks over HTTPS, `/inject` and `/validate`; Istio's port is 15017 [default: there are none].
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub webhook_address: Option<SocketAddr>,

    /// What sidecars get that the webhook injects.
    #[command(flatten)]
    pub injection: InjectionOptions,

    /// Accept a `--grpc-address` that other machines can reach. Every client that reaches it can read the whole configuration.
    #[arg(long)]
    pub allow_plaintext_from_network: bool,

    /// Issue certificates only for Pods that are in the configuration with the service account that the token names.
    #[arg(long)]
    pub require_running_pod: bool,

    /// Leave out security objects that are refused or not supported, instead of refusing what they would have judged.
    /// Requests that they should deny then pass.
    #[arg(long)]
    pub leave_out_refused: bool,

    /// All workloads are on this machine, where nothing else enforces NetworkPolicies: refuse what they would have judged.
    /// `evenkeel up` sets it.
    #[arg(long, hide = true)]
    pub on_one_machine: bool,

    /// Keep what the process otherwise gives up when it starts: running programs, system calls that it never makes, and writing
    /// outside of its state directory.
    #[arg(long)]
    pub no_confinement: bool,

    /// Who fetches the keys of issuers, and how often; `None`: as the environment variables say.
    #[arg(skip)]
    pub jwks: Option<JwksSettings>,

    /// Additional DNS name or address in the TLS port's certificate; may be repeated.
    #[arg(long = "server-name", value_name = "NAME")]
    pub server_names: Vec<String>,
}

impl Options {
    /// Returns the directory of the operator's authority, from the flag or from Istio's environment variable.
    pub fn plugged_authority(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(ROOT_CA_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        self.ca_certs.clone().or_else(variable)
    }
}

/// The environment variable has an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {MAX_WORKLOAD_CERT_TTL}: `{0}` is no duration from 10s to 2160h, such as `48h`")]
pub struct CertificateTtlError(String);

/// Istio's environment variable for the longest lifetime of a workload's certificate.
const MAX_WORKLOAD_CERT_TTL: &str = "MAX_WORKLOAD_CERT_TTL";

/// Returns the longest lifetime of a workload's certificate. The default is shorter than Istio's 90 days: a rotation waits for
/// certificates that are in use, and a stolen one is of use for as long.
pub fn max_certificate_ttl(
    seconds: Option<u64>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Duration, CertificateTtlError> {
    match (seconds, lookup(MAX_WORKLOAD_CERT_TTL)) {
        (Some(seconds), _) => Ok(Duration::from_secs(seconds)),
        (None, None) => Ok(DEFAULT_TTL),
        (None, Some(text)) => {
            let found = evenkeel_base::duration::parse(&text).ok();
            found.filter(|ttl| (MIN_TTL..=MAX_TTL).contains(ttl)).ok_or(CertificateTtlError(text))
        }
    }
}

/// Istio's environment variable for the directory.
const ROOT_CA_DIR: &str = "ROOT_CA_DIR";

/// Parses `HOST:PORT` where the host is an IP address, or `:PORT` for all addresses.
fn address(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    full.parse().map_err(|_| format!("`{text}` is not ADDRESS:PORT or :PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lifetime_of_a_certificate_is_a_day_unless_the_operator_says_otherwise() {
        let check = |flag: Option<u64>, variable: Option<&str>, expected: Option<u64>| {
            let found = max_certificate_ttl(flag, |_| variable.map(str::to_owned));
            assert_eq!(found.ok().map(|ttl| ttl.as_secs()), expected, "{flag:?}, {variable:?}");
        };
        check(None, None, Some(24 * 3600));
        check(Some(60), Some("48h"), Some(60));
        check(None, Some("48h"), Some(48 * 3600));
        check(None, Some("2160h"), Some(90 * 24 * 3600));
        for wrong in ["2161h", "1s", "-1h", "", "soon"] {
            check(None, Some(wrong), None);
        }
    }

    #[test]
    fn reads_addresses() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(address(text).ok().map(|a| a.to_string()).as_deref(), expected, "{text}");
        };
        check("127.0.0.1:15010", Some("127.0.0.1:15010"));
        check(":15012", Some("0.0.0.0:15012"));
        check("[::1]:1", Some("[::1]:1"));
        check("localhost:1", None);
        check("15010", None);
    }
}
