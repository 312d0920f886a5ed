//! What a Pod's init container captures, and the container.

use evenkeel_api::annotations::{CaptureRules, virtual_interfaces};
use evenkeel_api::istio::InterceptionMode;
use evenkeel_capture::{Capture, DnsCapture};

use crate::container::{Capabilities, Container, Resources, SecurityContext};
use crate::pod::Pod;
use crate::settings::ProxySettings;

/// Name of the container that loads the rules, as in Istio.
pub const NAME: &str = "istio-init";
/// The container that stands in its place where a CNI plugin loads the rules, as in Istio. Its arguments are those of the rules, and the
/// plugin's agent reads them there.
pub const VALIDATION: &str = "istio-validation";
/// Flags of Istio's `istio-iptables`: load nothing, and fail where connections are not captured.
pub const VALIDATION_FLAGS: [&str; 2] = ["--run-validation", "--skip-rule-apply"];
/// A user without privileges whose connections are captured, unlike those of the proxy's user.
const VALIDATION_USER: u32 = 65532;
/// Ports of the proxy that Istio names as excluded, besides the port of the agent's page.
const OWN_PORTS: [u16; 2] = [15090, 15021];
/// Port of the agent's page.
const STATUS_PORT: u16 = 15020;

/// What is captured of a Pod, which has its name servers in its `resolv.conf`.
pub(crate) fn capture(pod: &Pod<'_>, settings: &ProxySettings) -> Capture {
    let annotations = pod.annotations();
    let mut rules = CaptureRules::of(annotations);
    let page = settings.status_port.unwrap_or(STATUS_PORT);
    let own = OWN_PORTS.into_iter().chain([page].into_iter().filter(|port| *port != 0));
    let others = std::mem::take(&mut rules.except_inbound_ports);
    rules.except_inbound_ports = own.chain(others).collect();
    let dns = if settings.captures_dns == Some(false) { DnsCapture::Off } else { DnsCapture::Servers(Vec::new()) };
    Capture {
        mode: settings.mode,
        rules,
        virtual_interfaces: virtual_interfaces(annotations),
        dns,
        ipv6: pod.template.ipv6,
        ..Capture::default()
    }
}

/// The container that loads the rules; `None`: nothing is captured.
pub(crate) fn container(pod: &Pod<'_>, settings: &ProxySettings, resources: &Resources) -> Option<Container> {
    (settings.mode != InterceptionMode::None).then(|| Container {
        name: NAME.to_owned(),
        image: pod.image(),
        image_pull_policy: pod.template.image_pull_policy.clone(),
        args: capture(pod, settings).to_arguments(),
        resources: resources.clone(),
        security_context: SecurityContext {
            capabilities: Capabilities { add: vec!["NET_ADMIN", "NET_RAW"], drop: vec!["ALL"] },
            ..SecurityContext::default()
        },
        ..Container::default()
    })
}

/// The container that fails if the rules are not loaded, so that no program of the Pod starts without them; `None`: nothing is captured.
pub(crate) fn validation(pod: &Pod<'_>, settings: &ProxySettings, resources: &Resources) -> Option<Container> {
    let loads = container(pod, settings, resources)?;
    let mut words = loads.args.into_iter();
    let command = words.next().into_iter();
    Some(Container {
        name: VALIDATION.to_owned(),
        args: command.chain(VALIDATION_FLAGS.map(str::to_owned)).chain(words).collect(),
        security_context: SecurityContext {
            capabilities: Capabilities { add: Vec::new(), drop: vec!["ALL"] },
            read_only_root_filesystem: true,
            run_as_group: VALIDATION_USER,
            run_as_non_root: true,
            run_as_user: VALIDATION_USER,
            ..SecurityContext::default()
        },
        ..loads
    })
}
