//! The sidecar's container.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_capture::PROXY_USER;
use serde_json::json;

use crate::agent::{Agent, Expansion, Files, Identity, Role, literal};
use crate::container::{Capabilities, Container, Port, Probe, Resources, SecurityContext, Variable};
use crate::decision::{PROXY_CONTAINER, is_gateway};
use crate::pod::{Owner, Pod};
use crate::settings::ProxySettings;
use crate::template::SidecarForm;
use crate::volumes;

/// Port of the agent's page.
pub(crate) const STATUS_PORT: u16 = 15020;
/// Port of the readiness probe.
const READINESS_PORT: u16 = 15021;
/// How long a proxy still accepts connections when its Pod ends: as long as an Istio agent lets Envoy drain.
const ACCEPT_AFTER_STOP: Duration = Duration::from_secs(5);
/// How much of the mesh the proxy holds: `learned` or `full`.
const SCOPE_ANNOTATION: &str = "evenkeel.dev/scope";

/// The container.
pub(crate) fn container(pod: &Pod<'_>, settings: &ProxySettings, labels: &BTreeMap<String, String>) -> Container {
    let role = if is_gateway(pod.annotations(), pod.spec) { Role::Gateway } else { Role::Sidecar };
    let agent = Agent {
        role,
        identity: Identity {
            pod: "$(POD_NAME)",
            namespace: "$(POD_NAMESPACE)",
            service_account: "$(SERVICE_ACCOUNT)",
            workload: pod.workload_name(),
            address: "$(INSTANCE_IP)",
            labels,
        },
        settings,
        defaults: &pod.template.agents,
        files: Files {
            roots: Path::new(volumes::ROOTS),
            token: Path::new(volumes::TOKEN),
            state: Path::new(volumes::STATE),
        },
        envoy: None,
        has_full_scope: role == Role::Gateway || pod.text(SCOPE_ANNOTATION) == Some("full"),
        has_own_user: role == Role::Sidecar,
        expansion: Expansion::Kubernetes,
    };
    let words = agent.arguments().into_iter().map(|word| word.to_string_lossy().into_owned());
    let further = ["--cluster-domain", &pod.template.cluster_domain, "--cluster-id", &pod.template.cluster];
    // Those who call learn of the Pod's end after the proxy does. A native sidecar ends after the programs, which nobody calls any more then.
    let is_called_at_its_end = role == Role::Gateway || pod.form(settings) == SidecarForm::Container;
    // Accepting is a part of the drain time; what was accepted last has the other half to end.
    let at_most = settings.drain.map_or(ACCEPT_AFTER_STOP, |drain| drain / 2);
    let accepts = is_called_at_its_end.then_some(at_most.min(ACCEPT_AFTER_STOP));
    let accepts = accepts.into_iter().flat_map(|time| ["--accept-after-stop-s".to_owned(), time.as_secs().to_string()]);
    Container {
        name: PROXY_CONTAINER.to_owned(),
        image: pod.image(),
        image_pull_policy: pod.template.image_pull_policy.clone(),
        args: words.chain(further.map(str::to_owned)).chain(accepts).collect(),
        env: environment(pod, settings, &agent),
        ports: vec![Port { name: "http-envoy-prom", container_port: 15090, protocol: "TCP" }],
        readiness_probe: Some(readiness(pod)),
        startup_probe: Some(Probe {
            period_seconds: 1,
            failure_threshold: 600,
            initial_delay_seconds: None,
            ..probe()
        }),
        resources: resources(pod),
        restart_policy: (pod.form(settings) == SidecarForm::Native).then_some("Always"),
        security_context: security_context(role == Role::Sidecar && settings.mode == InterceptionMode::Tproxy),
        volume_mounts: volumes::mounts(pod),
    }
}

