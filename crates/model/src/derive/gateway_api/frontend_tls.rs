//! How clients of a Gateway are verified, and which certificate it shows to backends (`spec.tls`).

use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{FrontendValidation, FrontendValidationMode, ObjectReference};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::super::tracking::Cx;
use super::super::trusted_roots::{RootsError, RootsReference, roots};
use super::grants::{Referred, is_granted};

/// Resolves what `spec.tls` of a Gateway refers to.
pub(super) struct FrontendTls<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    pub(super) object: &'a Object,
    pub(super) found: &'a mut Diagnostics,
}

/// The clients that a port lets in.
pub(super) struct VerifiedClients {
    /// The roots for their certificates, as PEM.
    pub(super) roots: Arc<[u8]>,
    /// Everybody is let in, with a valid certificate or not.
    pub(super) anybody: bool,
}

impl FrontendTls<'_, '_> {
    /// The clients that a validation lets in; `None`: none of its roots can be used, so the listener must not be served.
    pub(super) fn clients(&mut self, validation: &Spanned<FrontendValidation>) -> Option<VerifiedClients> {
        let references = &validation.ca_certificate_refs;
        let usable: Vec<Vec<u8>> = references.iter().filter_map(|of| self.roots(of)).collect();
        let mode = validation.mode.as_ref();
        let anybody = mode.is_some_and(|mode| mode.value == FrontendValidationMode::AllowInsecureFallback);
        if let Some(mode) = mode.filter(|_| anybody) {
            let message = format!(
                "{}: with `AllowInsecureFallback` clients are let in without a valid certificate, and not identified; a stock Envoy would \
                 believe any certificate, so it asks for none and identifies nobody",
                self.object
            );
            let finding = Diagnostic::info("unsupported-value", mode.span.clone(), message);
            let finding = finding.with_help("`AllowValidOnly` identifies clients");
            self.push(finding);
        }
        (!usable.is_empty()).then(|| VerifiedClients { roots: usable.concat().into(), anybody })
    }

    /// Several listeners of a Gateway may have the same settings.
    fn push(&mut self, finding: Diagnostic) {
        let finding = finding.about(self.object.reference());
        if !self.found.iter().any(|other| *other == finding) {
            self.found.push(finding);
        }
    }

    fn roots(&mut self, reference: &Spanned<ObjectReference>) -> Option<Vec<u8>> {
        let error = match frontend_roots(self.cx, self.object, reference) {
            Ok(roots) => return Some(roots),
            Err(error) => error,
        };
        let message = format!("{}: {}; if no roots are left, the listeners are not served", self.object, error.message);
        let finding = Diagnostic::warning(error.code, reference.span.clone(), message);
        let help = "name a ConfigMap that has certificates under `ca.crt`";
        self.push(finding.with_help(help));
        None
    }
}

/// The roots for certificates of clients that a Gateway refers to, as PEM.
fn frontend_roots(cx: &Cx<'_>, gateway: &Object, reference: &ObjectReference) -> Result<Vec<u8>, RootsError> {
    let own = &gateway.namespace;
    let namespace = reference.namespace.as_ref().map_or_else(|| own.clone(), |namespace| namespace.0.clone());
    let (group, kind, name) = (reference.group.as_str(), reference.kind.as_str(), reference.name.as_str());
    if is_granted(cx, gateway, &Referred { group, kind, namespace: &namespace, name }) {
        return roots(cx, &RootsReference { group, kind, namespace: &namespace, name });
    }
    let message = format!("no ReferenceGrant allows the {kind} `{namespace}/{name}`");
    Err(RootsError { code: "missing-grant", message })
}

/// What is wrong with the roots for certificates of clients.
pub(super) struct BrokenRoots {
    /// The reason in the condition `ResolvedRefs`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether none are left.
    pub(super) is_complete: bool,
}

/// What is wrong with the references of a validation; `None`: nothing.
pub(super) fn broken_roots(cx: &Cx<'_>, gateway: &Object, validation: &FrontendValidation) -> Option<BrokenRoots> {
    let references = &validation.ca_certificate_refs;
    let errors: Vec<_> = references.iter().filter_map(|of| frontend_roots(cx, gateway, of).err()).collect();
    let is_complete = errors.len() == references.len();
    let first = errors.into_iter().next()?;
    let reason = match first.code {
        "missing-grant" => "RefNotPermitted",
        "unsupported-value" => "InvalidCACertificateKind",
        _ => "InvalidCACertificateRef",
    };
    Some(BrokenRoots { reason, message: first.message, is_complete })
}
