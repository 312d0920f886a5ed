//! Listeners: the ports and hosts that a Gateway serves.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::limits::{SectionName, check_hostname};
use super::reference::SecretRef;
use crate::decode::{Context, Port};
use crate::istio::NamespaceSelector;

object! {
    /// A port with the hosts that it serves.
    pub struct Listener {
        /// Its name, which routes may refer to.
        name: Spanned<SectionName> = "name",
        /// The host; all if not given.
        hostname: Option<Spanned<Hostname>> = "hostname",
        /// The port.
        port: Spanned<Port> = "port",
        /// `HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP`, or an implementation's own.
        protocol: Spanned<String> = "protocol",
        /// TLS.
        tls: Option<Spanned<ListenerTls>> = "tls",
        /// Which routes may attach.
        allowed_routes: Option<AllowedRoutes> = "allowedRoutes",
    }
    check: check_listener;
}

object! {
    /// TLS of a listener.
    pub struct ListenerTls {
        /// Whether TLS ends here; `Terminate` if not given.
        mode: Option<ListenerTlsMode> = "mode",
        /// The certificates.
        certificate_refs: Vec<Spanned<SecretRef>> = "certificateRefs",
        /// Settings of implementations; Istio's `gateway.istio.io/tls-terminate-mode`.
        options: BTreeMap<String, Spanned<String>> = "options",
    }
    refused: ["frontendValidation"];
    check: check_tls;
}

choices! {
    /// Where TLS ends.
    pub enum ListenerTlsMode {
        /// At the gateway.
        Terminate = "Terminate",
        /// At the backend.
        Passthrough = "Passthrough",
    }
}

object! {
    /// The routes that may attach to a listener.
    pub struct AllowedRoutes {
        /// Their namespaces.
        namespaces: Option<RouteNamespaces> = "namespaces",
        /// Their kinds; those of the protocol if not given.
        kinds: Vec<Spanned<AllowedKind>> = "kinds",
    }
}

object! {
    /// Namespaces of routes.
    pub struct RouteNamespaces {
        /// Which; `Same` if not given.
        from: Option<FromNamespaces> = "from",
        /// Their labels, with `Selector`.
        selector: Option<NamespaceSelector> = "selector",
    }
    check: check_namespaces;
}

choices! {
    /// Which namespaces.
    pub enum FromNamespaces {
        /// All.
        All = "All",
        /// Those whose labels match.
        Selector = "Selector",
        /// The Gateway's own.
        Same = "Same",
    }
    later: ["None"];
}

object! {
    /// A kind of routes.
    pub struct AllowedKind {
        /// Its group; the Gateway API's if not given.
        group: Option<String> = "group",
        /// The kind.
        kind: String = "kind",
    }
}

fn check_namespaces(namespaces: &RouteNamespaces, node: &Node, cx: &mut Context) {
    if namespaces.from == Some(FromNamespaces::Selector) && namespaces.selector.is_none() {
        let message = "`from: Selector` without a selector selects no namespace";
        cx.warning("no-effect", &node.span, message, "add `selector: {matchLabels: {...}}`");
    }
}

fn check_listener(listener: &Listener, _: &Node, cx: &mut Context) {
    if let Some(host) = &listener.hostname {
        cx.at_field("hostname", |cx| check_hostname(host, cx));
    }
    let protocol = listener.protocol.as_str();
    let is_plain = matches!(protocol, "HTTP" | "TCP" | "UDP");
    let mode = listener.tls.as_ref().and_then(|tls| tls.mode);
    match (protocol, &listener.tls) {
        (_, Some(tls)) if is_plain => {
            let message = format!("a listener of the protocol {protocol} has no `tls`");
            cx.at_field("tls", |cx| cx.error("conflict", &tls.span, message, "use the protocol HTTPS or TLS"));
        }
        ("HTTPS", Some(tls)) if mode == Some(ListenerTlsMode::Passthrough) => {
            let message = "the protocol HTTPS ends TLS at the gateway";
            let help = "use the protocol TLS for `mode: Passthrough`";
            cx.at_field("tls", |cx| cx.error("conflict", &tls.span, message, help));
        }
        ("TLS", _) if mode.is_none() => {
            let message = "the protocol TLS needs `tls: {mode: ...}`";
            let help = "write `mode: Terminate` or `mode: Passthrough`";
            cx.error("missing-field", &listener.protocol.span, message, help);
        }
        _ => {}
    }
    if let Some(host) = listener.hostname.as_ref().filter(|_| matches!(protocol, "TCP" | "UDP")) {
        let message = format!("a listener of the protocol {protocol} has no `hostname`");
        cx.at_field("hostname", |cx| cx.error("conflict", &host.span, message, "remove it"));
    }
}

fn check_tls(tls: &ListenerTls, node: &Node, cx: &mut Context) {
    let has_nothing = tls.certificate_refs.is_empty() && tls.options.is_empty();
    if tls.mode == Some(ListenerTlsMode::Terminate) && has_nothing {
        let message = "`mode: Terminate` needs `certificateRefs` or `options`";
        cx.error("missing-field", &node.span, message, "add `certificateRefs: [{name: SECRET}]`");
    }
}

/// Checks the listeners of a Gateway together.
pub(super) fn check_listeners(listeners: &[Spanned<Listener>], node: &Node, cx: &mut Context) {
    super::limits::at_most(64, listeners.len(), "listeners", &node.span, cx);
    if listeners.is_empty() {
        let message = "at least one listener is required";
        cx.at_field("listeners", |cx| cx.error("missing-field", &node.span, message, "add a listener"));
    }
    for (at, listener) in listeners.iter().enumerate() {
        let earlier = || listeners.iter().take(at);
        let key = |listener: &Listener| {
            let host = listener.hostname.as_ref().map(|host| host.value.clone());
            (listener.port.value, listener.protocol.value.clone(), host)
        };
        if earlier().any(|other| other.name.value == listener.name.value) {
            let message = format!("another listener has the name `{}`", listener.name.0);
            let span = &listener.name.span;
            cx.at_field("listeners", |cx| {
                cx.at_index(at, |cx| cx.error("conflict", span, message, "rename one of them"))
            });
        } else if earlier().any(|other| key(other) == key(listener)) {
            let message = "another listener has this port, protocol and hostname";
            let span = &listener.span;
            cx.at_field("listeners", |cx| {
                cx.at_index(at, |cx| cx.error("conflict", span, message, "change one of them"))
            });
        }
    }
}
