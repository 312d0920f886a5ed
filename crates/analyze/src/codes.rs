//! Istio's message codes, and the findings that correspond to them
//! (<https://istio.io/latest/docs/reference/config/analysis/>).

use evenkeel_base::{Diagnostic, Severity};

use Severity::{Error, Info, Warning};

/// One of Istio's message codes.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// `IST0101`.
    pub code: &'static str,
    /// `ReferencedResourceNotFound`.
    pub name: &'static str,
    /// Istio's level.
    pub level: Severity,
    /// The findings that it is.
    pub found_as: FoundAs,
}

/// Which findings a code is.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundAs {
    /// These codes, each about these kinds (none given: any).
    Codes(&'static [(&'static str, &'static [&'static str])]),
    /// Errors of reading a document that have no code of their own.
    Refusals,
    /// Warnings of reading a document that have no code of their own.
    Reservations,
    /// No finding, for this reason.
    NotApplicable(&'static str),
}

use FoundAs::{Codes, NotApplicable, Refusals, Reservations};

const fn code(code: &'static str, name: &'static str, level: Severity, found_as: FoundAs) -> Code {
    Code { code, name, level, found_as }
}

const ENVOY_FILTER: FoundAs = NotApplicable(
    "EnvoyFilter does not work here; the finding `unsupported-kind` says so, and what it protects is closed",
);
const INJECTION: FoundAs =
    NotApplicable("there is no injection webhook: every workload has a sidecar unless it says otherwise");
const INSTALLATION: FoundAs = NotApplicable("it is about an Istio installation in a cluster");

