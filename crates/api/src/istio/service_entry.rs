//! ServiceEntry: hosts that are not Kubernetes Services.

use std::net::IpAddr;

use evenkeel_base::Spanned;
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::workload_entry::{WorkloadEntrySpec, check_address};
use super::{LabelsSelector, check_export_to};
use crate::decode::{Context, Label, Port};

object! {
    /// Hosts that are not Kubernetes Services.
    pub struct ServiceEntry {
        /// The specification.
        spec: ServiceEntrySpec = "spec",
        /// What control planes have decided about it.
        status: Option<ServiceEntryStatus> = "status",
    }
}

object! {
    /// What control planes have decided about a ServiceEntry.
    pub struct ServiceEntryStatus {
        /// The virtual addresses that its hosts have been allotted.
        addresses: Vec<ServiceEntryAddress> = "addresses",
    }
    inert: ["conditions", "validationMessages", "observedGeneration"];
}

object! {
    /// A virtual address that a host has been allotted.
    pub struct ServiceEntryAddress {
        /// The address.
        value: Option<String> = "value",
        /// The host; each host if not given.
        host: Option<String> = "host",
    }
}

impl ServiceEntry {
    /// The IPv4 address that a host has been allotted.
    pub fn allotted_address(&self, host: &Hostname) -> Option<IpAddr> {
        let is_of_host = |one: &&ServiceEntryAddress| one.host.as_deref().is_none_or(|name| name == host.as_str());
        let addresses = self.status.iter().flat_map(|status| &status.addresses).filter(is_of_host);
        addresses.filter_map(|one| one.value.as_ref()?.parse().ok()).find(IpAddr::is_ipv4)
    }
}

object! {
    /// Hosts, their ports and endpoints.
    pub struct ServiceEntrySpec {
        /// The hosts.
        hosts: Vec<Spanned<Hostname>> = "hosts",
        /// Virtual addresses or ranges.
        addresses: Vec<Spanned<IpNet>> = "addresses",
        /// Ports clients call.
        ports: Vec<ServiceEntryPort> = "ports",
        /// Inside or outside the mesh; outside if not given.
        location: Option<Location> = "location",
        /// How endpoints are found; NONE if not given.
        resolution: Option<Resolution> = "resolution",
        /// The endpoints.
        endpoints: Vec<WorkloadEntrySpec> = "endpoints",
        /// Pods and WorkloadEntries as endpoints.
        workload_selector: Option<LabelsSelector> = "workloadSelector",
        /// The namespaces that see it.
        export_to: Vec<Spanned<String>> = "exportTo",
        /// Names, one of which a server's certificate must have.
        subject_alt_names: Vec<String> = "subjectAltNames",
    }
    check: check;
}

object! {
    /// One port.
    pub struct ServiceEntryPort {
        /// The number clients call.
        number: Spanned<Port> = "number",
        /// The protocol; TCP if not given.
        protocol: Option<Spanned<String>> = "protocol",
        /// Its name.
        name: Label = "name",
        /// The port of the endpoints; `number` if not given.
        target_port: Option<Port> = "targetPort",
    }
}

choices! {
    /// Where a host is.
    pub enum Location {
        /// Outside.
        MeshExternal = "MESH_EXTERNAL",
        /// Inside.
        MeshInternal = "MESH_INTERNAL",
    }
}

choices! {
    /// How endpoints are found.
    pub enum Resolution {
        /// The address the client called.
        None = "NONE",
        /// The given endpoints.
        Static = "STATIC",
        /// DNS, all addresses.
        Dns = "DNS",
        /// DNS, the first address.
        DnsRoundRobin = "DNS_ROUND_ROBIN",
        /// DNS, for the host that a call names.
        DynamicDns = "DYNAMIC_DNS",
    }
}

