//! ProxyConfig: checks of settings that the agent of a proxy reads.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::runtime_key::{RUNTIME_KEYS, RuntimeKey};

use super::proxy_ports;
use crate::decode::Context;

/// Istio's ports of the admin interface and of the agent's page.
pub(super) const ADMIN_PORT: u16 = 15_000;
pub(crate) const STATUS_PORT: u16 = 15_020;
/// Begins a certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Why a proxy cannot have its admin interface, or its agent its page, on this port.
pub(crate) fn problem_of_port(port: u32, default: u16) -> Option<String> {
    match u16::try_from(port).ok().filter(|port| *port != 0) {
        None => Some(format!("{port} is no port")),
        Some(port) if port == default => None,
        Some(port) => {
            let what = proxy_ports::use_of(proxy_ports::OF_SIDECARS, port)?;
            Some(format!("the proxy itself uses port {port} for {what}"))
        }
    }
}

/// Whether a text can be the name of a label of statistics.
pub(crate) fn is_stat_tag(tag: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.chars().all(is_part) && tag.starts_with(|c: char| !c.is_ascii_digit())
}

/// Checks `extraStatTags`.
pub(super) fn check_stat_tags(tags: &[Spanned<String>], cx: &mut Context) {
    cx.at_field("extraStatTags", |cx| {
        for tag in tags.iter().filter(|tag| !is_stat_tag(tag.trim())) {
            let message = format!("`{}` cannot be the name of a label of statistics; it is left out", tag.value);
            cx.warning("bad-value", &tag.span, message, "letters, digits and underscores are allowed");
        }
    });
}

/// Checks `proxyAdminPort` and `statusPort`.
pub(super) fn check_ports(admin: Option<&Spanned<u32>>, status: Option<&Spanned<u32>>, cx: &mut Context) {
    for (name, port, default) in [("proxyAdminPort", admin, ADMIN_PORT), ("statusPort", status, STATUS_PORT)] {
        let Some(port) = port else { continue };
        if let Some(problem) = problem_of_port(port.value, default) {
            let message = format!("{problem}; it stays {default}");
            cx.at_field(name, |cx| cx.warning("port-conflict", &port.span, message, "choose another port"));
        }
    }
    if let (Some(admin), Some(status)) = (admin, status)
        && admin.value == status.value
    {
        let message = format!("`proxyAdminPort` is {}, too; `statusPort` stays {STATUS_PORT}", status.value);
        cx.at_field("statusPort", |cx| cx.warning("port-conflict", &status.span, message, "choose another port"));
    }
}

/// Checks `caCertificatesPem`.
pub(super) fn check_roots(roots: &[Spanned<String>], cx: &mut Context) {
    cx.at_field("caCertificatesPem", |cx| {
        for (index, pem) in roots.iter().enumerate().filter(|(_, pem)| !pem.contains(CERTIFICATE)) {
            let message = format!("there is no `{CERTIFICATE}`; the entry is not used");
            let help = "write the roots as text in PEM, after `- |`";
            cx.at_index(index, |cx| cx.warning("bad-value", &pem.span, message, help));
        }
    });
}

/// Checks `runtimeValues`.
pub(super) fn check_runtime_values(values: &BTreeMap<String, Spanned<String>>, cx: &mut Context) {
    cx.at_field("runtimeValues", |cx| {
        for (key, value) in values {
            if RuntimeKey::parse(key).is_none() {
                let message = "Evenkeel's proxy has no runtime key of this name; only an Envoy gets it";
                let help = format!("keys with an effect: {}", RUNTIME_KEYS.join(", "));
                cx.at_key(key, |cx| cx.note("no-effect", &value.span, message, help));
            } else if !value.value.is_empty() && value.parse::<u64>().is_err() {
                let message = format!("`{}` is not a whole number; the key is left out", value.value);
                cx.at_key(key, |cx| cx.warning("bad-value", &value.span, message, "write a number such as \"1000\""));
            }
        }
    });
}
