//! Destinations of a VirtualService's routes.

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Port};

object! {
    /// A service, or part of one.
    pub struct Destination {
        /// The service.
        host: Spanned<Hostname> = "host",
        /// A subset of a DestinationRule.
        subset: Option<Spanned<String>> = "subset",
        /// The service's port.
        port: Option<Spanned<PortSelector>> = "port",
    }
    check: check_destination;
}

object! {
    /// A port.
    pub struct PortSelector {
        /// Its number.
        number: Port = "number",
    }
}

fn check_destination(destination: &Destination, _: &Node, cx: &mut Context) {
    // `*.example.com` names the ServiceEntry with that host.
    if destination.host.as_str() == "*" {
        cx.at_field("host", |cx| {
            cx.error("bad-host", &destination.host.span, "`*` names no service", "name one service")
        });
    }
}

/// Checks weights: a single destination gets everything; of several, at least one must have a weight above zero.
pub(super) fn check_weights(weights: impl ExactSizeIterator<Item = u32>, node: &Node, cx: &mut Context) {
    let several = weights.len() > 1;
    // A field that does not exist may be a misspelt weight, which has its own finding.
    let known = ["destination", "headers", "weight"];
    let routes = node.get("route").and_then(Node::as_sequence).unwrap_or_default();
    let mut fields = routes.iter().filter_map(Node::as_mapping).flat_map(|route| route.iter());
    if fields.any(|entry| !known.contains(&&*entry.key)) {
        return;
    }
    if several && weights.map(u64::from).sum::<u64>() == 0 {
        cx.error(
            "bad-weight",
            node.span_of_path("route"),
            "all weights are zero",
            "give each destination a `weight`, e.g. 90 and 10",
        );
    }
}
