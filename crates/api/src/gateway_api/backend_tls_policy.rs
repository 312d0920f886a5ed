//! BackendTLSPolicy: TLS towards the backends of a Service.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::limits::{SectionName, at_most, check_hostname};
use super::reference::LocalReference;
use crate::decode::Context;

object! {
    /// How clients connect to a backend by TLS.
    pub struct BackendTlsPolicy {
        /// The specification.
        spec: BackendTlsPolicySpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a BackendTLSPolicy.
    pub struct BackendTlsPolicySpec {
        /// The backends, of the policy's own namespace.
        target_refs: Vec<Spanned<PolicyTarget>> = "targetRefs",
        /// How the backend is verified.
        validation: Spanned<BackendTlsValidation> = "validation",
        /// Settings of implementations.
        options: BTreeMap<String, Spanned<String>> = "options",
    }
    check: check_spec;
}

object! {
    /// An object that a policy applies to, or a section of it.
    pub struct PolicyTarget {
        /// Its group; empty: Kubernetes' core.
        group: String = "group",
        /// Its kind.
        kind: Spanned<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// The name of a port; all ports if not given.
        section_name: Option<Spanned<SectionName>> = "sectionName",
    }
}

object! {
    /// How a backend's certificate is verified.
    pub struct BackendTlsValidation {
        /// ConfigMaps with trusted roots under `ca.crt`.
        ca_certificate_refs: Vec<Spanned<LocalReference>> = "caCertificateRefs",
        /// Roots that are known by a name: `System`.
        well_known_ca_certificates: Option<Spanned<String>> = "wellKnownCACertificates",
        /// The server name that is sent; the certificate must have it, unless other names are given.
        hostname: Spanned<Hostname> = "hostname",
        /// Names, one of which the certificate must have.
        subject_alt_names: Vec<Spanned<SubjectAltName>> = "subjectAltNames",
    }
    check: check_validation;
}

object! {
    /// A name of a certificate.
    pub struct SubjectAltName {
        /// Its form.
        kind: SubjectAltNameType = "type",
        /// A DNS name, with `type: Hostname`.
        hostname: Option<Spanned<Hostname>> = "hostname",
        /// A URI, with `type: URI`.
        uri: Option<Spanned<String>> = "uri",
    }
    check: check_name;
}

choices! {
    /// The form of a certificate's name.
    pub enum SubjectAltNameType {
        /// A DNS name.
        Hostname = "Hostname",
        /// A URI.
        Uri = "URI",
    }
}

impl SubjectAltName {
    /// Its text.
    pub fn text(&self) -> &str {
        match self.kind {
            SubjectAltNameType::Hostname => self.hostname.as_ref().map_or("", |name| name.as_str()),
            SubjectAltNameType::Uri => self.uri.as_ref().map_or("", |name| name.as_str()),
        }
    }
}

fn check_spec(spec: &BackendTlsPolicySpec, node: &Node, cx: &mut Context) {
    at_most(16, spec.target_refs.len(), "targetRefs", &node.span, cx);
    at_most(16, spec.options.len(), "options", &node.span, cx);
    if spec.target_refs.is_empty() {
        let message = "a policy needs at least one target";
        cx.at_field("targetRefs", |cx| cx.error("missing-field", &node.span, message, "name a Service"));
    }
    let section = |target: &PolicyTarget| target.section_name.as_ref().map(|name| name.value.clone());
    let object = |target: &PolicyTarget| (target.group.clone(), target.kind.value.clone(), target.name.value.clone());
    for (at, target) in spec.target_refs.iter().enumerate() {
        let same = spec.target_refs.iter().take(at).find(|other| object(other) == object(target));
        let is_ambiguous = |other: &Spanned<PolicyTarget>| match (section(other), section(target)) {
            (Some(other), Some(own)) => other == own,
            _ => true,
        };
        if same.is_some_and(is_ambiguous) {
            let message = "this target is named twice";
            let help = "give each entry a `sectionName` of its own";
            cx.at_field("targetRefs", |cx| cx.at_index(at, |cx| cx.error("conflict", &target.span, message, help)));
        }
    }
}

fn check_validation(validation: &BackendTlsValidation, node: &Node, cx: &mut Context) {
    at_most(8, validation.ca_certificate_refs.len(), "caCertificateRefs", &node.span, cx);
    at_most(5, validation.subject_alt_names.len(), "subjectAltNames", &node.span, cx);
    cx.at_field("hostname", |cx| {
        check_hostname(&validation.hostname, cx);
        if validation.hostname.is_wildcard() {
            let message = "a wildcard is no server name";
            cx.error("bad-host", &validation.hostname.span, message, "write the name of the certificate");
        }
    });
    match (validation.ca_certificate_refs.is_empty(), &validation.well_known_ca_certificates) {
        (false, Some(known)) => {
            let message = "`caCertificateRefs` and `wellKnownCACertificates` exclude each other";
            cx.error("conflict", &known.span, message, "remove one of them");
        }
        (true, None) => {
            let message = "the trusted roots are missing";
            let help = "add `caCertificateRefs` or `wellKnownCACertificates: System`";
            cx.error("missing-field", &node.span, message, help);
        }
        _ => {}
    }
}

fn check_name(name: &SubjectAltName, node: &Node, cx: &mut Context) {
    let (field, other) = match name.kind {
        SubjectAltNameType::Hostname => ("hostname", name.uri.is_some()),
        SubjectAltNameType::Uri => ("uri", name.hostname.is_some()),
    };
    if name.text().is_empty() || other {
        let message = format!("a name of this type has `{field}`, and nothing else");
        cx.error("conflict", &node.span, message, format!("write `{field}`"));
    }
    if let Some(host) = &name.hostname {
        cx.at_field("hostname", |cx| check_hostname(host, cx));
    }
    if let Some(uri) = name.uri.as_ref().filter(|uri| !uri.contains(':') || uri.starts_with(':')) {
        let help = "e.g. `spiffe://cluster.local/ns/shop/sa/web`";
        cx.at_field("uri", |cx| cx.error("bad-value", &uri.span, "a URI has a scheme", help));
    }
}