fn check(spec: &ServiceEntrySpec, node: &Node, cx: &mut Context) {
    check_export_to(&spec.export_to, cx);
    if spec.hosts.is_empty() {
        cx.at_field("hosts", |cx| {
            cx.error("missing-field", &node.span, "at least one host is needed", "add `- example.com`")
        });
    }
    let resolution = spec.resolution.unwrap_or(Resolution::None);
    let by_dns = matches!(resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    if spec.workload_selector.is_some() && !spec.endpoints.is_empty() {
        let message = "`workloadSelector` and `endpoints` cannot be used together";
        cx.error("conflict", node.span_of_path("workloadSelector"), message, "keep one of the two");
    }
    if spec.workload_selector.as_ref().is_some_and(|selector| selector.labels.is_empty()) {
        let message = "a `workloadSelector` without labels selects no workload, so there are no endpoints";
        let help = "add labels, or remove it and list `endpoints`";
        cx.warning("empty-selector", node.span_of_path("workloadSelector"), message, help);
    }
    if resolution == Resolution::None && !spec.endpoints.is_empty() {
        let message =
            "with `resolution: NONE` a call goes to the address the client called, so the endpoints are not used";
        cx.error(
            "conflict",
            node.span_of_path("endpoints"),
            message,
            "set `resolution: STATIC` or `DNS`, or remove the endpoints",
        );
    }
    for host in spec.hosts.iter().filter(|h| h.is_wildcard() && by_dns && spec.endpoints.is_empty()) {
        let message = format!("`{}` cannot be resolved by DNS", host.value);
        cx.error("bad-host", &host.span, message, "name the hosts, give endpoints, or set `resolution: NONE`");
    }
    if resolution == Resolution::DynamicDns {
        check_dynamic(spec, node, cx);
    }
    check_ports(spec, cx);
    for (index, endpoint) in spec.endpoints.iter().enumerate() {
        cx.at_field("endpoints", |cx| cx.at_index(index, |cx| check_endpoint(spec, endpoint, resolution, node, cx)));
    }
}

/// `DYNAMIC_DNS`: the host comes with each call, by the Host header or the server name of TLS.
fn check_dynamic(spec: &ServiceEntrySpec, node: &Node, cx: &mut Context) {
    for host in spec.hosts.iter().filter(|host| !host.is_wildcard()) {
        let message = format!("`{}` is one host, and `resolution: DYNAMIC_DNS` is for wildcards", host.value);
        cx.error("bad-host", &host.span, message, "set `resolution: DNS`, or write a host such as `*.example.com`");
    }
    for (field, given) in
        [("endpoints", !spec.endpoints.is_empty()), ("workloadSelector", spec.workload_selector.is_some())]
    {
        if given {
            let message = "with `resolution: DYNAMIC_DNS` a call goes to the host that it names, so this is not used";
            cx.warning("conflict", node.span_of_path(field), message, "remove it, or set another `resolution`");
        }
    }
    let names_host = |protocol: &str| {
        let known = ["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS"];
        known.iter().any(|known| known.eq_ignore_ascii_case(protocol))
    };
    for protocol in spec.ports.iter().filter_map(|port| port.protocol.as_ref()).filter(|name| !names_host(name)) {
        let message = format!("calls of protocol `{}` name no host that DNS could be asked for", protocol.value);
        cx.error("bad-value", &protocol.span, message, "use HTTP, HTTP2, GRPC, HTTPS or TLS, or another `resolution`");
    }
}

fn check_ports(spec: &ServiceEntrySpec, cx: &mut Context) {
    for (index, port) in spec.ports.iter().enumerate() {
        if spec.ports.iter().take(index).any(|p| p.number == port.number) {
            let message = format!("port {} appears twice", port.number.0);
            cx.error("port-conflict", &port.number.span, message, "give each port its own number");
        }
        let known = ["HTTP", "HTTPS", "GRPC", "GRPC-WEB", "HTTP2", "MONGO", "TCP", "TLS", "MYSQL", "REDIS", "UDP"];
        if let Some(protocol) = port.protocol.as_ref().filter(|p| !known.contains(&p.to_uppercase().as_str())) {
            let help = format!("allowed: {}", evenkeel_base::suggest::one_of(known));
            cx.error("bad-value", &protocol.span, format!("`{}` is not a protocol", protocol.value), help);
        }
    }
}

fn check_endpoint(
    spec: &ServiceEntrySpec,
    endpoint: &WorkloadEntrySpec,
    resolution: Resolution,
    node: &Node,
    cx: &mut Context,
) {
    match &endpoint.address {
        None => cx.error("missing-field", &node.span, "an endpoint needs an `address`", "add `address: 10.0.0.7`"),
        Some(address) => {
            let unix = address.starts_with("unix://");
            let ip = address.parse::<std::net::IpAddr>().is_ok();
            if resolution == Resolution::Static && !unix && !ip {
                let message = format!("`{}` is not an IP address", address.value);
                cx.error("bad-address", &address.span, message, "set `resolution: DNS`, or give an IP address");
            } else {
                check_address(address, cx);
            }
        }
    }
    for name in endpoint.ports.keys().filter(|name| !spec.ports.iter().any(|p| &*p.name.0 == name.as_str())) {
        let help = format!("ports here: {}", evenkeel_base::suggest::one_of(spec.ports.iter().map(|p| &*p.name.0)));
        cx.at_field("ports", |cx| {
            cx.error("bad-value", node.span_of_path("endpoints"), format!("no port is named `{name}`"), help)
        });
    }
}
