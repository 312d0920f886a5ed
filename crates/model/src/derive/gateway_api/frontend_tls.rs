//! How clients of a Gateway are verified, and which certificate it shows to backends (`spec.tls`).

use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{FrontendValidation, FrontendValidationMode, ObjectReference};
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::super::tracking::Cx;
use super::super::trusted_roots::{RootsReference, roots};
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
    /// Whether those without a certificate are let in.
    pub(super) optional: bool,
}

impl FrontendTls<'_, '_> {
    /// The clients that a validation lets in; `None`: none of its roots can be used, so the listener must not be served.
    pub(super) fn clients(&mut self, validation: &Spanned<FrontendValidation>) -> Option<VerifiedClients> {
        let references = &validation.ca_certificate_refs;
        let usable: Vec<Vec<u8>> = references.iter().filter_map(|of| self.roots(of)).collect();
        let mode = validation.mode.as_ref();
        let optional = mode.is_some_and(|mode| mode.value == FrontendValidationMode::AllowInsecureFallback);
        if let Some(mode) = mode.filter(|_| optional) {
            let message = format!(
                "{}: `AllowInsecureFallback` lets clients without a certificate in, but none whose certificate is not valid",
                self.object
            );
            let finding = Diagnostic::info("unsupported-value", mode.span.clone(), message);
            let finding = finding.with_help("clients with a wrong certificate have to send none");
            self.push(finding);
        }
        (!usable.is_empty()).then(|| VerifiedClients { roots: usable.concat().into(), optional })
    }

    /// Several listeners of a Gateway may have the same settings.
    fn push(&mut self, finding: Diagnostic) {
        let finding = finding.about(self.object.reference());
        if !self.found.iter().any(|other| *other == finding) {
            self.found.push(finding);
        }
    }

    fn roots(&mut self, reference: &Spanned<ObjectReference>) -> Option<Vec<u8>> {
        let own = &self.object.namespace;
        let namespace = reference.namespace.as_ref().map_or_else(|| own.clone(), |namespace| namespace.0.clone());
        let (group, kind, name) = (reference.group.as_str(), reference.kind.as_str(), reference.name.as_str());
        let result = if is_granted(self.cx, self.object, &Referred { group, kind, namespace: &namespace, name }) {
            roots(self.cx, &RootsReference { group, kind, namespace: &namespace, name })
                .map_err(|error| (error.code, error.message))
        } else {
            let message = format!("no ReferenceGrant allows the {kind} `{namespace}/{name}`");
            Err(("missing-grant", message))
        };
        let (code, message) = match result {
            Ok(roots) => return Some(roots),
            Err(error) => error,
        };
        let message = format!("{}: {message}; if no roots are left, the listeners are not served", self.object);
        let finding = Diagnostic::warning(code, reference.span.clone(), message);
        let help = "name a ConfigMap that has certificates under `ca.crt`";
        self.push(finding.with_help(help));
        None
    }
}
