//! What Istio's definitions demand of fields beyond their types, and what they let pass that has no meaning here.

use super::adjust::Change::{
    AnyText, AtMostOne, Bounds, Int32, Items, Key, Length, MoreTexts, Nullable, OneOf, Pattern, Properties, Required,
    Rule, Text,
};
use super::adjust::{Change, Demand, Range};

const fn of(kinds: &'static [&'static str], path: &'static str, change: Change) -> Demand {
    Demand { kinds, path, change }
}

const fn at_most(max: u64) -> Range {
    Range { min: None, max: Some(max) }
}

const fn at_least(min: u64) -> Range {
    Range { min: Some(min), max: None }
}

const fn between(min: u64, max: u64) -> Range {
    Range { min: Some(min), max: Some(max) }
}

const fn rule(expression: &'static str, message: &'static str) -> Change {
    Rule { expression, message }
}

const DESTINATION: &[&str] = &["DestinationRule"];
const GATEWAY: &[&str] = &["Gateway"];
const ENTRY: &[&str] = &["ServiceEntry"];
const SIDECAR: &[&str] = &["Sidecar"];
const VIRTUAL: &[&str] = &["VirtualService"];
const GROUP: &[&str] = &["WorkloadGroup"];
const TOKENS: &[&str] = &["RequestAuthentication"];
const AUTHORIZATION: &[&str] = &["AuthorizationPolicy"];
const PEERS: &[&str] = &["PeerAuthentication"];
const TELEMETRY: &[&str] = &["Telemetry"];
const WASM: &[&str] = &["WasmPlugin"];
const POOLS: &[&str] = &["DestinationRule", "Sidecar"];
const SERVERS: &[&str] = &["Gateway", "Sidecar"];
/// Kinds with addresses of workloads.
const ADDRESSES: &[&str] = &["ServiceEntry", "WorkloadEntry", "WorkloadGroup"];
/// Kinds that name workloads by `selector.matchLabels`.
const MATCHING: &[&str] = &[
    "DestinationRule",
    "ProxyConfig",
    "AuthorizationPolicy",
    "PeerAuthentication",
    "RequestAuthentication",
    "Telemetry",
    "WasmPlugin",
    "TrafficExtension",
];
/// Kinds that name workloads by `workloadSelector.labels`.
const SELECTING: &[&str] = &["EnvoyFilter", "ServiceEntry", "Sidecar"];
/// Kinds that name one object that they are for.
const TARGETED: &[&str] = &["AuthorizationPolicy", "RequestAuthentication", "Telemetry", "WasmPlugin"];
/// Kinds that name the objects that they are for.
const TARGETING: &[&str] =
    &["AuthorizationPolicy", "RequestAuthentication", "Telemetry", "WasmPlugin", "EnvoyFilter", "TrafficExtension"];
/// Kinds with `port.number`.
const PORTS: &[&str] = &["DestinationRule", "Gateway", "Sidecar", "VirtualService"];

const UINT32: Change = Bounds { min: Some(0), max: Some(4_294_967_295) };
const NOT_NEGATIVE: Change = Bounds { min: Some(0), max: None };
const PERCENT: Change = Bounds { min: Some(0), max: Some(100) };
const OLD_TLS: Change = MoreTexts(&["TLSV1_0", "TLSV1_1"]);
const NOT_ZERO: Change =
    rule("duration(self) >= duration(\"1ms\")", "a duration of at least 1ms is expected, such as 5s");
const PORT: Change = rule("self >= 1 && self <= 65535", "a port is a number from 1 to 65535");
const OWN_NAMESPACE: Change =
    rule("self == \"\"", "an object of another namespace cannot be named here; leave `namespace` out");
const NO_WILDCARD: Change =
    rule("!self.contains(\"*\")", "values of labels are compared as they are; `*` is no wildcard here");
const WASM_URL: Change = rule(
    "url(isURL(self) ? self : \"http://\" + self).getScheme() in [\"\", \"file\", \"http\", \"https\", \"oci\"]",
    "the scheme of a URL is one of file, http, https, oci",
);
const KEYS_URL: Change =
    rule("url(self).getScheme() in [\"http\", \"https\"]", "a URL with http:// or https:// is expected");

