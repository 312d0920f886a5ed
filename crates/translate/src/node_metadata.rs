//! Metadata of a node that Istio's control plane reads and this one does not: it is named when the proxy connects.

use crate::pb::core::Node;

/// The names (`NodeMetadata` of Istio's `pkg/model/proxy.go`).
const UNHEEDED: [&str; 16] = [
    "ENABLE_HBONE",
    "HTTP10",
    "HTTP_PROXY_PORT",
    "IDLE_TIMEOUT",
    "INBOUND_LISTENER_EXACT_BALANCE",
    "OUTBOUND_LISTENER_EXACT_BALANCE",
    "REQUESTED_NETWORK_VIEW",
    "ROUTER_MODE",
    "TLS_CLIENT_CERT_CHAIN",
    "TLS_CLIENT_KEY",
    "TLS_CLIENT_ROOT_CERT",
    "TLS_SERVER_CERT_CHAIN",
    "TLS_SERVER_KEY",
    "TLS_SERVER_ROOT_CERT",
    "UNPRIVILEGED_POD",
    "WORKLOAD_ENTRY",
];

/// The names among a node's metadata that have no effect here.
pub fn unheeded(node: &Node) -> Vec<&'static str> {
    let fields = node.metadata.as_ref().map(|metadata| &metadata.fields);
    UNHEEDED.into_iter().filter(|name| fields.is_some_and(|fields| fields.contains_key(*name))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::pb::google::protobuf::value::Kind;
    use crate::pb::google::protobuf::{Struct, Value};

    use super::*;
    use crate::view::ProxyView;

    /// The metadata that a proxy's view depends on: a value that changes it, and what else is needed for that.
    #[rustfmt::skip]
    const HEEDED: [(&str, &str, &str); 15] = [
        ("CLUSTER_ID", "west", ""),
        ("DNS_AUTO_ALLOCATE", "false", "DNS_CAPTURE"),
        ("DNS_CAPTURE", "true", ""),
        ("ENABLE_SELF_DISCOVERY", "true", ""),
        ("EVENKEEL", "SCOPE=full", ""),
        ("GENERATOR", "grpc", ""),
        ("INSTANCE_IPS", "10.0.0.1,10.0.0.2", ""),
        ("INTERCEPTION_MODE", "TPROXY", ""),
        ("ISTIO_VERSION", "1.30.0", ""),
        ("LABELS", "app=web", ""),
        ("NAMESPACE", "other", ""),
        ("NETWORK", "n2", ""),
        ("PROXY_CONFIG", "concurrency=2", ""),
        ("SELF_DISCOVERY_GROUPING_LABEL_NAMES", "app", "ENABLE_SELF_DISCOVERY"),
        ("SERVICE_ACCOUNT", "web", ""),
    ];

    fn value(text: &str) -> Value {
        let kind = match text.split_once('=') {
            Some((name, inner)) => Kind::StructValue(Struct { fields: [(name.to_owned(), value(inner))].into() }),
            None => Kind::StringValue(text.to_owned()),
        };
        Value { kind: Some(kind) }
    }

    fn node(metadata: &[(&str, &str)]) -> Node {
        let fields = metadata.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        let id = "sidecar~10.0.0.1~a.shop~c".to_owned();
        Node { id, metadata: Some(Struct { fields }), ..Default::default() }
    }

    /// What the control plane knows of a node: its view, or why it is refused.
    fn view(metadata: &[(&str, &str)]) -> String {
        format!("{:?}", ProxyView::from_node(&node(metadata)))
    }

    #[test]
    fn metadata_changes_the_view_or_is_named() {
        for (name, text, needed) in HEEDED {
            let before: Vec<(&str, &str)> = (!needed.is_empty()).then_some((needed, "true")).into_iter().collect();
            let more: Vec<(&str, &str)> = before.iter().copied().chain([(name, text)]).collect();
            assert_ne!(view(&more), view(&before), "{name} changes nothing");
            assert!(unheeded(&node(&more)).is_empty(), "{name}");
        }
        for name in UNHEEDED {
            assert_eq!(view(&[(name, "1")]), view(&[]), "{name} counts");
            assert_eq!(unheeded(&node(&[(name, "1"), ("OWNER", "x")])), [name]);
        }
    }

    /// The list above has every name that the view reads.
    #[test]
    fn the_names_that_are_read_are_known() {
        let source = include_str!("view.rs");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let of = |call: &'static str| {
            let calls = source.split(call).skip(1);
            calls.filter_map(|rest| rest.strip_prefix('"')?.split('"').next())
        };
        let calls = [
            "metadata.text(",
            "self.text(",
            "metadata.texts(",
            "metadata.object(",
            "self.object(",
            "is_true(",
            "is_false(",
            "text_in(",
        ];
        let read: BTreeSet<&str> = calls.into_iter().flat_map(of).collect();
        assert_eq!(read, HEEDED.iter().map(|(name, _, _)| *name).collect());
    }
}