/// What the arguments refer to, what the agent reads, and metadata of the node.
fn environment(pod: &Pod<'_>, settings: &ProxySettings, agent: &Agent<'_>) -> Vec<Variable> {
    let fields = [
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("INSTANCE_IP", "status.podIP"),
        ("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        ("HOST_IP", "status.hostIP"),
        ("ISTIO_META_NODE_NAME", "spec.nodeName"),
    ];
    let mut variables: Vec<Variable> = fields.into_iter().map(|(name, path)| Variable::of_field(name, path)).collect();
    let programs = pod.spec.containers.iter().map(|container| container.name.to_string());
    let programs: Vec<String> = programs.filter(|name| name != PROXY_CONTAINER).collect();
    variables.push(Variable::new("ISTIO_META_APP_CONTAINERS", literal(&programs.join(","))));
    variables.push(Variable::new("ISTIO_META_POD_PORTS", ports(pod)));
    variables.push(Variable::new("ISTIO_META_MESH_ID", literal(&pod.template.mesh)));
    if let Some(Owner { api_version, kind, name }) = &pod.owner {
        let path = format!(
            "kubernetes://apis/{api_version}/namespaces/$(POD_NAMESPACE)/{}s/{name}",
            kind.to_ascii_lowercase()
        );
        variables.push(Variable::new("ISTIO_META_OWNER", path));
    }
    variables.extend(agent.environment().iter().map(|(name, value)| Variable::new(name, value)));
    // The rest of `proxyMetadata` is for the agent.
    let others = settings.metadata.iter().filter(|(name, _)| !name.starts_with("ISTIO_META_"));
    variables.extend(others.map(|(name, value)| Variable::new(name, literal(value))));
    variables
}

/// The ports of the programs as JSON.
fn ports(pod: &Pod<'_>) -> String {
    let all = pod.spec.containers.iter().flat_map(|container| &container.ports).map(|port| {
        let mut fields = serde_json::Map::new();
        fields.extend(port.name.as_ref().map(|name| ("name".to_owned(), name.to_string().into())));
        fields.insert("containerPort".to_owned(), port.container_port.0.into());
        fields.extend(port.protocol.map(|protocol| ("protocol".to_owned(), protocol.as_str().into())));
        serde_json::Value::Object(fields)
    });
    serde_json::Value::Array(all.collect()).to_string()
}

/// A probe of the proxy's readiness, with Istio's times.
fn probe() -> Probe {
    Probe {
        http_get: json!({"path": "/healthz/ready", "port": READINESS_PORT}),
        initial_delay_seconds: None,
        period_seconds: 15,
        timeout_seconds: 3,
        failure_threshold: 4,
    }
}

/// The readiness probe, with the times of annotations.
fn readiness(pod: &Pod<'_>) -> Probe {
    let number = |name: &str| pod.text(&format!("readiness.status.sidecar.istio.io/{name}"))?.trim().parse().ok();
    let probe = probe();
    Probe {
        initial_delay_seconds: number("initialDelaySeconds"),
        period_seconds: number("periodSeconds").unwrap_or(probe.period_seconds),
        failure_threshold: number("failureThreshold").unwrap_or(probe.failure_threshold),
        ..probe
    }
}

/// Requests and limits: those of annotations alone, if there is any, as in Istio.
pub(crate) fn resources(pod: &Pod<'_>) -> Resources {
    let of = |cpu: &str, memory: &str| -> BTreeMap<String, String> {
        let all = [("cpu", cpu), ("memory", memory)].into_iter();
        let named = |name: &str| pod.text(&format!("sidecar.istio.io/{name}")).map(str::to_owned);
        all.filter_map(|(resource, annotation)| Some((resource.to_owned(), named(annotation)?))).collect()
    };
    let named = Resources { requests: of("proxyCPU", "proxyMemory"), limits: of("proxyCPULimit", "proxyMemoryLimit") };
    if named == Resources::default() { pod.template.resources.clone() } else { named }
}

/// A user of its own without privileges. With TPROXY it uses addresses that are not its own, for which it has to be root with one
/// capability; capture rules then recognize it by its group.
fn security_context(is_transparent: bool) -> SecurityContext {
    SecurityContext {
        capabilities: Capabilities {
            add: if is_transparent { vec!["NET_ADMIN"] } else { Vec::new() },
            drop: vec!["ALL"],
        },
        read_only_root_filesystem: true,
        run_as_group: PROXY_USER,
        run_as_non_root: !is_transparent,
        run_as_user: if is_transparent { 0 } else { PROXY_USER },
        ..SecurityContext::default()
    }
}
