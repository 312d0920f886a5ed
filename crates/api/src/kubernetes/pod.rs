//! Pods.

use std::net::IpAddr;

use super::env::{EnvFromSource, EnvVar, ResourceRequirements};
use super::probe::{Lifecycle, Probe};
use super::volume::{Volume, VolumeMount};
use crate::decode::{Context, Decode, IntOrString, Label, Port, Schema};
use evenkeel_base::yaml::Node;
use evenkeel_base::{Span, Spanned};

object! {
    /// A running replica.
    pub struct Pod {
        /// The specification of the Pods.
        spec: PodSpec = "spec",
        /// Its status.
        status: Option<PodStatus> = "status",
    }
}

object! {
    /// The specification of a Pod.
    pub struct PodSpec {
        /// Its programs.
        containers: Vec<Container> = "containers",
        /// Its identity; `default` if not given.
        service_account_name: Option<ServiceAccountName> = "serviceAccountName",
        /// The older name of `serviceAccountName`, which counts where that is missing or empty.
        service_account_older: Option<ServiceAccountName> = "serviceAccount",
        /// Whether it shares the machine's network: then it has no proxy.
        host_network: Option<Spanned<bool>> = "hostNetwork",
        /// Directories its programs may mount.
        volumes: Vec<Volume> = "volumes",
        /// Seconds it has to terminate; 30 if not given.
        termination_grace_period_seconds: Option<u32> = "terminationGracePeriodSeconds",
        /// The user its programs run as in a cluster; on one machine this is ignored with a warning.
        security_context: Option<PodSecurityContext> = "securityContext",
        /// Its name under the Service that `subdomain` names; the Pods of a StatefulSet have theirs.
        hostname: Option<Label> = "hostname",
        /// The headless Service it is found under by `HOSTNAME.SUBDOMAIN`.
        subdomain: Option<Label> = "subdomain",
        /// The machine it runs on.
        node_name: Option<String> = "nodeName",
    }
    later: [
        "initContainers", "hostAliases",
        "dnsConfig" = "names are looked up in the search domains of a cluster, by the mesh's own server",
    ];
    inert: [
        "ephemeralContainers", "restartPolicy", "activeDeadlineSeconds",
        "dnsPolicy", "nodeSelector", "automountServiceAccountToken", "hostPID", "hostIPC",
        "shareProcessNamespace", "imagePullSecrets", "affinity",
        "schedulerName", "tolerations", "priorityClassName", "priority", "readinessGates",
        "runtimeClassName", "enableServiceLinks", "preemptionPolicy", "overhead", "topologySpreadConstraints",
        "setHostnameAsFQDN", "os", "hostUsers", "schedulingGates", "resourceClaims", "resources", "hostnameOverride",
    ];
}

/// The name of a service account; manifests write an empty text for the default one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccountName(pub Option<Label>);

impl Decode for ServiceAccountName {
    fn schema() -> Schema {
        Label::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match node.as_str() {
            Some("") => Some(Self(None)),
            _ => Label::decode(node, cx).map(|name| Self(Some(name))),
        }
    }
}

object! {
    /// A program of a Pod.
    pub struct Container {
        /// Its name.
        name: Label = "name",
        /// Ports it listens on.
        ports: Vec<ContainerPort> = "ports",
        /// Its environment.
        env: Vec<EnvVar> = "env",
        /// ConfigMaps and Secrets whose texts are variables, before those of `env`.
        env_from: Vec<EnvFromSource> = "envFrom",
        /// Requests and limits, used only for `resourceFieldRef`.
        resources: Option<ResourceRequirements> = "resources",
        /// Whether it has started; until then the other probes wait.
        startup_probe: Option<Probe> = "startupProbe",
        /// Whether it takes traffic.
        readiness_probe: Option<Probe> = "readinessProbe",
        /// Whether it is alive; otherwise it is restarted.
        liveness_probe: Option<Probe> = "livenessProbe",
        /// Hooks after the start and before the end.
        lifecycle: Option<Lifecycle> = "lifecycle",
        /// Mounted volumes.
        volume_mounts: Vec<VolumeMount> = "volumeMounts",
        /// The user it runs as in a cluster; takes precedence over the Pod's setting.
        security_context: Option<SecurityContext> = "securityContext",
    }
    inert: [
        "image", "command", "args", "workingDir", "resizePolicy", "restartPolicy", "restartPolicyRules",
        "volumeDevices", "terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy",
        "stdin", "stdinOnce", "tty",
    ];
}

object! {
    /// The user and privileges of a Pod's programs.
    pub struct PodSecurityContext {
        /// The user.
        run_as_user: Option<Spanned<u32>> = "runAsUser",
        /// The group.
        run_as_group: Option<Spanned<u32>> = "runAsGroup",
    }
    inert: [
        "seLinuxOptions", "windowsOptions", "runAsNonRoot", "supplementalGroups", "supplementalGroupsPolicy", "fsGroup",
        "sysctls", "fsGroupChangePolicy", "seccompProfile", "appArmorProfile", "seLinuxChangePolicy",
    ];
}

