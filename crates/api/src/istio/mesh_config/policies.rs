//! MeshConfig: defaults for traffic that nothing else decides about.

use evenkeel_base::Spanned;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use super::super::Destination;
use super::super::destination_rule::{ClientTlsSettings, ConnectionPool, OutlierDetection};
use super::super::sidecar::check_egress_proxy;
use super::MeshConfig;
use crate::decode::Context;
use crate::formats;

object! {
    /// How calls of unknown hosts are handled.
    pub struct OutboundTrafficPolicy {
        /// ALLOW_ANY if not given.
        mode: Option<Spanned<MeshOutboundMode>> = "mode",
        /// With ALLOW_ANY, the egress proxy that such calls are sent to. Istio has it in Sidecars only.
        egress_proxy: Option<Spanned<Destination>> = "egressProxy",
        /// With ALLOW_ANY_DYNAMIC_DNS, TLS to the hosts that requests name.
        tls: Option<Spanned<ClientTlsSettings>> = "tls",
    }
    check: check_outbound;
}

choices! {
    /// How calls of unknown hosts are handled.
    pub enum MeshOutboundMode {
        /// Calls pass.
        AllowAny = "ALLOW_ANY",
        /// Calls are refused.
        RegistryOnly = "REGISTRY_ONLY",
        /// Calls pass; HTTP goes to the host that its request names.
        AllowAnyDynamicDns = "ALLOW_ANY_DYNAMIC_DNS",
    }
}

object! {
    /// The address on which programs listen.
    pub struct InboundTrafficPolicy {
        /// PASSTHROUGH if not given.
        mode: Option<InboundTrafficPolicyMode> = "mode",
    }
}

choices! {
    /// The address on which programs listen.
    pub enum InboundTrafficPolicyMode {
        /// The address that was called.
        Passthrough = "PASSTHROUGH",
        /// The loopback address.
        Localhost = "LOCALHOST",
    }
}

object! {
    /// How paths are normalized.
    pub struct PathNormalization {
        /// BASE if not given.
        normalization: Option<Normalization> = "normalization",
    }
}

choices! {
    /// How paths are normalized.
    pub enum Normalization {
        /// As BASE.
        Default = "DEFAULT",
        /// Not at all.
        None = "NONE",
        /// `.` and `..` segments are resolved (RFC 3986 section 6), and `\\` becomes `/`.
        Base = "BASE",
        /// In addition, successive slashes are merged.
        MergeSlashes = "MERGE_SLASHES",
        /// In addition, `%2F` and `%5C` are decoded first.
        DecodeAndMergeSlashes = "DECODE_AND_MERGE_SLASHES",
    }
}

choices! {
    /// The form of access logs.
    pub enum AccessLogEncoding {
        /// Lines of text.
        Text = "TEXT",
        /// One JSON object per line.
        Json = "JSON",
    }
}

choices! {
    /// Whether HTTP/1.1 requests are forwarded over HTTP/2.
    pub enum H2Upgrade {
        /// No.
        DoNotUpgrade = "DO_NOT_UPGRADE",
        /// Yes.
        Upgrade = "UPGRADE",
    }
}

choices! {
    /// Whether Ingress objects are served.
    pub enum IngressControllerMode {
        /// As STRICT.
        Unspecified = "UNSPECIFIED",
        /// None.
        Off = "OFF",
        /// Those of the class, and those without a class.
        Default = "DEFAULT",
        /// Those of the class.
        Strict = "STRICT",
    }
}

object! {
    /// Limits and outlier detection for all services. Fields that a DestinationRule leaves out come from here.
    pub struct DefaultTrafficPolicy {
        /// Limits on connections and requests.
        connection_pool: Option<ConnectionPool> = "connectionPool",
        /// Outlier detection.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
    }
}

object! {
    /// Versions, curves and cipher suites of TLS.
    pub struct TlsConfig {
        /// The oldest version; TLS 1.2 if not given.
        min_protocol_version: Option<MinTlsVersion> = "minProtocolVersion",
        /// Curves for the key exchange, the preferred first.
        ecdh_curves: Vec<Spanned<String>> = "ecdhCurves",
        /// Cipher suites of TLS 1.2 in OpenSSL's spelling.
        cipher_suites: Vec<Spanned<String>> = "cipherSuites",
    }
    check: check_tls;
}

choices! {
    /// The oldest version of TLS.
    pub enum MinTlsVersion {
        /// 1.2
        Auto = "TLS_AUTO",
        /// 1.2
        V1_2 = "TLSV1_2",
        /// 1.3
        V1_3 = "TLSV1_3",
    }
}

/// The curves that Istio allows.
const CURVES: &[&str] = &["P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"];
/// The one of them that proxies cannot use.
const UNUSABLE_CURVE: &str = "P-521";
/// The cipher suites of TLS 1.2 that Istio allows (`pkg/security`, `ValidCipherSuites`).
const CIPHER_SUITES: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];
/// The number of suites that proxies can use: those with forward secrecy and authenticated encryption.
const USABLE_SUITES: usize = 6;

