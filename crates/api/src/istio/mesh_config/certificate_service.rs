//! `ca`: a certificate service that signs in place of the control plane.

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_base::Spanned;

use crate::decode::Context;
use crate::istio::destination_rule::{ClientTlsMode, ClientTlsSettings};

object! {
    /// A certificate service (`istio.v1.auth.IstioCertificateService`).
    pub struct CertificateService {
        /// HOST:PORT of the server.
        address: Option<Spanned<String>> = "address",
        /// TLS to it; without, it is verified with the system's roots.
        tls_settings: Option<Spanned<ClientTlsSettings>> = "tlsSettings",
        /// Time limit of an answer; 10 s if not given.
        request_timeout: Option<Duration> = "requestTimeout",
        /// Whether the control plane asks it, not the agents; `true` if not given.
        istiod_side: Option<bool> = "istiodSide",
    }
}

/// TLS to a certificate service, as far as it is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignerTls<'a> {
    /// Path of the roots; the system's if there is none.
    pub roots: Option<&'a str>,
    /// Paths of the client's certificate and key.
    pub identity: Option<(&'a str, &'a str)>,
    /// Names, one of which the server's certificate must have; that of the address if there are none.
    pub names: &'a [String],
    /// The name sent to the server.
    pub sni: Option<&'a str>,
}

/// The error if it is used nevertheless.
const UNUSABLE: &str = "`ca` of the mesh's settings cannot be used; the finding about it says why";

/// Message and help.
type Problem = (String, &'static str);

impl CertificateService {
    /// Whether the control plane asks it.
    pub fn is_used(&self) -> bool {
        self.istiod_side.unwrap_or(true)
    }

    /// Returns a service that cannot be used, in place of a refused one.
    pub(crate) fn unusable() -> Self {
        Self { address: None, tls_settings: None, request_timeout: None, istiod_side: None }
    }

    /// The address.
    ///
    /// # Errors
    /// There is none that could be used.
    pub fn address(&self) -> Result<&str, String> {
        self.checked_address().map_err(|_| UNUSABLE.to_owned())
    }

    fn checked_address(&self) -> Result<&str, Problem> {
        let help = "write `address: HOST:PORT` of a server of istio.v1.auth.IstioCertificateService";
        let Some(address) = &self.address else { return Err(("`ca` has no `address`".to_owned(), help)) };
        if is_address(&address.value) {
            Ok(&address.value)
        } else {
            Err((format!("`{}` is not HOST:PORT", address.value), help))
        }
    }

    /// TLS; none where a server on this machine is asked in plain text.
    ///
    /// # Errors
    /// There is none that could be used.
    pub fn tls(&self) -> Result<Option<SignerTls<'_>>, String> {
        self.checked_tls().map_err(|_| UNUSABLE.to_owned())
    }

    fn checked_tls(&self) -> Result<Option<SignerTls<'_>>, Problem> {
        let none = SignerTls { roots: None, identity: None, names: &[], sni: None };
        let Some(tls) = &self.tls_settings else { return Ok(Some(none)) };
        let tls = &tls.value;
        let unsupported = [
            (
                tls.insecure_skip_verify,
                "insecureSkipVerify",
                "whoever answers would sign; name the roots in `caCertificates`",
            ),
            (
                tls.credential_name.is_some(),
                "credentialName",
                "name files in `clientCertificate`, `privateKey` and `caCertificates`",
            ),
            (tls.ca_crl.is_some(), "caCrl", "remove it; a short lifetime of the server's certificate does the same"),
        ];
        if let Some((_, field, help)) = unsupported.into_iter().find(|(given, ..)| *given) {
            return Err((format!("`{field}` is not supported for a certificate service"), help));
        }
        let identity = tls.client_certificate.as_deref().zip(tls.private_key.as_deref());
        let verified = SignerTls {
            roots: tls.ca_certificates.as_deref(),
            names: &tls.subject_alt_names,
            sni: tls.sni.as_deref(),
            ..none
        };
        match tls.mode.unwrap_or(ClientTlsMode::Disable) {
            ClientTlsMode::Simple => Ok(Some(verified)),
            ClientTlsMode::Mutual => Ok(Some(SignerTls { identity, ..verified })),
            ClientTlsMode::IstioMutual => {
                let message = "the control plane has no workload's certificate for ISTIO_MUTUAL".to_owned();
                Err((message, "use MUTUAL with `clientCertificate` and `privateKey`"))
            }
            ClientTlsMode::Disable if self.address().is_ok_and(is_local) => Ok(None),
            ClientTlsMode::Disable => {
                let message = "a certificate service on another machine is not asked in plain text".to_owned();
                Err((message, "use mode SIMPLE or MUTUAL, or a loopback address"))
            }
        }
    }
}

/// Whether a text is HOST:PORT, with an IPv6 address in brackets.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| address.parse::<IpAddr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Whether HOST:PORT is on this machine.
pub fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(super) fn check(service: Option<&Spanned<CertificateService>>, cx: &mut Context) {
    let Some(service) = service else { return };
    cx.at_field("ca", |cx| {
        if !service.value.is_used() {
            let message = "agents choose a certificate service themselves; `ca` is not used";
            let help = "give the agents `--ca-address HOST:PORT` (CA_ADDR), or remove `istiodSide: false`";
            cx.warning("unsupported-value", &service.span, message, help);
            return;
        }
        let span = |found: &Option<evenkeel_base::Span>| found.clone().unwrap_or_else(|| service.span.clone());
        if let Err((message, help)) = service.value.checked_address() {
            cx.error("bad-value", &span(&service.value.address.as_ref().map(|at| at.span.clone())), message, help);
        }
        if let Err((message, help)) = service.value.checked_tls() {
            let at = span(&service.value.tls_settings.as_ref().map(|at| at.span.clone()));
            cx.error("unsupported-value", &at, message, help);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let check = |text: &str, expected: bool, local: bool| {
            assert_eq!((is_address(text), is_local(text)), (expected, local), "{text}");
        };
        check("signer.pki.svc.cluster.local:8932", true, false);
        check("192.168.23.2:9000", true, false);
        check("127.0.0.1:9000", true, true);
        check("[::1]:9000", true, true);
        check("localhost:9000", true, true);
        check("localhost.example:9000", true, false);
        check("https://signer:1", false, false);
        check("signer", false, false);
        check(":1", false, false);
        check("signer:0", false, false);
        check("signer:70000", false, false);
        check("[signer]:1", false, false);
    }
}