object! {
    /// The user and privileges of a program.
    pub struct SecurityContext {
        /// The user.
        run_as_user: Option<Spanned<u32>> = "runAsUser",
        /// The group.
        run_as_group: Option<Spanned<u32>> = "runAsGroup",
    }
    inert: [
        "capabilities", "privileged", "seLinuxOptions", "windowsOptions", "runAsNonRoot", "readOnlyRootFilesystem",
        "allowPrivilegeEscalation", "procMount", "seccompProfile", "appArmorProfile",
    ];
}

object! {
    /// A port a container listens on.
    pub struct ContainerPort {
        /// Its name, for `targetPort`.
        name: Option<Label> = "name",
        /// Its number.
        container_port: Port = "containerPort",
        /// TCP if not given.
        protocol: Option<TransportProtocol> = "protocol",
    }
    inert: ["hostPort", "hostIP"];
}

choices! {
    /// The transport protocol of a port.
    pub enum TransportProtocol {
        /// TCP
        Tcp = "TCP",
        /// UDP, which the mesh does not carry
        Udp = "UDP",
        /// SCTP, which the mesh does not carry
        Sctp = "SCTP",
    }
}

object! {
    /// The status of a Pod.
    pub struct PodStatus {
        /// `Running`, `Pending`, `Succeeded`, `Failed`.
        phase: Option<String> = "phase",
        /// Its address.
        pod_ip: Option<IpAddr> = "podIP",
        /// All its addresses.
        pod_ips: Vec<PodIp> = "podIPs",
        /// Its conditions; `Ready` decides whether it takes traffic.
        conditions: Vec<PodCondition> = "conditions",
    }
    inert: [
        "hostIP", "hostIPs", "message", "reason", "nominatedNodeName", "startTime", "initContainerStatuses",
        "containerStatuses", "ephemeralContainerStatuses", "qosClass", "resize", "resourceClaimStatuses",
        "observedGeneration",
    ];
}

object! {
    /// One address of a Pod.
    pub struct PodIp {
        /// The address.
        ip: IpAddr = "ip",
    }
}

object! {
    /// A condition of a Pod.
    pub struct PodCondition {
        /// Its name.
        kind: String = "type",
        /// `True`, `False` or `Unknown`.
        status: Spanned<String> = "status",
    }
    inert: ["lastProbeTime", "lastTransitionTime", "message", "reason", "observedGeneration"];
}

impl PodSpec {
    /// The identity's name.
    pub fn service_account(&self) -> &str {
        let names = self.service_account_name.iter().chain(&self.service_account_older);
        names.filter_map(|name| name.0.as_ref()).next().map_or("default", |name| &name.0)
    }

    /// If it shares the machine's network, the position of that setting.
    pub fn shares_host_network(&self) -> Option<&Span> {
        self.host_network.as_ref().filter(|shares| shares.value).map(|shares| &shares.span)
    }

    /// The users and groups its programs run as in a cluster: names and values of the fields.
    pub fn accounts(&self) -> impl Iterator<Item = (&'static str, &Spanned<u32>)> {
        let pod = self.security_context.iter().map(|context| (&context.run_as_user, &context.run_as_group));
        let contexts = self.containers.iter().filter_map(|container| container.security_context.as_ref());
        let all = pod.chain(contexts.map(|context| (&context.run_as_user, &context.run_as_group)));
        all.flat_map(|(user, group)| {
            let user = user.iter().map(|user| ("runAsUser", user));
            user.chain(group.iter().map(|group| ("runAsGroup", group)))
        })
    }

    /// The TCP ports of all containers.
    pub fn tcp_ports(&self) -> impl Iterator<Item = &ContainerPort> {
        let tcp = |p: &&ContainerPort| p.protocol.is_none_or(|p| p == TransportProtocol::Tcp);
        self.containers.iter().flat_map(|c| &c.ports).filter(tcp)
    }

    /// The port number that a Service's `targetPort` means for this Pod.
    pub fn target_port(&self, target: &IntOrString) -> Option<u16> {
        match target {
            IntOrString::Port(port) => Some(port.0),
            IntOrString::Name(name) => {
                let named = |p: &&ContainerPort| p.name.as_ref().is_some_and(|n| &*n.0 == name.as_str());
                self.tcp_ports().find(named).map(|p| p.container_port.0)
            }
        }
    }
}

impl PodStatus {
    /// All addresses, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for address in self.pod_ip.into_iter().chain(self.pod_ips.iter().map(|p| p.ip)) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Whether all of its containers have ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether it takes traffic: it is ready, and has not ended (`Succeeded`, `Failed`).
    pub fn is_ready(&self) -> bool {
        !self.has_ended() && self.conditions.iter().any(|c| c.kind == "Ready" && c.status.value == "True")
    }
}
