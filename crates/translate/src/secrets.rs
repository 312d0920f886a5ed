//! SDS secrets of gateways and of clients that originate TLS: certificates and roots from Secrets of Kubernetes.
//!
//! A proxy gets only what it may have: Secrets of its own namespace, and only if its certificate has proved that it
//! belongs there (`pilot/pkg/xds/sds.go`). Each Secret is a unit of its own, so a changed one is one changed resource.

use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_model::gateway::SecretUse;
use evenkeel_model::{KeyPair, ROOTS_SUFFIX, Roots};
use evenkeel_xds::ResourceType;

use crate::context::Context;
use crate::pb::{core, tls};
use crate::plan::{Collection, Output, Part};

/// What the names of these secrets begin with, as in Istio.
const SCHEME: &str = "kubernetes://";

/// The resource with the certificate and key of a Secret.
pub fn certificate_name(secret: &str) -> String {
    format!("{SCHEME}{secret}")
}

/// The resource with the roots for peers that belong to a Secret.
pub fn roots_name(secret: &str) -> String {
    format!("{SCHEME}{secret}{ROOTS_SUFFIX}")
}

/// The secrets that a gateway's servers name.
pub fn of_gateways(context: Context<'_>, out: &mut Output) {
    for gateway in context.snapshot.gateways_for(&context) {
        for used in gateway.servers.iter().filter_map(|server| server.tls.as_ref()).flat_map(|tls| tls.secrets()) {
            let (name, span) = match used {
                SecretUse::Certificate(secret) => (certificate_name(secret), &secret.span),
                SecretUse::Roots(secret) => (roots_name(secret), &secret.span),
            };
            want(name, span, out);
        }
    }
}

/// Has a secret made for the proxy, if it may have it.
pub fn want(name: String, origin: &Span, out: &mut Output) {
    out.give(Collection::Secret(name.into()), Part::Secret(origin.clone()));
}

/// The secret of this resource name.
pub fn secret(context: Context<'_>, resource: &str, out: &mut Output) {
    let Some(name) = resource.strip_prefix(SCHEME).filter(|_| context.is_authenticated()) else { return };
    let own = context.namespace();
    let name = match name.split_once('/') {
        Some((namespace, name)) if *namespace == **own => name,
        Some(_) => return,
        None => name,
    };
    let of = |name: &str| context.snapshot.credential(own, &Arc::from(name));
    let (content, credential) = match name.strip_suffix(ROOTS_SUFFIX) {
        None => {
            let Some(credential) = of(name) else { return };
            (credential.certificate.as_ref().ok().map(certificate), credential)
        }
        // The Secret of that very name takes precedence, even if it cannot be used: that is said about it.
        Some(plain) => {
            let Some(credential) = of(name).or_else(|| of(plain)) else { return };
            (credential.roots.as_ref().ok().map(validation), credential)
        }
    };
    if let Some(content) = content {
        let message = tls::Secret { name: resource.to_owned(), r#type: Some(content) };
        out.add(ResourceType::Secret, resource, &message, Some(credential.origin.clone()));
    }
}

fn certificate(pair: &KeyPair) -> tls::secret::Type {
    tls::secret::Type::TlsCertificate(tls::TlsCertificate {
        certificate_chain: Some(inline(&pair.chain)),
        private_key: Some(inline(&pair.key)),
        ..Default::default()
    })
}

fn validation(roots: &Roots) -> tls::secret::Type {
    tls::secret::Type::ValidationContext(tls::CertificateValidationContext {
        trusted_ca: Some(inline(&roots.certificates)),
        crl: roots.revocation_lists.as_deref().map(inline),
        ..Default::default()
    })
}

fn inline(bytes: &[u8]) -> core::DataSource {
    let specifier = core::data_source::Specifier::InlineBytes(bytes.to_vec());
    core::DataSource { specifier: Some(specifier), ..Default::default() }
}
