//! Ingress and IngressClass: routes from outside to Services.

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Label, Port};

object! {
    /// Routes from outside to Services.
    pub struct Ingress {
        /// The specification.
        spec: IngressSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of an Ingress.
    pub struct IngressSpec {
        /// Its class; the Ingress belongs to that class's controller.
        ingress_class_name: Option<Spanned<String>> = "ingressClassName",
        /// The backend of requests that no rule matches.
        default_backend: Option<Spanned<IngressBackend>> = "defaultBackend",
        /// Hosts that are served with TLS.
        tls: Vec<Spanned<IngressTls>> = "tls",
        /// The routes, by host.
        rules: Vec<Spanned<IngressRule>> = "rules",
    }
}

object! {
    /// Hosts that are served with TLS.
    pub struct IngressTls {
        /// The hosts; all if not given.
        hosts: Vec<Spanned<String>> = "hosts",
        /// The Secret with the certificate.
        secret_name: Option<Spanned<String>> = "secretName",
    }
}

object! {
    /// The routes of a host.
    pub struct IngressRule {
        /// The host, perhaps a wildcard; all if not given.
        host: Option<Spanned<String>> = "host",
        /// Its routes.
        http: Option<IngressHttp> = "http",
    }
    check: check_rule;
}

object! {
    /// Routes by path.
    pub struct IngressHttp {
        /// The paths.
        paths: Vec<Spanned<IngressPath>> = "paths",
    }
}

object! {
    /// A path and where it leads.
    pub struct IngressPath {
        /// The path; all if not given.
        path: Option<Spanned<String>> = "path",
        /// How it is matched.
        path_type: Option<PathType> = "pathType",
        /// Its backend.
        backend: Spanned<IngressBackend> = "backend",
    }
    check: check_path;
}

choices! {
    /// How a path is matched.
    pub enum PathType {
        /// It is the same.
        Exact = "Exact",
        /// It begins with these parts between slashes.
        Prefix = "Prefix",
        /// As Istio does without a type: the same, or a prefix if it ends in `/*` or `.*`.
        ImplementationSpecific = "ImplementationSpecific",
    }
}

object! {
    /// A backend of requests.
    pub struct IngressBackend {
        /// A Service.
        service: Option<IngressService> = "service",
    }
    later: ["resource"];
}

object! {
    /// A port of a Service.
    pub struct IngressService {
        /// The Service's name.
        name: Spanned<String> = "name",
        /// Its port.
        port: Option<IngressPort> = "port",
    }
}

object! {
    /// A port by its number or its name.
    pub struct IngressPort {
        /// The number.
        number: Option<Port> = "number",
        /// The name.
        name: Option<Label> = "name",
    }
}

object! {
    /// A class of Ingresses.
    pub struct IngressClass {
        /// The specification.
        spec: IngressClassSpec = "spec",
    }
}

object! {
    /// The specification of an IngressClass.
    pub struct IngressClassSpec {
        /// The controller of Ingresses of this class; Istio's is `istio.io/ingress-controller`.
        controller: Option<String> = "controller",
    }
    inert: ["parameters"];
}

/// The host of a rule, or of an entry of `tls`; `*` if none is given.
pub fn ingress_host(written: Option<&str>) -> Option<Hostname> {
    Hostname::parse(written.filter(|host| !host.is_empty()).unwrap_or("*")).ok()
}

fn check_rule(rule: &IngressRule, node: &Node, cx: &mut Context) {
    if let Some(host) = rule.host.as_ref().filter(|host| ingress_host(Some(host)).is_none()) {
        let message = format!("`{}` is not a host name", host.value);
        cx.at_field("host", |cx| {
            cx.error("bad-host", &host.span, message, "expected `a.example.com` or `*.example.com`")
        });
    }
    if rule.http.is_none() {
        let message = "a rule without `http` routes nothing";
        cx.warning("no-effect", &node.span, message, "add `http: {paths: [...]}`, or remove the rule");
    }
}

fn check_path(path: &IngressPath, _: &Node, cx: &mut Context) {
    let is_checked = matches!(path.path_type, Some(PathType::Exact | PathType::Prefix));
    if let Some(written) = path.path.as_ref().filter(|path| is_checked && !path.starts_with('/')) {
        let message = format!("the path `{}` does not begin with a slash", written.value);
        cx.at_field("path", |cx| cx.error("bad-value", &written.span, message, "begin it with `/`"));
    }
    if path.backend.service.is_none() {
        let help = "add `service: {name: web, port: {number: 80}}`";
        cx.at_field("backend", |cx| cx.error("missing-field", &path.backend.span, "a backend needs a `service`", help));
    }
}
