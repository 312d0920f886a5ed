//! TLS of a Gateway as a whole: how its clients are verified, and which certificate it shows to backends.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::limits::at_most;
use super::reference::SecretRef;
use crate::decode::{Context, Label, Port};

object! {
    /// TLS of a Gateway as a whole.
    pub struct GatewayTls {
        /// Towards backends.
        backend: Option<GatewayBackendTls> = "backend",
        /// Towards clients.
        frontend: Option<Spanned<FrontendTls>> = "frontend",
    }
}

object! {
    /// TLS of a Gateway towards backends, which a BackendTLSPolicy asks for.
    pub struct GatewayBackendTls {
        /// The certificate that the Gateway shows.
        client_certificate_ref: Option<Spanned<SecretRef>> = "clientCertificateRef",
    }
}

object! {
    /// TLS of a Gateway towards clients.
    pub struct FrontendTls {
        /// For all ports that have no settings of their own.
        default: FrontendTlsConfig = "default",
        /// For single ports, instead.
        per_port: Vec<Spanned<PortTls>> = "perPort",
    }
    check: check_frontend;
}

object! {
    /// TLS of one port.
    pub struct PortTls {
        /// The port.
        port: Spanned<Port> = "port",
        /// Its settings.
        tls: FrontendTlsConfig = "tls",
    }
}

object! {
    /// TLS towards clients.
    pub struct FrontendTlsConfig {
        /// How clients are verified; they show no certificate if not given.
        validation: Option<Spanned<FrontendValidation>> = "validation",
    }
}

object! {
    /// How clients are verified.
    pub struct FrontendValidation {
        /// ConfigMaps with the trusted roots under `ca.crt`.
        ca_certificate_refs: Vec<Spanned<ObjectReference>> = "caCertificateRefs",
        /// Whom to let in; `AllowValidOnly` if not given.
        mode: Option<Spanned<FrontendValidationMode>> = "mode",
    }
    check: check_validation;
}

choices! {
    /// Whom to let in.
    pub enum FrontendValidationMode {
        /// Clients with a valid certificate.
        AllowValidOnly = "AllowValidOnly",
        /// Clients without one, too.
        AllowInsecureFallback = "AllowInsecureFallback",
    }
}

object! {
    /// An object, maybe of another namespace.
    pub struct ObjectReference {
        /// Its group; empty: Kubernetes' core.
        group: String = "group",
        /// Its kind.
        kind: String = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; that of the object that names it if not given.
        namespace: Option<Label> = "namespace",
    }
}

impl GatewayTls {
    /// How clients of a port are verified.
    pub fn validation(&self, port: u16) -> Option<&Spanned<FrontendValidation>> {
        let frontend = self.frontend.as_ref()?;
        let own = frontend.per_port.iter().find(|of| of.port.0 == port).map(|of| &of.tls);
        own.unwrap_or(&frontend.default).validation.as_ref()
    }
}

fn check_frontend(frontend: &FrontendTls, node: &Node, cx: &mut Context) {
    at_most(64, frontend.per_port.len(), "perPort", &node.span, cx);
    for (at, of) in frontend.per_port.iter().enumerate() {
        if frontend.per_port.iter().take(at).any(|other| other.port.value == of.port.value) {
            let message = "this port has settings already";
            cx.at_field("perPort", |cx| cx.at_index(at, |cx| cx.error("conflict", &of.span, message, "remove one")));
        }
    }
}

fn check_validation(validation: &FrontendValidation, node: &Node, cx: &mut Context) {
    at_most(16, validation.ca_certificate_refs.len(), "caCertificateRefs", &node.span, cx);
    if validation.ca_certificate_refs.is_empty() {
        let message = "the trusted roots are missing";
        let help = "add `caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]`";
        cx.error("missing-field", &node.span, message, help);
    }
}
