//! The known annotations and labels (Istio's "Resource Annotations" and "Resource Labels", the Gateway API's labels).

/// A known annotation or label.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The kinds where it has a meaning; empty: all. `Pod` includes Pod templates.
    pub places: &'static [&'static str],
    /// How it is handled.
    pub verdict: Verdict,
    /// Its effect, or what happens instead.
    pub note: &'static str,
}

/// How an annotation or label is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has its effect.
    Honoured,
    /// Only these values have their effect; others get a warning.
    OnlyValues(&'static [&'static str]),
    /// It has no effect yet: a warning.
    NotYet,
    /// There is nothing that it could affect, or users are not meant to set it: a note.
    Inert,
}

const fn known(name: &'static str, places: &'static [&'static str], verdict: Verdict, note: &'static str) -> Known {
    Known { name, places, verdict, note }
}

/// Annotations, by name.
#[rustfmt::skip]
pub const ANNOTATIONS: &[Known] = &[
    known("alpha.istio.io/canonical-serviceaccounts", &["Service"], Verdict::Honoured, "a comma-separated list of further identities that clients accept from the Service's endpoints, in the form of certificates (`spiffe://…`)"),
    known("alpha.istio.io/identity", &["Pod"], Verdict::Inert, "an identity is that of the Pod's service account"),
    known("alpha.istio.io/kubernetes-serviceaccounts", &["Service"], Verdict::Honoured, "a comma-separated list of further service accounts of the Service's namespace that its endpoints may have"),
    known("ambient.istio.io/bypass-inbound-capture", &["Pod"], Verdict::Inert, "there is no ambient mode"),
    known("ambient.istio.io/dns-capture", &["Pod"], Verdict::Inert, "there is no ambient mode"),
    known("ambient.istio.io/redirection", &["Pod"], Verdict::Inert, "there is no ambient mode"),
    known("ambient.istio.io/waypoint-inbound-binding", &["Namespace", "Service", "KubernetesGateway"], Verdict::Inert, "there is no ambient mode"),
    known("ambient.istio.io/xfcc-include-client-identity", &["KubernetesGateway"], Verdict::Inert, "there are no waypoints"),
    known("galley.istio.io/analyze-suppress", &[], Verdict::Honoured, "`analyze` leaves out the codes"),
    known("gateway.istio.io/controller-version", &["KubernetesGateway"], Verdict::Inert, "istiod writes it"),
    known("gateway.istio.io/name-override", &["KubernetesGateway"], Verdict::Honoured, "in a cluster: the name of what is deployed for the Gateway, instead of `NAME-CLASS`"),
    known("gateway.istio.io/service-account", &["KubernetesGateway"], Verdict::Honoured, "in a cluster: a service account of the user for the Pods of the Gateway"),
    known("gateway.networking.k8s.io/bundle-version", &[], Verdict::Inert, "it names the version of the Gateway API"),
    known("gateway.networking.k8s.io/channel", &[], Verdict::Inert, "it names the channel of the Gateway API"),
    known("inject.istio.io/templates", &["Pod"], Verdict::OnlyValues(&["sidecar", "gateway"]), "sidecars have one form"),
    known("install.operator.istio.io/chart-owner", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("install.operator.istio.io/owner-generation", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("install.operator.istio.io/version", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("internal.istio.io/parents", &[], Verdict::Inert, "istiod writes it"),
    known("istio.io/autoRegistrationGroup", &["WorkloadEntry"], Verdict::Honoured, "the control plane writes it for workloads that register themselves"),
    known("istio.io/connect-strategy", &["ServiceEntry"], Verdict::Honoured, "with `RACE_FIRST_TCP_CONNECT` a host with `resolution: DNS` has all of its addresses, of both families, of which the first one to answer is used; of other values only `DEFAULT` has its meaning, and a warning names them"),
    known("istio.io/connectedAt", &["WorkloadEntry"], Verdict::Honoured, "the control plane writes it for workloads that register themselves"),
    known("istio.io/disconnectedAt", &["WorkloadEntry"], Verdict::Honoured, "the control plane writes it for workloads that register themselves"),
    known("istio.io/dry-run", &["AuthorizationPolicy"], Verdict::Honoured, "the policy is logged and counted, and not enforced"),
    known("istio.io/for-service-account", &["ServiceAccount"], Verdict::Inert, "there is no waypoint"),
    known("istio.io/ignore-policy-attachment", &[], Verdict::Inert, "the policies of the Gateway API that it leaves out are not read"),
    known("istio.io/reroute-virtual-interfaces", &["Pod"], Verdict::NotYet, "traffic of virtual interfaces is not captured"),
    known("istio.io/rev", &[], Verdict::Inert, "files are for every revision; a cluster can have several (docs/kubernetes.md)"),
    known("istio.io/use-waypoint-canary-weight", &["Service", "Namespace"], Verdict::Inert, "there is no ambient mode"),
    known("istio.io/workloadController", &["WorkloadEntry"], Verdict::Honoured, "the control plane writes it for workloads that register themselves"),
    known("networking.istio.io/address-type", &["KubernetesGateway"], Verdict::Honoured, "in a cluster: whether the status of the Gateway has the Service's address (`IPAddress`) or its name (`Hostname`)"),
    known("networking.istio.io/exportTo", &["Service"], Verdict::Honoured, "the namespaces that see the Service"),
    known("networking.istio.io/service-type", &["KubernetesGateway"], Verdict::Honoured, "in a cluster: the type of the Service that is deployed for the Gateway; LoadBalancer if not given"),
    known("networking.istio.io/traffic-distribution", &["Service", "ServiceEntry", "Namespace"], Verdict::Honoured, "which endpoints are preferred by their distance; that of a namespace is for its services without one"),
    known("prometheus.istio.io/merge-metrics", &["Pod"], Verdict::Honoured, "whether the agent's page has the program's metrics beside the proxy's, whatever `enablePrometheusMerge` says"),
    known("prometheus.istio.io/scrape-targets", &["Pod"], Verdict::Honoured, "the pages with metrics of several programs, as `PORT:PATH` with commas between, in place of `prometheus.io/port` and `path`; all are on the agent's page"),
    known("proxy.istio.io/config", &["Pod"], Verdict::Honoured, "settings of the Pod's proxy"),
    known("proxy.istio.io/health-checks-enabled", &["WorkloadEntry"], Verdict::Honoured, "with `true` it gets traffic only with the condition `Healthy`"),
    known("proxy.istio.io/overrides", &["Pod"], Verdict::Inert, "the injector writes it"),
    known("readiness.status.sidecar.istio.io/applicationPorts", &["Pod"], Verdict::Inert, "readiness is that of the Pod's own probes"),
    known("readiness.status.sidecar.istio.io/failureThreshold", &["Pod"], Verdict::Inert, "a proxy reports when it is ready"),
    known("readiness.status.sidecar.istio.io/initialDelaySeconds", &["Pod"], Verdict::Inert, "a proxy reports when it is ready"),
    known("readiness.status.sidecar.istio.io/periodSeconds", &["Pod"], Verdict::Inert, "a proxy reports when it is ready"),
    known("sidecar.istio.io/agentLogLevel", &["Pod"], Verdict::Honoured, "the log level of the agent, `LEVEL` or `default:LEVEL`; levels of single components have no effect"),
    known("sidecar.istio.io/bootstrapOverride", &["Pod"], Verdict::NotYet, "the agent writes the bootstrap file; `evenkeel proxy -c FILE` takes any other"),
    known("sidecar.istio.io/componentLogLevel", &["Pod"], Verdict::Honoured, "log levels of an Envoy's components (`COMPONENT:LEVEL`, comma-separated); Evenkeel's proxy has one level"),
    known("sidecar.istio.io/controlPlaneAuthPolicy", &["Pod"], Verdict::Inert, "proxies always use TLS towards the control plane"),
    known("sidecar.istio.io/discoveryAddress", &["Pod"], Verdict::Inert, "proxies ask the control plane that their agent was started with"),
    known("sidecar.istio.io/enableCoreDump", &["Pod"], Verdict::Inert, "the limits of the machine apply"),
    known("sidecar.istio.io/extraStatTags", &["Pod"], Verdict::Honoured, "a comma-separated list of tags that are extracted from names of statistics of the form `TAG=.=VALUE;.;`; they are added to `extraStatTags`"),
    known("sidecar.istio.io/inject", &["Pod"], Verdict::Honoured, "whether the Pod gets a sidecar"),
    known("sidecar.istio.io/interceptionMode", &["Pod"], Verdict::OnlyValues(&["REDIRECT", "TPROXY", "NONE"]), "how connections are captured; with `TPROXY` the program sees its clients' addresses, with `NONE` only connections to ports that the proxy binds pass it"),
    known("sidecar.istio.io/logLevel", &["Pod"], Verdict::Honoured, "the log level of the proxy: trace, debug, info, warning, error, critical or off. Evenkeel's agent and proxy have one log, so it is the agent's level, too"),
    known("sidecar.istio.io/nativeSidecar", &["Pod"], Verdict::Inert, "sidecars start before programs, and end after them"),
    known("sidecar.istio.io/proxyCPU", &["Pod"], Verdict::Inert, "proxies have no resource limits"),
    known("sidecar.istio.io/proxyCPULimit", &["Pod"], Verdict::Inert, "proxies have no resource limits"),
    known("sidecar.istio.io/proxyImage", &["Pod"], Verdict::Inert, "proxies do not come from images"),
    known("sidecar.istio.io/proxyImageType", &["Pod"], Verdict::Inert, "proxies do not come from images"),
    known("sidecar.istio.io/proxyMemory", &["Pod"], Verdict::Inert, "proxies have no resource limits"),
    known("sidecar.istio.io/proxyMemoryLimit", &["Pod"], Verdict::Inert, "proxies have no resource limits"),
    known("sidecar.istio.io/rewriteAppHTTPProbers", &["Pod"], Verdict::Inert, "probes reach programs without their proxy"),
    known("sidecar.istio.io/statsCompression", &["Pod"], Verdict::Inert, "statistics are not compressed"),
    known("sidecar.istio.io/statsEvictionInterval", &["Pod"], Verdict::Inert, "statistics of removed configuration are removed at once"),
    known("sidecar.istio.io/statsHistogramBuckets", &["Pod"], Verdict::Honoured, "upper bounds of histograms' buckets, by prefix of their names: JSON such as `{\"cluster\": [1, 5, 10]}`; the first prefix in alphabetical order that matches applies"),
    known("sidecar.istio.io/statsInclusionPrefixes", &["Pod"], Verdict::Honoured, "a comma-separated list of prefixes of names: the proxy reports these statistics besides Istio's own set; they replace those of `proxyStatsMatcher`"),
    known("sidecar.istio.io/statsInclusionRegexps", &["Pod"], Verdict::Honoured, "a comma-separated list of regular expressions of names: the proxy reports these statistics besides Istio's own set; they replace those of `proxyStatsMatcher`"),
    known("sidecar.istio.io/statsInclusionSuffixes", &["Pod"], Verdict::Honoured, "a comma-separated list of suffixes of names: the proxy reports these statistics besides Istio's own set; they replace those of `proxyStatsMatcher`"),
    known("sidecar.istio.io/status", &["Pod"], Verdict::Inert, "the injector writes it"),
    known("sidecar.istio.io/userVolume", &["Pod"], Verdict::NotYet, "proxies have no volumes; they read the machine's files"),
    known("sidecar.istio.io/userVolumeMount", &["Pod"], Verdict::NotYet, "proxies have no volumes; they read the machine's files"),
    known("status.sidecar.istio.io/port", &["Pod"], Verdict::Honoured, "the port of the agent's page, before `statusPort`; `0`: there is none"),
    known("topology.istio.io/controlPlaneClusters", &["Namespace"], Verdict::Inert, "there is one cluster"),
    known("traffic.sidecar.istio.io/excludeInboundPorts", &["Pod"], Verdict::Honoured, "inbound connections that bypass the proxy"),
    known("traffic.sidecar.istio.io/excludeInterfaces", &["Pod"], Verdict::Honoured, "a comma-separated list of network interfaces whose connections bypass the proxy in either direction"),
    known("traffic.sidecar.istio.io/excludeOutboundIPRanges", &["Pod"], Verdict::Honoured, "outbound connections that bypass the proxy"),
    known("traffic.sidecar.istio.io/excludeOutboundPorts", &["Pod"], Verdict::Honoured, "outbound connections that bypass the proxy"),
    known("traffic.sidecar.istio.io/includeInboundPorts", &["Pod"], Verdict::Honoured, "inbound connections that are captured"),
    known("traffic.sidecar.istio.io/includeOutboundIPRanges", &["Pod"], Verdict::Honoured, "outbound connections that are captured"),
    known("traffic.sidecar.istio.io/includeOutboundPorts", &["Pod"], Verdict::Honoured, "outbound connections that are captured in addition"),
    known("traffic.sidecar.istio.io/kubevirtInterfaces", &["Pod"], Verdict::NotYet, "traffic of virtual interfaces is not captured"),
];

/// Labels, by name.
#[rustfmt::skip]
pub const LABELS: &[Known] = &[
    known("experimental.istio.io/disable-gateway-port-translation", &["Service", "ServiceEntry"], Verdict::Honoured, "with any value: its `targetPort`s do not say on which ports gateways listen"),
    known("gateway.istio.io/managed", &[], Verdict::Inert, "istiod writes it"),
    known("gateway.networking.k8s.io/gateway-class-name", &[], Verdict::Inert, "it names a GatewayClass"),
    known("gateway.networking.k8s.io/gateway-name", &[], Verdict::Honoured, "a label like any other, which selectors match"),
    known("gateway.networking.k8s.io/policy", &[], Verdict::Inert, "it marks definitions of policies"),
    known("install.operator.istio.io/owning-resource", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("install.operator.istio.io/owning-resource-namespace", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("istio-injection", &["Namespace"], Verdict::Honoured, "`disabled`: Pods of the namespace get no sidecar"),
    known("istio-locality", &["Pod"], Verdict::Honoured, "the locality, with dots for slashes, without `topology.istio.io/locality`"),
    known("istio.io/dataplane-mode", &["Namespace", "Pod"], Verdict::OnlyValues(&["none"]), "there is no ambient mode; Pods get sidecars"),
    known("istio.io/gateway-name", &[], Verdict::Honoured, "a label like any other, which selectors match"),
    known("istio.io/global", &["Service"], Verdict::Inert, "there is one cluster"),
    known("istio.io/ingress-use-waypoint", &["Service", "ServiceEntry", "Namespace"], Verdict::Inert, "there is no ambient mode"),
    known("istio.io/persistent-session", &["Service", "ServiceEntry"], Verdict::Honoured, "requests of a session go to the endpoint of the first, which a cookie `NAME` or `NAME:PATH` names; Istio needs `PILOT_ENABLE_PERSISTENT_SESSION_FILTER` for it"),
    known("istio.io/persistent-session-header", &["Service", "ServiceEntry"], Verdict::Honoured, "the same with a header of this name"),
    known("istio.io/rev", &[], Verdict::Inert, "files are for every revision; a cluster can have several (docs/kubernetes.md)"),
    known("istio.io/tag", &[], Verdict::Inert, "files are for every revision; a cluster can have several (docs/kubernetes.md)"),
    known("istio.io/use-waypoint", &[], Verdict::NotYet, "there are no waypoints; what policies for waypoints would judge is refused"),
    known("istio.io/use-waypoint-canary", &[], Verdict::Inert, "there are no waypoints"),
    known("istio.io/use-waypoint-canary-namespace", &[], Verdict::Inert, "there are no waypoints"),
    known("istio.io/use-waypoint-namespace", &[], Verdict::NotYet, "there are no waypoints; what policies for waypoints would judge is refused"),
    known("istio.io/waypoint-for", &["KubernetesGateway"], Verdict::Inert, "there are no waypoints"),
    known("networking.istio.io/enable-autoallocate-ip", &["ServiceEntry"], Verdict::Honoured, "`false`: the ServiceEntry gets no virtual address; otherwise that depends on its resolution and its hosts"),
    known("networking.istio.io/gatewayPort", &["Service"], Verdict::Honoured, "the port of a gateway between networks"),
    known("networking.istio.io/tunnel", &["Pod"], Verdict::Inert, "there is no ambient mode"),
    known("operator.istio.io/component", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("operator.istio.io/managed", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("operator.istio.io/version", &[], Verdict::Inert, "the installer of Istio writes it"),
    known("security.istio.io/tlsMode", &["Pod", "WorkloadEntry"], Verdict::Honoured, "`istio`: clients use mutual TLS towards it"),
    known("service.istio.io/canonical-name", &[], Verdict::Honoured, "a label like any other, which selectors match; metrics are by its value, too"),
    known("service.istio.io/canonical-revision", &[], Verdict::Honoured, "a label like any other, which selectors match; metrics are by its value, too"),
    known("service.istio.io/workload-name", &[], Verdict::Inert, "the name of a workload is that of its owner"),
    known("sidecar.istio.io/inject", &["Pod"], Verdict::Honoured, "whether the Pod gets a sidecar"),
    known("topology.istio.io/cluster", &[], Verdict::Inert, "endpoints have the name of their cluster, whatever their Pods say"),
    known("topology.istio.io/network", &["Namespace", "Pod", "Service", "WorkloadEntry"], Verdict::Honoured, "the network; on a Service: the one that its gateway leads into; on the root namespace: that of the cluster"),
    known("topology.istio.io/subzone", &[], Verdict::Honoured, "part of the locality"),
];