/// All codes, in order.
pub const ALL: &[Code] = &[
    code("IST0001", "InternalError", Error, NotApplicable("a bug ends the program with a message")),
    code("IST0002", "Deprecated", Warning, NotApplicable("nothing that works here is deprecated")),
    code(
        "IST0101",
        "ReferencedResourceNotFound",
        Error,
        Codes(&[
            ("missing-service", &["VirtualService", "Sidecar", "HTTPRoute", "Ingress"]),
            ("missing-subset", &[]),
            ("missing-port", &[]),
            ("missing-gateway", &[]),
            ("missing-secret", &[]),
            ("missing-delegate", &[]),
            ("selects-nothing", &["Gateway"]),
        ]),
    ),
    code("IST0102", "NamespaceNotInjected", Info, INJECTION),
    code("IST0103", "PodMissingProxy", Warning, INJECTION),
    code("IST0106", "SchemaValidationError", Error, Refusals),
    code("IST0107", "MisplacedAnnotation", Warning, Codes(&[("misplaced-annotation", &[])])),
    code("IST0108", "UnknownAnnotation", Warning, Codes(&[("unknown-annotation", &[])])),
    code(
        "IST0109",
        "ConflictingMeshGatewayVirtualServiceHosts",
        Error,
        Codes(&[("duplicate-host", &["VirtualService"])]),
    ),
    code("IST0110", "ConflictingSidecarWorkloadSelectors", Error, Codes(&[("same-workloads", &["Sidecar"])])),
    code("IST0111", "MultipleSidecarsWithoutWorkloadSelectors", Error, Codes(&[("overridden", &["Sidecar"])])),
    code("IST0112", "VirtualServiceDestinationPortSelectorRequired", Error, Codes(&[("ambiguous-port", &[])])),
    code("IST0113", "MTLSPolicyConflict", Error, Codes(&[("mtls-conflict", &[])])),
    code("IST0116", "DeploymentAssociatedToMultipleServices", Warning, Codes(&[("protocol-conflict", &[])])),
    code("IST0118", "PortNameIsNotUnderNamingConvention", Info, Codes(&[("port-name", &[])])),
    code(
        "IST0119",
        "JwtFailureDueToInvalidServicePortPrefix",
        Warning,
        NotApplicable("tokens are verified on every HTTP port, including ports whose protocol is detected"),
    ),
    code("IST0122", "InvalidRegexp", Warning, Codes(&[("bad-regex", &[])])),
    code("IST0123", "NamespaceMultipleInjectionLabels", Warning, Codes(&[("two-injection-labels", &[])])),
    code("IST0125", "InvalidAnnotation", Warning, NotApplicable("a bad value of an annotation is `bad-value`")),
    code("IST0126", "UnknownMeshNetworksServiceRegistry", Error, NotApplicable("there are no mesh networks")),
    code(
        "IST0127",
        "NoMatchingWorkloadsFound",
        Warning,
        Codes(&[(
            "selects-nothing",
            &[
                "AuthorizationPolicy",
                "PeerAuthentication",
                "RequestAuthentication",
                "Sidecar",
                "Telemetry",
                "ServiceEntry",
                "Service",
                "WorkloadGroup",
            ],
        )]),
    ),
    code(
        "IST0128",
        "NoServerCertificateVerificationDestinationLevel",
        Warning,
        NotApplicable("without caCertificates the system's roots verify the server"),
    ),
    code(
        "IST0129",
        "NoServerCertificateVerificationPortLevel",
        Warning,
        NotApplicable("without caCertificates the system's roots verify the server"),
    ),
    code(
        "IST0130",
        "VirtualServiceUnreachableRule",
        Warning,
        Codes(&[("unreachable-route", &[]), ("duplicate-rule", &[])]),
    ),
    code("IST0131", "VirtualServiceIneffectiveMatch", Info, Codes(&[("duplicate-match", &[])])),
    code("IST0132", "VirtualServiceHostNotFoundInGateway", Warning, Codes(&[("host-not-served", &[])])),
    code("IST0133", "SchemaWarning", Warning, Reservations),
    code("IST0134", "ServiceEntryAddressesRequired", Warning, Codes(&[("address-required", &[])])),
    code("IST0135", "DeprecatedAnnotation", Info, NotApplicable("nothing that works here is deprecated")),
    code(
        "IST0136",
        "AlphaAnnotation",
        Info,
        NotApplicable("an annotation works here or is named in a finding; its stage in Istio makes no difference"),
    ),
    code("IST0137", "DeploymentConflictingPorts", Warning, Codes(&[("target-port-conflict", &[])])),
    code("IST0138", "GatewayDuplicateCertificate", Warning, Codes(&[("duplicate-certificate", &[])])),
    code("IST0139", "InvalidWebhook", Error, INSTALLATION),
    code("IST0140", "IngressRouteRulesNotAffected", Warning, Codes(&[("subset-without-effect", &[])])),
    code("IST0141", "InsufficientPermissions", Error, INSTALLATION),
    code("IST0142", "UnsupportedKubernetesVersion", Error, INSTALLATION),
    code(
        "IST0143",
        "LocalhostListener",
        Error,
        NotApplicable("the addresses that a program listens on are not in its manifest"),
    ),
    code("IST0144", "InvalidApplicationUID", Warning, Codes(&[("reserved-uid", &[])])),
    code(
        "IST0145",
        "ConflictingGateways",
        Error,
        Codes(&[("duplicate-host", &["Gateway"]), ("port-conflict", &["Gateway"])]),
    ),
    code("IST0146", "ImageAutoWithoutInjectionWarning", Warning, INJECTION),
    code("IST0147", "ImageAutoWithoutInjectionError", Error, INJECTION),
    code("IST0148", "NamespaceInjectionEnabledByDefault", Info, INJECTION),
    code("IST0149", "JwtClaimBasedRoutingWithoutRequestAuthN", Error, Codes(&[("claims-without-tokens", &[])])),
    code("IST0150", "ExternalNameServiceTypeInvalidPortName", Warning, Codes(&[("external-name-port", &[])])),
    code("IST0151", "EnvoyFilterUsesRelativeOperation", Warning, ENVOY_FILTER),
    code("IST0152", "EnvoyFilterUsesReplaceOperationIncorrectly", Error, ENVOY_FILTER),
    code("IST0153", "EnvoyFilterUsesAddOperationIncorrectly", Error, ENVOY_FILTER),
    code("IST0154", "EnvoyFilterUsesRemoveOperationIncorrectly", Error, ENVOY_FILTER),
    code("IST0155", "EnvoyFilterUsesRelativeOperationWithProxyVersion", Warning, ENVOY_FILTER),
    code(
        "IST0156",
        "UnsupportedGatewayAPIVersion",
        Error,
        NotApplicable("no CRDs are installed; an unknown version of a kind is `unknown-version`"),
    ),
    code("IST0157", "InvalidTelemetryProvider", Warning, Codes(&[("unsupported-provider", &["Telemetry"])])),
    code("IST0158", "PodsIstioProxyImageMismatchInNamespace", Warning, INJECTION),
    code(
        "IST0159",
        "ConflictingTelemetryWorkloadSelectors",
        Error,
        NotApplicable("all Telemetry objects that select a workload apply to it, as in Istio"),
    ),
    code("IST0160", "MultipleTelemetriesWithoutWorkloadSelectors", Error, Codes(&[("overridden", &["Telemetry"])])),
    code(
        "IST0161",
        "InvalidGatewayCredential",
        Error,
        Codes(&[("bad-credential", &[]), ("refused-by-proxy", &["Gateway"])]),
    ),
    code("IST0162", "GatewayPortNotDefinedOnService", Warning, Codes(&[("port-not-exposed", &[])])),
    code("IST0163", "InvalidExternalControlPlaneConfig", Warning, INSTALLATION),
    code("IST0164", "ExternalControlPlaneAddressIsNotAHostname", Info, INSTALLATION),
    code(
        "IST0165",
        "MultiClusterInconsistentService",
        Warning,
        NotApplicable("the Services of several clusters are not compared"),
    ),
    code(
        "IST0166",
        "IneffectiveSelector",
        Warning,
        NotApplicable("it is about policies for gateways of the Gateway API, which do not work here yet"),
    ),
    code("IST0167", "IneffectivePolicy", Warning, NotApplicable("there is no ambient mode")),
    code("IST0173", "DestinationRuleSubsetNotSelectPods", Error, Codes(&[("selects-nothing", &["DestinationRule"])])),
    code("IST0174", "UnknownDestinationRuleHost", Warning, Codes(&[("missing-service", &["DestinationRule"])])),
    code("IST0176", "GatewayAPICRDVersionBelowMinimum", Warning, Codes(&[("unread-version", &[])])),
    code("IST0177", "ConflictingServiceEntryProtocol", Warning, Codes(&[("conflicting-protocol", &[])])),
];

