//! MeshConfig: the patterns of clusters' names in statistics.

use evenkeel_base::Spanned;
use evenkeel_base::suggest::{closest, one_of};

use super::MeshConfig;
use crate::decode::Context;

/// A variable in a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatVariable {
    /// Name and namespace of a Kubernetes Service, or the host of another service.
    Service,
    /// The name of a Kubernetes Service, or the host of another service.
    ServiceName,
    /// The host.
    ServiceFqdn,
    /// The number of the service's port.
    ServicePort,
    /// The port of the workload.
    TargetPort,
    /// The name of the service's port.
    ServicePortName,
    /// The subset.
    SubsetName,
}

impl StatVariable {
    /// All variables. None is part of another, so the order does not matter.
    pub const ALL: [Self; 7] = [
        Self::Service,
        Self::ServiceName,
        Self::ServiceFqdn,
        Self::ServicePort,
        Self::TargetPort,
        Self::ServicePortName,
        Self::SubsetName,
    ];

    /// The variable as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "%SERVICE%",
            Self::ServiceName => "%SERVICE_NAME%",
            Self::ServiceFqdn => "%SERVICE_FQDN%",
            Self::ServicePort => "%SERVICE_PORT%",
            Self::TargetPort => "%TARGET_PORT%",
            Self::ServicePortName => "%SERVICE_PORT_NAME%",
            Self::SubsetName => "%SUBSET_NAME%",
        }
    }
}

pub(super) fn check(config: &MeshConfig, cx: &mut Context) {
    check_pattern("outboundClusterStatName", config.outbound_cluster_stat_name.as_ref(), cx);
    check_pattern("inboundClusterStatName", config.inbound_cluster_stat_name.as_ref(), cx);
}

/// Checks a pattern. As in Istio, text between percent signs that is not a variable is kept. Most likely it is misspelt.
fn check_pattern(field: &str, pattern: Option<&Spanned<String>>, cx: &mut Context) {
    let Some(pattern) = pattern else { return };
    let known = || StatVariable::ALL.iter().map(|variable| variable.as_str());
    let mut rest = pattern.value.clone();
    for variable in known() {
        rest = rest.replace(variable, " ");
    }
    let Some(unknown) = rest.split('%').nth(1).filter(|_| rest.matches('%').count() > 1) else { return };
    let written = format!("%{unknown}%");
    let list = one_of(known());
    let help = match closest(&written, known()) {
        Some(near) => format!("did you mean `{near}`? Variables: {list}"),
        None => format!("variables: {list}"),
    };
    let message = format!("`{written}` is no variable; it stays in the names as it is written");
    cx.at_field(field, |cx| cx.warning("bad-value", &pattern.span, message, help));
}