fn check_outbound(policy: &OutboundTrafficPolicy, node: &Node, cx: &mut Context) {
    let mode = policy.mode.as_ref().map_or(MeshOutboundMode::AllowAny, |mode| mode.value);
    if let Some(tls) = &policy.tls {
        if mode != MeshOutboundMode::AllowAnyDynamicDns {
            let message =
                "`tls` needs `mode: ALLOW_ANY_DYNAMIC_DNS`: with other modes proxies make no TLS for unknown hosts";
            cx.error("conflict", &tls.span, message, "write `mode: ALLOW_ANY_DYNAMIC_DNS`, or remove it");
        }
        if let Some(name) = &tls.credential_name {
            let message = "the mesh's settings have no namespace to take a Secret from";
            let help =
                "write `caCertificates`, and for mode MUTUAL `clientCertificate` and `privateKey`: paths of PEM files";
            cx.error("unsupported-value", &name.span, message, help);
        }
    }
    let Some(proxy) = &policy.egress_proxy else { return };
    if mode != MeshOutboundMode::AllowAny {
        let message = "`egressProxy` needs `mode: ALLOW_ANY`: with other modes no traffic passes to the egress proxy";
        cx.error("conflict", node.span_of_path("egressProxy"), message, "write `mode: ALLOW_ANY`, or remove it");
    }
    check_egress_proxy(proxy, cx);
}

fn check_tls(config: &TlsConfig, _: &Node, cx: &mut Context) {
    check_names("ecdhCurves", &config.ecdh_curves, CURVES, cx);
    for (index, curve) in config.ecdh_curves.iter().enumerate().filter(|(_, curve)| curve.as_str() == UNUSABLE_CURVE) {
        let message = "proxies cannot use this curve; it is left out";
        let help = "usable: P-256, P-384, X25519 and X25519MLKEM768";
        cx.at_field("ecdhCurves", |cx| {
            cx.at_index(index, |cx| cx.warning("unsupported-value", &curve.span, message, help));
        });
    }
    check_names("cipherSuites", &config.cipher_suites, CIPHER_SUITES, cx);
    let usable = CIPHER_SUITES.get(..USABLE_SUITES).unwrap_or_default();
    for (index, suite) in config.cipher_suites.iter().enumerate() {
        if CIPHER_SUITES.contains(&suite.as_str()) && !usable.contains(&suite.as_str()) {
            let message =
                format!("`{}` has no forward secrecy or no authenticated encryption; it is not used", suite.value);
            let help = format!("usable: {}", one_of(usable.iter().copied()));
            cx.at_field("cipherSuites", |cx| {
                cx.at_index(index, |cx| cx.warning("unsupported-value", &suite.span, message, help))
            });
        }
    }
    if !config.cipher_suites.is_empty()
        && !config.cipher_suites.iter().any(|suite| usable.contains(&suite.as_str()))
        && let Some(first) = config.cipher_suites.first()
    {
        let help = format!("add one of {}", one_of(usable.iter().copied()));
        cx.at_field("cipherSuites", |cx| cx.error("bad-value", &first.span, "none of these suites can be used", help));
    }
}

fn check_names(field: &str, written: &[Spanned<String>], allowed: &[&str], cx: &mut Context) {
    cx.at_field(field, |cx| {
        for (index, name) in written.iter().enumerate().filter(|(_, name)| !allowed.contains(&name.as_str())) {
            let list = one_of(allowed.iter().copied());
            let help = match closest(name, allowed.iter().copied()) {
                Some(near) => format!("did you mean `{near}`? Allowed: {list}"),
                None => format!("allowed: {list}"),
            };
            let message = format!("`{}` is not allowed here", name.value);
            cx.at_index(index, |cx| cx.error("bad-value", &name.span, message, help));
        }
    });
}

impl TlsConfig {
    /// Whether only TLS 1.3 is accepted.
    pub fn is_1_3_only(&self) -> bool {
        self.min_protocol_version == Some(MinTlsVersion::V1_3)
    }

    /// The curves that can be used.
    pub fn usable_curves(&self) -> impl Iterator<Item = &str> {
        self.ecdh_curves.iter().map(|curve| curve.as_str()).filter(|curve| *curve != UNUSABLE_CURVE)
    }

    /// The cipher suites that can be used.
    pub fn usable_suites(&self) -> impl Iterator<Item = &str> {
        let usable = CIPHER_SUITES.get(..USABLE_SUITES).unwrap_or_default();
        self.cipher_suites.iter().map(|suite| suite.as_str()).filter(move |suite| usable.contains(suite))
    }
}

/// With `accessLogEncoding: JSON` the format is a JSON object. Istio falls back to its own keys if it is not.
pub(super) fn check_access_log(config: &MeshConfig, cx: &mut Context) {
    let Some(format) = config.access_log_format.as_ref().filter(|format| !format.is_empty()) else { return };
    if config.access_log_encoding != Some(AccessLogEncoding::Json) {
        return cx.at_field("accessLogFormat", |cx| {
            formats::check(format, &format.span, "Istio's default format is used", cx);
        });
    }
    cx.at_field("accessLogFormat", |cx| {
        match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(format) {
            Ok(keys) => formats::check_json(&keys.into(), &format.span, "Istio's default keys are used", cx),
            Err(error) => {
                let message = format!("it is not a JSON object ({error}); Istio's default keys are used");
                let help = "write `{\"key\": \"%OPERATOR%\"}`, or `accessLogEncoding: TEXT`";
                cx.warning("bad-value", &format.span, message, help);
            }
        }
    });
}