pub(super) const DEMANDS: &[Demand] = &[
    // Required fields, and texts.
    of(DESTINATION, "distribute[]", Required(&[])),
    of(DESTINATION, "failover[]", Required(&[])),
    of(DESTINATION, "portLevelSettings[]", Required(&[])),
    of(DESTINATION, "portLevelSettings[].port", Required(&[])),
    of(DESTINATION, "tunnel.protocol", AnyText),
    of(GATEWAY, "servers[]", Required(&["hosts", "port"])),
    of(SERVERS, "tls.maxProtocolVersion", OLD_TLS),
    of(SERVERS, "tls.minProtocolVersion", OLD_TLS),
    of(ENTRY, ".spec", Required(&["hosts"])),
    of(SIDECAR, "egress[]", Required(&["hosts"])),
    of(SIDECAR, "egress[].port", Required(&[])),
    of(SIDECAR, "ingress[].port", Required(&[])),
    of(SIDECAR, "egressProxy.port", Required(&[])),
    of(VIRTUAL, "delegate", Required(&[])),
    of(VIRTUAL, "mirror.port", Required(&[])),
    of(VIRTUAL, "destination.port", Required(&[])),
    of(VIRTUAL, "uriRegexRewrite", Required(&[])),
    of(VIRTUAL, "tls[]", Required(&["match"])),
    of(VIRTUAL, "tls[].match[]", Required(&["sniHosts"])),
    of(GROUP, "probe.grpc", Required(&[])),
    of(GROUP, "httpHeaders[]", Required(&[])),
    of(GROUP, "httpGet.scheme", AnyText),
    of(AUTHORIZATION, "from[]", Required(&[])),
    of(AUTHORIZATION, "to[]", Required(&[])),
    of(TOKENS, "jwtRules[]", Required(&[])),
    of(TELEMETRY, "formatter", Required(&["value"])),
    of(WASM, ".spec", Required(&["url"])),
    // Numbers.
    of(POOLS, "http.http1MaxPendingRequests", Int32),
    of(POOLS, "http.http2MaxRequests", Int32),
    of(POOLS, "http.maxConcurrentStreams", Int32),
    of(POOLS, "http.maxRequestsPerConnection", Int32),
    of(POOLS, "http.maxRetries", Int32),
    of(POOLS, "tcp.maxConnections", Int32),
    of(POOLS, "tcpKeepalive.probes", UINT32),
    of(DESTINATION, "outlierDetection.maxEjectionPercent", Int32),
    of(DESTINATION, "outlierDetection.minHealthPercent", Int32),
    of(DESTINATION, "outlierDetection.consecutive5xxErrors", UINT32),
    of(DESTINATION, "outlierDetection.consecutiveGatewayErrors", UINT32),
    of(DESTINATION, "outlierDetection.consecutiveLocalOriginFailures", UINT32),
    of(DESTINATION, "outlierDetectionHttpErrorCodes[]", Bounds { min: Some(100), max: Some(599) }),
    of(DESTINATION, "errorUtilizationPenaltyPercent", UINT32),
    of(DESTINATION, "distribute[].to{}", UINT32),
    of(DESTINATION, "retryBudget.minRetryConcurrency", UINT32),
    of(DESTINATION, "retryBudget.percent", PERCENT),
    of(DESTINATION, "warmup.minimumPercent", PERCENT),
    of(DESTINATION, "warmup.aggression", NOT_NEGATIVE),
    of(DESTINATION, "minimumRingSize", NOT_NEGATIVE),
    of(DESTINATION, "maglev.tableSize", NOT_NEGATIVE),
    of(DESTINATION, "zoneAwareLbSetting.minClusterSize", Bounds { min: Some(1), max: Some(4_294_967_295) }),
    of(DESTINATION, "tunnel.targetPort", UINT32),
    of(PORTS, "port.number", UINT32),
    of(GATEWAY, "port.targetPort", UINT32),
    of(ENTRY, "ports[].number", UINT32),
    of(ENTRY, "ports[].targetPort", UINT32),
    of(ADDRESSES, "ports{}", UINT32),
    of(ADDRESSES, ".weight", UINT32),
    of(VIRTUAL, "match[].port", UINT32),
    of(VIRTUAL, "redirect.port", UINT32),
    of(VIRTUAL, "redirect.redirectCode", UINT32),
    of(VIRTUAL, "directResponse.status", UINT32),
    of(VIRTUAL, "mirrorPercent", UINT32),
    of(VIRTUAL, "mirror_percent", UINT32),
    of(VIRTUAL, "abort.httpStatus", Int32),
    of(VIRTUAL, "delay.percent", Int32),
    of(VIRTUAL, "retries.attempts", Int32),
    of(VIRTUAL, "route[].weight", Int32),
    of(GROUP, "grpc.port", UINT32),
    of(GROUP, "httpGet.port", UINT32),
    of(GROUP, "tcpSocket.port", UINT32),
    of(TELEMETRY, "randomSamplingPercentage", PERCENT),
    // How many, and how long.
    of(TARGETING, ".spec.targetRefs", Items(at_most(16))),
    of(AUTHORIZATION, "source.serviceAccounts", Items(at_most(16))),
    of(AUTHORIZATION, "source.notServiceAccounts", Items(at_most(16))),
    of(AUTHORIZATION, "source.serviceAccounts[]", Length(at_most(320))),
    of(AUTHORIZATION, "source.notServiceAccounts[]", Length(at_most(320))),
    of(AUTHORIZATION, ".spec.rules", Items(at_most(512))),
    of(AUTHORIZATION, "rules[].from", Items(at_most(512))),
    of(SERVERS, "tls.credentialNames", Items(between(1, 2))),
    of(SERVERS, "tls.tlsCertificates", Items(between(1, 2))),
    of(DESTINATION, "portLevelSettings", Items(at_most(4096))),
    of(ENTRY, ".spec.hosts", Items(between(1, 256))),
    of(ENTRY, ".spec.addresses", Items(at_most(256))),
    of(ENTRY, ".spec.addresses[]", Length(at_most(64))),
    of(ENTRY, ".spec.ports", Items(at_most(256))),
    of(ENTRY, ".spec.endpoints", Items(at_most(4096))),
    of(ENTRY, "ports[].name", Length(at_most(256))),
    of(ENTRY, "ports[].protocol", Length(at_most(256))),
    of(ENTRY, ".spec.ports", Key("name")),
    of(ENTRY, "endpoints[].address", Length(at_most(256))),
    of(&["WorkloadEntry"], ".spec.address", Length(at_most(256))),
    of(GROUP, "template.address", Length(at_most(256))),
    of(ADDRESSES, ".locality", Length(at_most(2048))),
    of(ADDRESSES, ".network", Length(at_most(2048))),
    of(ADDRESSES, ".serviceAccount", Length(at_most(253))),
    of(ADDRESSES, ".labels", Properties(at_most(256))),
    of(GROUP, "metadata.annotations", Properties(at_most(256))),
    of(ENTRY, "endpoints[].ports", Properties(at_most(128))),
    of(&["WorkloadEntry"], ".spec.ports", Properties(at_most(128))),
    of(GROUP, "template.ports", Properties(at_most(128))),
    of(SELECTING, "workloadSelector.labels", Properties(at_most(256))),
    of(SELECTING, "workloadSelector.labels{}", Length(at_most(63))),
    of(MATCHING, ".matchLabels", Properties(at_most(4096))),
    of(MATCHING, ".matchLabels{}", Length(at_most(63))),
    of(PEERS, ".portLevelMtls", Properties(at_least(1))),
    of(&["ProxyConfig"], "environmentVariables{}", Length(at_most(2048))),
    of(TOKENS, ".spec.jwtRules", Items(at_most(4096))),
    of(TOKENS, "jwtRules[].issuer", Length(at_least(1))),
    of(TOKENS, "jwtRules[].audiences[]", Length(at_least(1))),
    of(TOKENS, "jwtRules[].jwksUri", Length(between(1, 2048))),
    of(TOKENS, "jwtRules[].jwks_uri", Length(between(1, 2048))),
    of(TOKENS, "jwtRules[].fromParams[]", Length(at_least(1))),
    of(TOKENS, "jwtRules[].fromCookies[]", Length(at_least(1))),
    of(TOKENS, "fromHeaders[].name", Length(at_least(1))),
    of(TOKENS, "outputClaimToHeaders[].claim", Length(at_least(1))),
    of(TOKENS, "outputClaimToHeaders[].header", Length(at_least(1))),
    of(TOKENS, "outputClaimToHeaders[].header", Pattern("^[A-Za-z0-9_-]+$")),
    of(TOKENS, "spaceDelimitedClaims", Items(at_most(64))),
    of(TOKENS, "spaceDelimitedClaims[]", Length(at_least(1))),
    of(TELEMETRY, "providers[].name", Length(at_least(1))),
    of(TELEMETRY, "match.customMetric", Length(at_least(1))),
    of(TELEMETRY, "customTags{}.environment.name", Length(at_least(1))),
    of(TELEMETRY, "customTags{}.header.name", Length(at_least(1))),
    of(TELEMETRY, "customTags{}.literal.value", Length(at_least(1))),
    of(GROUP, "exec.command[]", Length(at_least(1))),
    of(GROUP, "httpHeaders[].name", Pattern("^[A-Za-z0-9_-]+$")),
    of(TARGETED, ".targetRef.kind", Length(between(1, 63))),
    of(TARGETED, ".targetRef.name", Length(between(1, 253))),
    of(TARGETED, ".targetRef.group", Length(at_most(253))),
    of(TARGETING, ".targetRefs[].kind", Length(between(1, 63))),
    of(TARGETING, ".targetRefs[].name", Length(between(1, 253))),
    of(TARGETING, ".targetRefs[].group", Length(at_most(253))),
    of(TARGETED, ".targetRef.kind", KIND_NAME),
    of(TARGETING, ".targetRefs[].kind", KIND_NAME),
    of(TARGETED, ".targetRef.group", GROUP_NAME),
    of(TARGETING, ".targetRefs[].group", GROUP_NAME),
    of(WASM, ".spec.url", Length(at_least(1))),
    of(WASM, ".spec.pluginName", Length(between(1, 256))),
    of(WASM, ".spec.imagePullSecret", Length(between(1, 253))),
    of(WASM, ".spec.sha256", Pattern("^([0-9a-f]{64})?$")),
    // Fields of which one is there.
    of(VIRTUAL, "allowOrigins[]", STRING_MATCH),
    of(VIRTUAL, "match[].authority", STRING_MATCH),
    of(VIRTUAL, "match[].method", STRING_MATCH),
    of(VIRTUAL, "match[].scheme", STRING_MATCH),
    of(VIRTUAL, "match[].uri", STRING_MATCH),
    of(VIRTUAL, "match[].headers{}", STRING_MATCH),
    of(VIRTUAL, "match[].queryParams{}", STRING_MATCH),
    of(VIRTUAL, "match[].withoutHeaders{}", STRING_MATCH),
    of(VIRTUAL, "fault.delay", OneOf(&["fixedDelay", "exponentialDelay"])),
    of(VIRTUAL, "fault.abort", OneOf(&["httpStatus", "grpcStatus", "http2Error"])),
    of(VIRTUAL, "http[].redirect", OneOf(&["port", "derivePort"])),
    of(VIRTUAL, "directResponse.body", OneOf(&["string", "bytes"])),
    of(DESTINATION, ".loadBalancer", OneOf(&["simple", "consistentHash", "backendUtilization"])),
    of(GROUP, ".spec.probe", OneOf(&["httpGet", "tcpSocket", "exec", "grpc"])),
    of(TELEMETRY, "customTags{}", OneOf(&["literal", "environment", "header", "formatter"])),
    of(TELEMETRY, "overrides[].match", OneOf(&["metric", "customMetric"])),
    of(&["TrafficExtension"], ".spec", OneOf(&["wasm", "lua"])),
    of(&["TrafficExtension"], ".spec", rule("has(self.wasm) || has(self.lua)", "set one of wasm, lua")),
    of(TARGETED, ".spec", AtMostOne(&["selector", "targetRef", "targetRefs"])),
    of(&["TrafficExtension"], ".spec", AtMostOne(&["selector", "targetRefs"])),
    of(&["EnvoyFilter"], ".spec", AtMostOne(&["workloadSelector", "targetRefs"])),
    of(ENTRY, ".spec", AtMostOne(&["workloadSelector", "endpoints"])),
    of(SERVERS, "[].tls", AtMostOne(&["credentialName", "credentialNames", "tlsCertificates"])),
    of(TOKENS, "jwtRules[]", AtMostOne(&["jwks", "jwksUri", "jwks_uri"])),
    // `null` where a wrapped value of protobuf stands.
    of(DESTINATION, "localityLbSetting.enabled", Nullable),
    of(DESTINATION, "outlierDetection.consecutive5xxErrors", Nullable),
    of(DESTINATION, "outlierDetection.consecutiveGatewayErrors", Nullable),
    of(DESTINATION, "outlierDetection.consecutiveLocalOriginFailures", Nullable),
    of(DESTINATION, "retryBudget.percent", Nullable),
    of(DESTINATION, "warmup.aggression", Nullable),
    of(DESTINATION, "warmup.minimumPercent", Nullable),
    of(DESTINATION, "zoneAwareLbSetting.enabled", Nullable),
    of(DESTINATION, "zoneAwareLbSetting.minClusterSize", Nullable),
    of(&["DestinationRule", "Gateway", "Sidecar"], "tls.insecureSkipVerify", Nullable),
    of(&["ProxyConfig"], ".spec.concurrency", Nullable),
    of(VIRTUAL, "corsPolicy.allowCredentials", Nullable),
    of(VIRTUAL, "mirrorPercent", Nullable),
    of(VIRTUAL, "mirror_percent", Nullable),
    of(VIRTUAL, "retries.retryIgnorePreviousHosts", Nullable),
    of(VIRTUAL, "retries.retryRemoteLocalities", Nullable),
    of(TELEMETRY, "accessLogging[].disabled", Nullable),
    of(TELEMETRY, "overrides[].disabled", Nullable),
    of(TELEMETRY, "disableContextPropagation", Nullable),
    of(TELEMETRY, "disableSpanReporting", Nullable),
    of(TELEMETRY, "enableIstioTags", Nullable),
    of(TELEMETRY, "randomSamplingPercentage", Nullable),
    of(TELEMETRY, "useRequestIdForTraceSampling", Nullable),
    // Durations.
    of(POOLS, "http2KeepAlive.interval", NOT_ZERO),
    of(POOLS, "http2KeepAlive.timeout", NOT_ZERO),
    of(POOLS, "http.idleTimeout", NOT_ZERO),
    of(POOLS, "tcp.connectTimeout", NOT_ZERO),
    of(POOLS, "tcp.maxConnectionDuration", NOT_ZERO),
    of(POOLS, "tcpKeepalive.interval", NOT_ZERO),
    of(POOLS, "tcpKeepalive.time", NOT_ZERO),
    of(DESTINATION, "warmup.duration", NOT_ZERO),
    of(DESTINATION, "warmupDurationSecs", NOT_ZERO),
    of(DESTINATION, "outlierDetection.baseEjectionTime", NOT_ZERO),
    of(DESTINATION, "outlierDetection.interval", NOT_ZERO),
    of(VIRTUAL, "corsPolicy.maxAge", NOT_ZERO),
    of(VIRTUAL, "delay.exponentialDelay", Text),
    of(VIRTUAL, "delay.exponentialDelay", NOT_ZERO),
    of(VIRTUAL, "delay.fixedDelay", NOT_ZERO),
    of(VIRTUAL, "retries.backoff", NOT_ZERO),
    of(VIRTUAL, "retries.perTryTimeout", NOT_ZERO),
    of(VIRTUAL, "http[].timeout", NOT_ZERO),
    of(TOKENS, "jwtRules[].timeout", NOT_ZERO),
    of(TELEMETRY, "reportingInterval", NOT_ZERO),
    // Rules.
    of(MATCHING, ".matchLabels", rule("self.all(name, name != \"\")", "a label has a name")),
    of(
        MATCHING,
        ".matchLabels",
        rule(
            "self.all(name, !name.contains(\"*\"))",
            "names of labels are compared as they are; `*` is no wildcard here",
        ),
    ),
    of(MATCHING, ".matchLabels{}", NO_WILDCARD),
    of(SELECTING, "workloadSelector.labels{}", NO_WILDCARD),
    of(TARGETED, ".targetRef.namespace", OWN_NAMESPACE),
    of(TARGETING, ".targetRefs[].namespace", OWN_NAMESPACE),
    of(WASM, ".spec.url", WASM_URL),
    of(TOKENS, "jwtRules[].jwksUri", KEYS_URL),
    of(TOKENS, "jwtRules[].jwks_uri", KEYS_URL),
    of(
        ENTRY,
        ".spec.hosts[]",
        rule("self != \"*\"", "a host is a name or has a wildcard as its first label, such as *.example.com"),
    ),
    of(
        ENTRY,
        ".spec.ports",
        rule("self.all(port, self.exists_one(other, other.number == port.number))", "two ports have one number"),
    ),
    of(
        ENTRY,
        ".spec",
        rule(
            "!has(self.addresses) || self.addresses.all(address, !address.contains(\"/\")) || !has(self.resolution) || self.resolution in [\"NONE\", \"STATIC\"]",
            "ranges of addresses need `resolution` NONE or STATIC",
        ),
    ),
    of(
        ENTRY,
        ".spec",
        rule(
            "!has(self.endpoints) || (has(self.resolution) && self.resolution != \"NONE\")",
            "endpoints need a `resolution` other than NONE",
        ),
    ),
    of(
        ENTRY,
        ".spec",
        rule(
            "!has(self.resolution) || self.resolution != \"DNS_ROUND_ROBIN\" || !has(self.endpoints) || self.endpoints.size() <= 1",
            "`resolution` DNS_ROUND_ROBIN has at most one endpoint",
        ),
    ),
    of(ENTRY, "ports[].number", PORT),
    of(ENTRY, "ports[].targetPort", PORT),
    of(ADDRESSES, "ports{}", PORT),
    of(GROUP, "grpc.port", PORT),
    of(GROUP, "httpGet.port", PORT),
    of(GROUP, "tcpSocket.port", PORT),
    of(GROUP, "httpGet.scheme", rule("self in [\"\", \"HTTP\", \"HTTPS\"]", "the scheme is HTTP or HTTPS")),
    of(ENTRY, ".spec.endpoints[]", HAS_ADDRESS),
    of(&["WorkloadEntry"], ".spec", HAS_ADDRESS),
    of(ENTRY, ".spec.endpoints[]", SOCKET_HAS_NO_PORTS),
    of(&["WorkloadEntry"], ".spec", SOCKET_HAS_NO_PORTS),
    of(GROUP, ".spec.template", SOCKET_HAS_NO_PORTS),
    of(ENTRY, "endpoints[].address", SOCKET_PATH),
    of(&["WorkloadEntry"], ".spec.address", SOCKET_PATH),
    of(GROUP, "template.address", SOCKET_PATH),
    of(ENTRY, "endpoints[].ports", PORT_NAMES),
    of(&["WorkloadEntry"], ".spec.ports", PORT_NAMES),
    of(GROUP, "template.ports", PORT_NAMES),
    of(
        AUTHORIZATION,
        "from[].source",
        rule(
            "(!has(self.serviceAccounts) && !has(self.notServiceAccounts)) || (!has(self.principals) && !has(self.notPrincipals) && !has(self.namespaces) && !has(self.notNamespaces))",
            "service accounts cannot stand beside principals or namespaces",
        ),
    ),
    of(
        PEERS,
        ".spec",
        rule(
            "!has(self.portLevelMtls) || (has(self.selector) && has(self.selector.matchLabels) && self.selector.matchLabels.size() > 0)",
            "`portLevelMtls` needs a `selector` with labels",
        ),
    ),
    of(
        PEERS,
        ".portLevelMtls",
        rule("self.all(port, int(port) >= 1 && int(port) <= 65535)", "a port is a number from 1 to 65535"),
    ),
    of(
        TELEMETRY,
        "tagOverrides{}",
        rule(
            "!has(self.operation) || self.operation != \"UPSERT\" || (has(self.value) && self.value != \"\")",
            "UPSERT needs a `value`",
        ),
    ),
    of(
        TELEMETRY,
        "tagOverrides{}",
        rule("!has(self.operation) || self.operation != \"REMOVE\" || !has(self.value)", "REMOVE has no `value`"),
    ),
];

const STRING_MATCH: Change = OneOf(&["exact", "prefix", "regex"]);
const KIND_NAME: Change = Pattern("^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$");
const GROUP_NAME: Change = Pattern("^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$");
const HAS_ADDRESS: Change = rule("has(self.address) || has(self.network)", "an `address` is expected, or a `network`");
const SOCKET_HAS_NO_PORTS: Change = rule(
    "!has(self.ports) || !has(self.address) || !self.address.startsWith(\"unix://\")",
    "a Unix socket has no ports",
);
const SOCKET_PATH: Change = rule(
    "!self.startsWith(\"unix://\") || ((self.startsWith(\"unix:///\") || self.startsWith(\"unix://@\")) && !self.endsWith(\"/\"))",
    "the address of a Unix socket is unix:///PATH or unix://@NAME",
);
const PORT_NAMES: Change = rule(
    "self.all(name, size(name) < 63 && name.matches(\"^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$\"))",
    "the name of a port has letters, digits and `-`, at most 62 characters",
);
