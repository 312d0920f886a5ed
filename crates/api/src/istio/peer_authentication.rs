//! PeerAuthentication.

use std::collections::BTreeMap;

use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use crate::decode::{Context, Port};

object! {
    /// The mutual TLS that workloads accept.
    pub struct PeerAuthentication {
        /// The specification; if it is missing, the mode is inherited.
        spec: Option<PeerAuthenticationSpec> = "spec",
    }
    inert: ["status"];
}

object! {
    /// The mutual TLS that workloads accept.
    pub struct PeerAuthenticationSpec {
        /// The selected workloads of the namespace; all if not given.
        selector: Option<WorkloadSelector> = "selector",
        /// The mode for all ports.
        mtls: Option<MutualTls> = "mtls",
        /// Modes for single ports of the workload.
        port_level_mtls: BTreeMap<Port, MutualTls> = "portLevelMtls",
    }
    check: check;
}

object! {
    /// The mode.
    pub struct MutualTls {
        /// UNSET if not given.
        mode: Option<MtlsMode> = "mode",
    }
}

choices! {
    /// The accepted mode.
    pub enum MtlsMode {
        /// Inherited.
        Unset = "UNSET",
        /// Plain text only.
        Disable = "DISABLE",
        /// Plain text and mutual TLS.
        Permissive = "PERMISSIVE",
        /// Mutual TLS only.
        Strict = "STRICT",
    }
}

fn check(spec: &PeerAuthenticationSpec, node: &Node, cx: &mut Context) {
    let whole_namespace = spec.selector.as_ref().is_none_or(|s| s.match_labels.is_empty());
    if whole_namespace && !spec.port_level_mtls.is_empty() {
        let help = "add `selector.matchLabels`, or set `mtls.mode` for the whole namespace";
        let message = "modes of single ports need a selector, because a namespace has no ports";
        cx.at_field("portLevelMtls", |cx| {
            cx.error("missing-selector", node.span_of_path("portLevelMtls"), message, help)
        });
    }
}
