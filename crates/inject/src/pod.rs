//! A Pod that may get a sidecar.

use std::collections::BTreeMap;

use evenkeel_api::ObjectMeta;
use evenkeel_api::istio::ProxyConfig;
use evenkeel_api::kubernetes::PodSpec;
use evenkeel_base::Spanned;

use crate::decision::is_gateway;
use crate::settings::ProxySettings;
use crate::template::{SidecarForm, Template};

/// A Pod, or the template of Pods.
#[derive(Debug, Clone)]
pub struct Pod<'a> {
    /// Its labels and annotations.
    pub metadata: &'a ObjectMeta,
    /// Its specification.
    pub spec: &'a PodSpec,
    /// The workload that it belongs to, if there is one.
    pub owner: Option<Owner>,
    /// The labels of its namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// The ProxyConfig that applies to it, without its annotations.
    pub config: &'a ProxyConfig,
    /// What the mesh says about all sidecars.
    pub template: &'a Template,
}

/// The workload of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// E.g. `apps/v1`.
    pub api_version: String,
    /// E.g. `Deployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Pod<'_> {
    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    pub(crate) fn annotations(&self) -> &BTreeMap<String, Spanned<String>> {
        &self.metadata.annotations
    }

    pub(crate) fn text(&self, annotation: &str) -> Option<&str> {
        self.annotations().get(annotation).map(|value| value.as_str())
    }

    /// The name of its workload, or else its own.
    pub(crate) fn workload_name(&self) -> &str {
        let own = self.metadata.name.as_ref().map(|name| &*name.value.0);
        self.owner.as_ref().map(|owner| &*owner.name).or(own).unwrap_or("istio-proxy")
    }

    pub(crate) fn image(&self) -> String {
        self.text("sidecar.istio.io/proxyImage").unwrap_or(&self.template.image).to_owned()
    }

    /// How its sidecar is started. Only a native one is ready before the programs start.
    pub(crate) fn form(&self, settings: &ProxySettings) -> SidecarForm {
        if is_gateway(self.annotations(), self.spec) {
            return SidecarForm::Container;
        }
        match self.text("sidecar.istio.io/nativeSidecar") {
            Some("true") => SidecarForm::Native,
            Some("false") => SidecarForm::Container,
            _ if settings.holds_programs => SidecarForm::Native,
            _ => self.template.form,
        }
    }
}
