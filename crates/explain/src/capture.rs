//! Which connections pass a workload's sidecar.

use std::net::SocketAddr;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_model::Workload;
use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::listener::Listener;

use crate::proxy::Proxy;
use crate::world::World;

impl World {
    /// Which connections to a Pod its proxy gets.
    pub(crate) fn capture_of(&self, workload: &Workload) -> CaptureRules {
        let is_it = |object: &&Object| {
            object.kind() == Kind::Pod && object.name == workload.pod && object.namespace == workload.namespace
        };
        let pod = self.objects().iter().chain(&self.stand_ins).find(is_it);
        let rules = pod.map(|pod| CaptureRules::of(&pod.annotations)).unwrap_or_default();
        if !rules.is_default() {
            return rules;
        }
        // A running mesh tells of its Pods without their annotations: those of what made them are theirs.
        let owned = self.objects().iter().filter(|object| {
            object.name == workload.workload_name && object.namespace == workload.namespace && object.refused.is_none()
        });
        let template = |object: &Object| match &object.resource {
            Resource::Deployment(set) => {
                set.spec.template.metadata.as_ref().map(|metadata| metadata.annotations.clone())
            }
            Resource::StatefulSet(set) => {
                set.spec.template.metadata.as_ref().map(|metadata| metadata.annotations.clone())
            }
            Resource::DaemonSet(set) => {
                set.spec.template.metadata.as_ref().map(|metadata| metadata.annotations.clone())
            }
            _ => None,
        };
        owned.filter_map(template).next().map(|annotations| CaptureRules::of(&annotations)).unwrap_or_default()
    }

    /// Whether nothing captures the connections of a workload (`interceptionMode: NONE`).
    fn is_uncaptured(&self, workload: &Workload) -> bool {
        let of_mesh = self.snapshot.proxy_config(&workload.namespace, &workload.labels);
        let own = workload.proxy_config.as_deref().cloned();
        own.map_or(of_mesh.clone(), |own| own.over(of_mesh)).interception() == InterceptionMode::None
    }

    /// Whether a workload's connections to an address pass its sidecar.
    pub(crate) fn leaves_through_proxy(&self, workload: &Workload, to: SocketAddr) -> bool {
        if self.is_uncaptured(workload) {
            return workload.has_proxy && to.ip().is_loopback();
        }
        let capture = self.capture_of(workload);
        let in_ranges =
            capture.outbound_ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(&to.ip())));
        let excepted = capture.except_outbound_ranges.iter().any(|range| range.contains(&to.ip()))
            || capture.except_outbound_ports.contains(&to.port());
        workload.has_proxy && !excepted && (in_ranges || capture.outbound_ports.contains(&to.port()))
    }

    /// Whether a workload calls itself by its own address: such connections stay on its loopback interface, which capture leaves alone.
    /// A port on which its own proxy listens, such as that of an explicit HTTP proxy, is the proxy's.
    pub(crate) fn calls_itself(&self, workload: &Workload, to: SocketAddr) -> bool {
        let is_own = to.ip().is_loopback() || workload.addresses.contains(&to.ip());
        is_own && !self.is_uncaptured(workload) && !self.is_gateway(workload)
    }

    /// Whether a proxy has a socket of its own at this address.
    pub(crate) fn listens_at(proxy: &Proxy, to: SocketAddr) -> bool {
        let is_it = |listener: &Listener| match &listener.address {
            ListenAddress::Socket(own) => {
                listener.bind_to_port && own.port() == to.port() && (own.ip() == to.ip() || own.ip().is_unspecified())
            }
            ListenAddress::Datagram(_) | ListenAddress::Pipe(_) => false,
        };
        proxy.config.listeners.values().any(|listener| is_it(listener))
    }

    /// Whether connections to a port of a workload pass its sidecar.
    pub(crate) fn arrives_at_proxy(&self, workload: &Workload, port: u16) -> bool {
        if self.is_uncaptured(workload) {
            let sidecar = self.snapshot.sidecar_for(&workload.namespace, &workload.labels);
            return workload.has_proxy && sidecar.is_some_and(|sidecar| sidecar.ingress_of(port).is_some());
        }
        let capture = self.capture_of(workload);
        let included = match &capture.inbound_ports {
            None => !capture.except_inbound_ports.contains(&port),
            Some(ports) => ports.contains(&port),
        };
        workload.has_proxy && included
    }
}
