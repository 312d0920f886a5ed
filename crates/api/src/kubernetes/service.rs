//! Services.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Decode, IntOrString, Label, Port, Schema};
use crate::kubernetes::TransportProtocol;

object! {
    /// A name and an address for Pods.
    pub struct Service {
        /// The specification.
        spec: ServiceSpec = "spec",
        /// What the cluster has made of it.
        status: Option<ServiceStatus> = "status",
    }
}

object! {
    /// What the cluster has made of a Service.
    pub struct ServiceStatus {
        /// Its load balancer.
        load_balancer: Option<LoadBalancerStatus> = "loadBalancer",
    }
    inert: ["conditions"];
}

object! {
    /// The load balancer of a Service.
    pub struct LoadBalancerStatus {
        /// Where clients reach it; empty while it is being made.
        ingress: Vec<LoadBalancerIngress> = "ingress",
    }
}

object! {
    /// Where clients reach a load balancer.
    pub struct LoadBalancerIngress {
        /// The address.
        ip: Option<String> = "ip",
        /// The name, if there is no address.
        hostname: Option<String> = "hostname",
    }
    inert: ["ipMode", "ports"];
}

object! {
    /// The specification of a Service.
    pub struct ServiceSpec {
        /// Ports clients call.
        ports: Vec<ServicePort> = "ports",
        /// Labels of the Pods; empty = endpoints come from elsewhere.
        selector: BTreeMap<String, String> = "selector",
        /// The virtual address, or `None`.
        cluster_ip: Option<Spanned<ClusterIp>> = "clusterIP",
        /// The type; ClusterIP if not given.
        kind: Option<ServiceType> = "type",
        /// The name of which an ExternalName is an alias.
        external_name: Option<Spanned<Hostname>> = "externalName",
        /// Whether Pods that are not ready take traffic, too.
        publish_not_ready_addresses: bool = "publishNotReadyAddresses",
        /// Which endpoints clients in the cluster use; `Cluster` if not given.
        internal_traffic_policy: Option<InternalTrafficPolicy> = "internalTrafficPolicy",
        /// Which endpoints are preferred.
        traffic_distribution: Option<TrafficDistribution> = "trafficDistribution",
    }
    later: ["externalIPs"];
    inert: [
        // Istio's proxies balance as DestinationRules say, whatever the Service configures for kube-proxy.
        "sessionAffinity", "sessionAffinityConfig",
        "clusterIPs", "loadBalancerIP", "loadBalancerSourceRanges", "loadBalancerClass", "externalTrafficPolicy",
        "healthCheckNodePort", "ipFamilies", "ipFamilyPolicy", "allocateLoadBalancerNodePorts",
    ];
    check: check_service;
}

object! {
    /// One port of a Service.
    pub struct ServicePort {
        /// Its name; required if there are several ports. Its prefix names the protocol.
        name: Option<Label> = "name",
        /// The number clients call.
        port: Spanned<Port> = "port",
        /// The port of the Pods; `port` if not given.
        target_port: Option<Spanned<IntOrString>> = "targetPort",
        /// TCP if not given.
        protocol: Option<TransportProtocol> = "protocol",
        /// The application protocol; takes precedence over the prefix of the name.
        app_protocol: Option<String> = "appProtocol",
    }
    inert: ["nodePort"];
}

choices! {
    /// The type of a Service.
    pub enum ServiceType {
        /// A virtual address.
        ClusterIp = "ClusterIP",
        /// Also a port of each machine of a cluster.
        NodePort = "NodePort",
        /// Also a load balancer of a cloud.
        LoadBalancer = "LoadBalancer",
        /// Another name.
        ExternalName = "ExternalName",
    }
}

choices! {
    /// Which endpoints clients in the cluster use.
    pub enum InternalTrafficPolicy {
        /// All.
        Cluster = "Cluster",
        /// Those on the client's own machine.
        Local = "Local",
    }
}

choices! {
    /// Which endpoints are preferred.
    pub enum TrafficDistribution {
        /// The older name of `PreferSameZone`.
        PreferClose = "PreferClose",
        /// Those in the client's zone.
        PreferSameZone = "PreferSameZone",
        /// Those on the client's machine.
        PreferSameNode = "PreferSameNode",
    }
}

/// A Service's virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterIp {
    /// `None`: clients are given the Pods' own addresses.
    Headless,
    /// This address.
    Address(IpAddr),
}

impl Decode for ClusterIp {
    fn schema() -> Schema {
        Schema::String("an IP address or `None`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match node.as_str() {
            Some("None") => Some(Self::Headless),
            _ => IpAddr::decode(node, cx).map(Self::Address),
        }
    }
}

fn check_service(spec: &ServiceSpec, node: &Node, cx: &mut Context) {
    if let Some(kind @ (ServiceType::NodePort | ServiceType::LoadBalancer)) = spec.kind {
        let message = format!("on one machine {} is the same as ClusterIP", kind.as_str());
        cx.at_field("type", |cx| {
            cx.note(
                "no-effect",
                node.span_of_path("type"),
                message,
                "use a Gateway to accept clients from outside the mesh",
            )
        });
    }
    let external = spec.kind == Some(ServiceType::ExternalName);
    match (external, &spec.external_name) {
        (true, None) => {
            let help = "add `externalName`, the DNS name this Service stands for";
            cx.error("missing-field", &node.span, "a Service of type ExternalName needs `externalName`", help);
        }
        (false, Some(name)) => {
            let help = "add `type: ExternalName`, or remove `externalName`";
            cx.error("bad-value", &name.span, "`externalName` is only for the type ExternalName", help);
        }
        _ => {}
    }
    if !external && spec.ports.is_empty() && !matches!(spec.cluster_ip.as_deref(), Some(ClusterIp::Headless)) {
        cx.at_field("ports", |cx| {
            cx.error("missing-field", &node.span, "a Service needs at least one port", "add `- port: 80`")
        });
    }
    let mut numbers = HashSet::new();
    let mut names = HashSet::new();
    for (index, port) in spec.ports.iter().enumerate() {
        let transport = port.protocol.unwrap_or(TransportProtocol::Tcp);
        let span = &port.port.span;
        cx.at_field("ports", |cx| {
            cx.at_index(index, |cx| {
                if !numbers.insert((port.port.0, transport.as_str())) {
                    let message = format!("port {} appears twice in this Service", port.port.0);
                    cx.error("port-conflict", span, message, "give each port its own number");
                }
                match &port.name {
                    None if spec.ports.len() > 1 => {
                        cx.error(
                            "missing-field",
                            span,
                            "each port needs a name when there is more than one port",
                            "add `name: http`",
                        );
                    }
                    Some(name) if !names.insert(name.clone()) => {
                        cx.error(
                            "port-conflict",
                            span,
                            format!("the name `{name}` appears twice"),
                            "give each port its own name",
                        );
                    }
                    _ => {}
                }
            });
        });
    }
}
