//! ProxyConfig: the services that proxies send spans, access logs and statistics to: their addresses, and TLS to them.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;
use serde_json::{Value, json};

use super::destination_rule::{ClientTlsMode, ClientTlsSettings, TcpKeepalive};
use super::mesh_config::is_address;
use crate::decode::Context;

object! {
    /// A service that proxies send to over gRPC.
    pub struct RemoteService {
        /// HOST:PORT of it.
        address: Option<Spanned<String>> = "address",
        /// TLS to it.
        tls_settings: Option<Spanned<ClientTlsSettings>> = "tlsSettings",
        /// Probes of the connection when it is idle.
        tcp_keepalive: Option<TcpKeepalive> = "tcpKeepalive",
    }
    check: check_service;
}

impl RemoteService {
    /// Returns ProxyConfig's JSON; `None` without a usable address.
    pub(super) fn to_json(&self) -> Option<Value> {
        let mut json = json!({ "address": usable(self.address.as_ref())? });
        if let Some(tls) = &self.tls_settings {
            json["tlsSettings"] = tls_json(&tls.value);
        }
        if let Some(probes) = &self.tcp_keepalive {
            let seconds = |time: Option<Duration>| time.map(|time| format!("{}s", time.as_secs_f64()));
            json["tcpKeepalive"] =
                json!({ "probes": probes.probes, "time": seconds(probes.time), "interval": seconds(probes.interval) });
        }
        Some(json)
    }
}

/// Returns the settings of TLS as ProxyConfig's JSON.
pub(super) fn tls_json(tls: &ClientTlsSettings) -> Value {
    json!({
        "mode": tls.mode.unwrap_or(ClientTlsMode::Disable).as_str(),
        "clientCertificate": tls.client_certificate,
        "privateKey": tls.private_key,
        "caCertificates": tls.ca_certificates,
        "caCrl": tls.ca_crl,
        "subjectAltNames": tls.subject_alt_names,
        "sni": tls.sni,
        "insecureSkipVerify": tls.insecure_skip_verify,
    })
}

/// An address that is HOST:PORT; the check names others.
pub(super) fn usable(address: Option<&Spanned<String>>) -> Option<&str> {
    address.map(|address| address.value.as_str()).filter(|address| is_address(address))
}

/// Whether HOST:PORT has an IP address as its host.
pub(super) fn is_ip_address(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok()
}

const ADDRESS_HELP: &str = "write HOST:PORT, e.g. zipkin.istio-system:9411";

/// Reports an address that is not HOST:PORT: nothing is sent there.
pub(super) fn check_address(name: &str, address: Option<&Spanned<String>>, cx: &mut Context) {
    let Some(address) = address.filter(|address| !address.value.is_empty() && !is_address(&address.value)) else {
        return;
    };
    let message = format!("`{}` is not HOST:PORT; nothing is sent there", address.value);
    cx.at_field(name, |cx| cx.warning("bad-value", &address.span, message, ADDRESS_HELP));
}

/// Reports an address of a StatsD server that has no IP address.
pub(super) fn check_statsd_address(address: Option<&Spanned<String>>, cx: &mut Context) {
    if let Some(address) = address.filter(|address| is_address(&address.value))
        && !is_ip_address(&address.value)
    {
        let message = format!("`{}` is not ADDRESS:PORT; nothing is sent there", address.value);
        let help = "write an IP address: proxies do not look up names of StatsD servers";
        cx.at_field("statsdUdpAddress", |cx| cx.warning("bad-value", &address.span, message, help));
    }
}

/// Names what of TLS an agent cannot do.
pub(super) fn check_tls(tls: Option<&Spanned<ClientTlsSettings>>, cx: &mut Context) {
    let Some(credential) = tls.and_then(|tls| tls.value.credential_name.as_ref()) else { return };
    let message =
        "agents have no Secrets; the server's certificate is verified with the files, or with the system's roots";
    let help = "name files in `clientCertificate`, `privateKey` and `caCertificates`";
    cx.at_field("tlsSettings", |cx| {
        cx.at_field("credentialName", |cx| cx.warning("unsupported-value", &credential.span, message, help));
    });
}

fn check_service(service: &RemoteService, _: &Node, cx: &mut Context) {
    check_address("address", service.address.as_ref(), cx);
    check_tls(service.tls_settings.as_ref(), cx);
}
