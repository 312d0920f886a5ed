//! SDS secrets of gateways and of clients that originate TLS: certificates and roots from Secrets of Kubernetes.
//!
//! A proxy gets only what it may have: Secrets of its own namespace, and only if its certificate has proved that it
//! belongs there (`pilot/pkg/xds/sds.go`). Each Secret is a unit of its own, so a changed one is one changed resource.

use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_model::gateway::{BackendCertificate, SecretUse};
use evenkeel_model::{KeyPair, ROOTS_SUFFIX, Roots, Snapshot};

use crate::context::Context;
use crate::output::{Collection, Output, Part};
use crate::pb::{core, tls};
use crate::view::ProxyView;

/// Prefix of the names of these secrets, as in Istio.
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
pub fn of_gateways(context: Context<'_>, out: &mut Output<'_>) {
    for gateway in context.snapshot.gateways_for(&context) {
        for used in gateway.servers.iter().filter_map(|server| server.tls.as_ref()).flat_map(|tls| tls.secrets()) {
            let (name, span) = match used {
                SecretUse::Certificate(secret) => (certificate_name(secret), &secret.span),
                SecretUse::Roots(secret) => (roots_name(secret), &secret.span),
            };
            want(name, span, out);
        }
        if let Some(BackendCertificate::Secret(secret)) = &gateway.backend_certificate {
            want(certificate_name(secret), &secret.span, out);
        }
    }
}

/// Requests a secret for the proxy, if it may have it.
pub fn want(name: String, origin: &Span, out: &mut Output<'_>) {
    out.give(Collection::Secret(name.into()), Part::Secret(origin.clone()));
}

/// The secret of this resource name.
pub fn secret(context: Context<'_>, resource: &str, out: &mut Output<'_>) {
    let Some(name) = resource.strip_prefix(SCHEME).filter(|_| context.is_authenticated()) else { return };
    let own = context.namespace();
    let (own, name) = match name.split_once('/') {
        Some((namespace, name)) if *namespace == **own => (own.clone(), name),
        Some((namespace, plain)) if is_granted(context, name) => (Arc::from(namespace), plain),
        Some(_) => return,
        None => (own.clone(), name),
    };
    let of = |name: &str| context.snapshot.credential(&own, &Arc::from(name));
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
        out.add(message, Some(credential.origin.clone()));
    }
}

/// Whether a Gateway of the proxy may use a Secret of another namespace, `NAMESPACE/NAME`.
fn is_granted(context: Context<'_>, secret: &str) -> bool {
    context.snapshot.gateways_for(&context).iter().any(|gateway| gateway.granted_secrets.contains(secret))
}

/// Why a proxy does not get a secret that it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedSecret {
    /// The name is not that of a Kubernetes Secret.
    #[error("the control plane serves secrets with names `{SCHEME}NAME` only")]
    Foreign,
    /// The proxy has no certificate.
    #[error("only a proxy that has proved its namespace gets secrets, over the TLS port")]
    Unproved,
    /// The Secret is in another namespace.
    #[error("the Secret is in the namespace `{0}`, and proxies get only Secrets of their own")]
    OtherNamespace(String),
    /// There is none.
    #[error("there is no Secret `{namespace}/{name}`")]
    Missing {
        /// The proxy's namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// The Secret does not contain what is needed.
    #[error("the Secret cannot be used: {0}")]
    Unusable(String),
    /// No object that applies to the proxy names the Secret.
    #[error("no Gateway or DestinationRule that applies to the proxy names the Secret")]
    Unnamed,
}

/// Why a proxy does not get the secret of this resource name, if it is not among its resources.
pub fn refusal(view: &ProxyView, snapshot: &Snapshot, resource: &str) -> RefusedSecret {
    let Some(name) = resource.strip_prefix(SCHEME) else { return RefusedSecret::Foreign };
    if !view.authenticated {
        return RefusedSecret::Unproved;
    }
    let name = match name.split_once('/') {
        Some((namespace, _)) if *namespace != *view.namespace => {
            return RefusedSecret::OtherNamespace(namespace.to_owned());
        }
        Some((_, name)) => name,
        None => name,
    };
    let of = |name: &str| snapshot.credentials.get(&(view.namespace.clone(), name.into()));
    let plain = name.strip_suffix(ROOTS_SUFFIX);
    let found = of(name).or_else(|| of(plain?));
    let Some(credential) = found else {
        let name = plain.unwrap_or(name).to_owned();
        return RefusedSecret::Missing { namespace: view.namespace.to_string(), name };
    };
    let unusable = match plain {
        None => credential.certificate.as_ref().err(),
        Some(_) => credential.roots.as_ref().err(),
    };
    unusable.map_or(RefusedSecret::Unnamed, |reason| RefusedSecret::Unusable(reason.to_string()))
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

/// Bytes within the message.
pub fn inline(bytes: &[u8]) -> core::DataSource {
    let specifier = core::data_source::Specifier::InlineBytes(bytes.to_vec());
    core::DataSource { specifier: Some(specifier), ..Default::default() }
}
