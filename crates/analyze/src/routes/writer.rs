//! The findings about one object, and what is known while its routes are written.

use evenkeel_api::Object;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_model::{Service, Snapshot};

use super::RouteOptions;

/// Writes the routes of one object.
pub(super) struct Writer<'a> {
    pub(super) object: &'a Object,
    pub(super) snapshot: &'a Snapshot,
    pub(super) options: &'a RouteOptions,
    pub(super) findings: Diagnostics,
    /// A part of the object has no equal.
    pub(super) is_refused: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(object: &'a Object, snapshot: &'a Snapshot, options: &'a RouteOptions) -> Self {
        Self { object, snapshot, options, findings: Diagnostics::new(), is_refused: false }
    }

    /// A part has no equal, so the object remains.
    pub(super) fn refuse(&mut self, span: &Span, message: impl AsRef<str>, help: impl Into<String>) {
        self.is_refused = true;
        self.find(Diagnostic::warning("no-equal", span.clone(), self.text(message)).with_help(help));
    }

    /// A part is written as something that differs a little.
    pub(super) fn differs(&mut self, span: &Span, message: impl AsRef<str>, help: impl Into<String>) {
        self.find(Diagnostic::warning("not-quite", span.clone(), self.text(message)).with_help(help));
    }

    /// Good to know.
    pub(super) fn note(&mut self, span: &Span, message: impl AsRef<str>) {
        self.find(Diagnostic::info("route-note", span.clone(), self.text(message)));
    }

    fn text(&self, message: impl AsRef<str>) -> String {
        format!("{}: {}", self.object, message.as_ref())
    }

    fn find(&mut self, finding: Diagnostic) {
        let finding = finding.about(self.object.reference());
        if !self.findings.iter().any(|other| *other == finding) {
            self.findings.push(finding);
        }
    }

    /// The service of a host as the object's namespace sees it.
    pub(super) fn service(&self, host: &Hostname) -> Option<&'a Service> {
        self.snapshot.service(host.as_str(), &*self.object.namespace).map(AsRef::as_ref)
    }

    /// Whether a service is a Service of Kubernetes, and not a host of a ServiceEntry.
    pub(super) fn is_of_kubernetes(&self, service: &Service) -> bool {
        let domain = &self.snapshot.mesh.cluster_domain;
        service.host == Hostname::of_service(&service.name, &service.namespace, domain)
    }
}