/// Findings for which Istio has no code, because they do not concern an object's schema.
const NO_CODE: &[&str] = &[
    "unreadable-file",
    "file-not-read",
    "recalled",
    "no-files",
    "foreign-kind",
    "no-kubernetes-object",
    "unsupported-kind",
    "unread-kind",
    "unread-fields",
    "absent-fields",
    "duplicate-object",
    "overruled-object",
    "merged",
    "overridden",
    "duplicate-host",
    "address-conflict",
    "port-conflict",
    "alone",
    "closed",
    "no-effect",
    "not-captured",
    "refused-by-proxy",
    "missing-service",
    "selects-nothing",
];

/// Istio's code for a finding, if it has one.
pub fn of(finding: &Diagnostic) -> Option<&'static Code> {
    let kind = finding.object.as_ref().map(|object| object.kind);
    let named = ALL.iter().find(|code| match &code.found_as {
        Codes(codes) => codes.iter().any(|(code, kinds)| {
            *code == finding.code && (kinds.is_empty() || kind.is_some_and(|kind| kinds.contains(&kind)))
        }),
        Refusals | Reservations | NotApplicable(_) => false,
    });
    let by_severity = || {
        let wanted = match finding.severity {
            _ if NO_CODE.contains(&finding.code) => return None,
            Error => &Refusals,
            Warning => &Reservations,
            Info => return None,
        };
        ALL.iter().find(|code| code.found_as == *wanted)
    };
    named.or_else(by_severity)
}

impl Code {
    /// Istio's page about it.
    pub fn url(&self) -> String {
        format!("https://istio.io/latest/docs/reference/config/analysis/{}/", self.code.to_ascii_lowercase())
    }
}

/// `Error`, `Warning` or `Info`, as istioctl writes levels.
pub fn level(severity: Severity) -> &'static str {
    match severity {
        Error => "Error",
        Warning => "Warning",
        Info => "Info",
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::workspace;

    use super::*;

    #[test]
    fn codes_are_in_order() {
        assert!(ALL.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    /// A code that was renamed elsewhere would get the code of all other findings.
    #[test]
    fn codes_of_findings_exist() {
        let crates = workspace::root().join("crates");
        let folders =
            ["api/src", "analyze/src/checks", "base/src", "control/src", "evenkeel/src", "model/src", "translate/src"];
        let sources = folders.iter().flat_map(|folder| workspace::sources(&crates.join(folder)));
        let text: String = sources.map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
        let named = ALL.iter().flat_map(|code| match &code.found_as {
            Codes(codes) => codes.iter().map(|(code, _)| *code).collect(),
            Refusals | Reservations | NotApplicable(_) => Vec::new(),
        });
        let unknown: Vec<_> =
            named.chain(NO_CODE.iter().copied()).filter(|code| !text.contains(&format!("\"{code}\""))).collect();
        assert!(unknown.is_empty(), "no finding has these codes: {unknown:?}");
    }

    /// The table in docs/analyze.md is this one.
    #[test]
    fn the_documentation_has_the_table() {
        let row = |code: &Code| {
            let found_as = match &code.found_as {
                Codes(codes) => {
                    let one = |(code, kinds): &(&str, &[&str])| match kinds {
                        [] => format!("`{code}`"),
                        kinds => format!("`{code}` ({})", kinds.join(", ")),
                    };
                    codes.iter().map(one).collect::<Vec<_>>().join(", ")
                }
                Refusals => "every other error in a document".to_owned(),
                Reservations => "every other warning about a document".to_owned(),
                NotApplicable(reason) => format!("–: {reason}"),
            };
            format!("| {} | {} | {} | {found_as} |", code.code, code.name, level(code.level))
        };
        let wanted: Vec<String> = ALL.iter().map(row).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/analyze.md");
        let text = std::fs::read_to_string(path).expect("the page");
        let has: Vec<&str> = text.lines().filter(|line| line.starts_with("| IST")).collect();
        assert_eq!(has, wanted, "write this into docs/analyze.md:\n{}", wanted.join("\n"));
    }
}
