//! The TLS settings of a server, and the combinations that are valid (Istio's `validateTLSOptions`).

use evenkeel_base::Spanned;
use evenkeel_base::suggest::one_of;
use evenkeel_base::yaml::Node;

use crate::decode::Context;

object! {
    /// TLS of a server.
    #[derive(Default)]
    pub struct ServerTlsSettings {
        /// Answer plain HTTP with a redirect to HTTPS.
        https_redirect: bool = "httpsRedirect",
        /// The TLS mode; PASSTHROUGH if not given.
        mode: Option<ServerTlsMode> = "mode",
        /// Path of the certificate chain.
        server_certificate: Option<String> = "serverCertificate",
        /// Path of the key.
        private_key: Option<String> = "privateKey",
        /// Path of the roots that client certificates are verified with.
        ca_certificates: Option<String> = "caCertificates",
        /// Path of revocation lists for client certificates.
        ca_crl: Option<String> = "caCrl",
        /// Several certificates in files; at most two, with keys of different kinds.
        tls_certificates: Vec<Spanned<ServerTlsCertificate>> = "tlsCertificates",
        /// The Secret with the certificate, and with the roots for clients.
        credential_name: Option<Spanned<String>> = "credentialName",
        /// Several of them; at most two, with keys of different kinds.
        credential_names: Vec<Spanned<String>> = "credentialNames",
        /// The Secret with the roots for clients, if it is another one.
        ca_cert_credential_name: Option<Spanned<String>> = "caCertCredentialName",
        /// Names, one of which a client's certificate must have.
        subject_alt_names: Vec<String> = "subjectAltNames",
        /// SHA-256 hashes of accepted clients' keys (SPKI), in base64.
        verify_certificate_spki: Vec<Spanned<String>> = "verifyCertificateSpki",
        /// SHA-256 hashes of accepted clients' certificates, in hexadecimal.
        verify_certificate_hash: Vec<Spanned<String>> = "verifyCertificateHash",
        /// Lowest version.
        min_protocol_version: Option<Spanned<TlsProtocol>> = "minProtocolVersion",
        /// Highest version.
        max_protocol_version: Option<Spanned<TlsProtocol>> = "maxProtocolVersion",
        /// TLS 1.2 cipher suites.
        cipher_suites: Vec<Spanned<String>> = "cipherSuites",
        /// Groups for the key exchange.
        ecdh_curves: Vec<Spanned<String>> = "ecdhCurves",
        /// Protocols that are offered inside TLS (ALPN), preferred first; for HTTP `h2` and `http/1.1` if not given.
        alpn_protocols: Vec<Spanned<String>> = "alpnProtocols",
    }
    refused: ["insecureSkipVerify"];
}

object! {
    /// A certificate in files.
    pub struct ServerTlsCertificate {
        /// Path of the certificate chain.
        server_certificate: Option<String> = "serverCertificate",
        /// Path of the key.
        private_key: Option<String> = "privateKey",
        /// Path of the roots that client certificates are verified with.
        ca_certificates: Option<String> = "caCertificates",
    }
}

choices! {
    /// How a server handles TLS.
    pub enum ServerTlsMode {
        /// Passes TLS on unread.
        Passthrough = "PASSTHROUGH",
        /// Presents a certificate.
        Simple = "SIMPLE",
        /// Mutual TLS: both sides present certificates.
        Mutual = "MUTUAL",
        /// Mutual TLS, where the client may come without a certificate.
        OptionalMutual = "OPTIONAL_MUTUAL",
        /// Mutual TLS with the mesh's certificates.
        IstioMutual = "ISTIO_MUTUAL",
        /// Passes TLS on unread, to the service named by the SNI in the mesh's form.
        AutoPassthrough = "AUTO_PASSTHROUGH",
    }
}

choices! {
    /// Versions of TLS.
    pub enum TlsProtocol {
        /// The default.
        Auto = "TLS_AUTO",
        /// 1.2
        V1_2 = "TLSV1_2",
        /// 1.3
        V1_3 = "TLSV1_3",
    }
    later: ["TLSV1_0", "TLSV1_1"];
}

/// Maximum number of certificates of a server: one for each kind of key that clients support, RSA and ECDSA.
const MAX_CERTIFICATES: usize = 2;

/// The cipher suites of TLS 1.2 that Envoy and rustls have.
const CIPHER_SUITES: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
];
/// Suites that only Envoy supports: they lack forward secrecy or authenticated encryption.
const OUTDATED_SUITES: &[&str] = &[
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
/// The curves that Envoy and rustls have.
const CURVES: &[&str] = &["X25519MLKEM768", "X25519", "P-256", "P-384"];
/// The curve that only Envoy supports.
const ENVOYS_CURVE: &str = "P-521";

/// Checks the TLS settings of a server that uses TLS.
pub(super) fn check_server_tls(tls: &ServerTlsSettings, node: &Node, cx: &mut Context) {
    if tls.https_redirect {
        let span = node.span_of_path("httpsRedirect");
        let message = "`httpsRedirect` has no effect on a server that serves TLS itself";
        cx.warning("no-effect", span, message, "move it to the server with protocol HTTP");
    }
    let mode = tls.mode.unwrap_or(ServerTlsMode::Passthrough);
    match mode {
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => note_unused(tls, mode, node, cx),
        ServerTlsMode::IstioMutual => refuse_certificates(tls, node, cx),
        ServerTlsMode::Simple => {
            check_certificates(tls, mode, node, cx);
            note_unchecked(tls, node, cx);
        }
        ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual => check_certificates(tls, mode, node, cx),
    }
    check_versions(tls, cx);
    check_names("cipherSuites", &tls.cipher_suites, CIPHER_SUITES, OUTDATED_SUITES, cx);
    check_names("ecdhCurves", &tls.ecdh_curves, CURVES, &[ENVOYS_CURVE], cx);
    check_pins(tls, cx);
    check_alpn(tls, cx);
}

/// RFC 7301 section 3.1: a name has 1 to 255 bytes.
fn check_alpn(tls: &ServerTlsSettings, cx: &mut Context) {
    for (index, name) in tls.alpn_protocols.iter().enumerate().filter(|(_, name)| !(1..=255).contains(&name.len())) {
        cx.at_field("alpnProtocols", |cx| {
            cx.at_index(index, |cx| {
                let message = "the name of a protocol has 1 to 255 bytes";
                cx.error("bad-value", &name.span, message, "write names such as `h2` and `http/1.1`");
            });
        });
    }
}

/// The fields that say where certificates are, and whether each is given.
fn certificate_fields(tls: &ServerTlsSettings) -> [(bool, &'static str); 8] {
    [
        (tls.server_certificate.is_some(), "serverCertificate"),
        (tls.private_key.is_some(), "privateKey"),
        (tls.ca_certificates.is_some(), "caCertificates"),
        (tls.ca_crl.is_some(), "caCrl"),
        (!tls.tls_certificates.is_empty(), "tlsCertificates"),
        (tls.credential_name.is_some(), "credentialName"),
        (!tls.credential_names.is_empty(), "credentialNames"),
        (tls.ca_cert_credential_name.is_some(), "caCertCredentialName"),
    ]
}

/// The fields that say what a client's certificate must have, and whether each is given.
fn client_fields(tls: &ServerTlsSettings) -> [(bool, &'static str); 4] {
    [
        (!tls.subject_alt_names.is_empty(), "subjectAltNames"),
        (!tls.verify_certificate_spki.is_empty(), "verifyCertificateSpki"),
        (!tls.verify_certificate_hash.is_empty(), "verifyCertificateHash"),
        (tls.ca_crl.is_some(), "caCrl"),
    ]
}

/// The fields that describe the handshake, and whether each is given.
fn handshake_fields(tls: &ServerTlsSettings) -> [(bool, &'static str); 5] {
    [
        (tls.min_protocol_version.is_some(), "minProtocolVersion"),
        (tls.max_protocol_version.is_some(), "maxProtocolVersion"),
        (!tls.cipher_suites.is_empty(), "cipherSuites"),
        (!tls.ecdh_curves.is_empty(), "ecdhCurves"),
        (!tls.alpn_protocols.is_empty(), "alpnProtocols"),
    ]
}

/// TLS that is passed on uses no certificate, and nothing of it is checked.
fn note_unused(tls: &ServerTlsSettings, mode: ServerTlsMode, node: &Node, cx: &mut Context) {
    let fields = certificate_fields(tls).into_iter().chain(client_fields(tls)).chain(handshake_fields(tls));
    let mut noted = Vec::new();
    for (_, name) in fields.filter(|(given, _)| *given) {
        if noted.contains(&name) {
            continue;
        }
        noted.push(name);
        let message = format!("mode {} passes TLS on unread and uses no `{name}`", mode.as_str());
        cx.warning("no-effect", node.span_of_path(name), message, "remove it, or use mode SIMPLE or MUTUAL");
    }
}

/// A client that shows no certificate cannot be checked by it.
fn note_unchecked(tls: &ServerTlsSettings, node: &Node, cx: &mut Context) {
    let roots = [
        (tls.ca_certificates.is_some(), "caCertificates"),
        (tls.ca_cert_credential_name.is_some(), "caCertCredentialName"),
    ];
    for (_, name) in client_fields(tls).into_iter().chain(roots).filter(|(given, _)| *given) {
        let message = format!("mode SIMPLE asks clients for no certificate, so `{name}` checks nothing");
        cx.warning("no-effect", node.span_of_path(name), message, "use mode MUTUAL, or remove it");
    }
}

/// Revocation lists are for clients' certificates, which are the mesh's.
fn refuse_certificates(tls: &ServerTlsSettings, node: &Node, cx: &mut Context) {
    let fields = certificate_fields(tls).into_iter().filter(|(_, name)| *name != "caCrl");
    for (_, name) in fields.filter(|(given, _)| *given) {
        let message = format!("mode ISTIO_MUTUAL uses the mesh's certificates, not `{name}`");
        cx.error("conflict", node.span_of_path(name), message, "remove it, or use mode MUTUAL");
    }
}

/// Exactly one source of certificates, and roots for clients where there are any.
fn check_certificates(tls: &ServerTlsSettings, mode: ServerTlsMode, node: &Node, cx: &mut Context) {
    let sources = [
        (tls.credential_name.is_some(), "credentialName"),
        (!tls.credential_names.is_empty(), "credentialNames"),
        (!tls.tls_certificates.is_empty(), "tlsCertificates"),
        (tls.server_certificate.is_some() || tls.private_key.is_some(), "serverCertificate"),
    ];
    let given: Vec<&str> = sources.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect();
    // Istio lets `credentialName` win over files, so that a manifest can name both.
    let both = matches!(given.as_slice(), ["credentialName", "serverCertificate"]);
    if let [first, second, ..] = given.as_slice()
        && !both
    {
        let message = format!("`{first}` and `{second}` both give the server's certificate");
        cx.error("conflict", node.span_of_path(second), message, "keep one of them");
    }
    let is_mutual = mode != ServerTlsMode::Simple;
    match given.first() {
        None | Some(&"serverCertificate") => {
            let files = [
                (tls.server_certificate.is_some(), "serverCertificate"),
                (tls.private_key.is_some(), "privateKey"),
                (tls.ca_certificates.is_some() || tls.ca_cert_credential_name.is_some(), "caCertificates"),
            ];
            for (_, name) in files.into_iter().take(if is_mutual { 3 } else { 2 }).filter(|(given, _)| !given) {
                let message = format!("mode {} needs `{name}`", mode.as_str());
                let help = "give the path of a PEM file, or `credentialName` with the name of a Secret";
                cx.error("missing-field", &node.span, message, help);
            }
        }
        Some(&"tlsCertificates") => check_files(tls, is_mutual, node, cx),
        Some(_) => {}
    }
    let counts = [("credentialNames", tls.credential_names.len()), ("tlsCertificates", tls.tls_certificates.len())];
    for (name, count) in counts.into_iter().filter(|(_, count)| *count > MAX_CERTIFICATES) {
        let message = format!("`{name}` has {count} entries, at most {MAX_CERTIFICATES} are possible");
        let help = "give one certificate with an RSA key and one with an ECDSA key; serve other hosts in other servers";
        cx.error("out-of-range", node.span_of_path(name), message, help);
    }
    let names = tls.credential_name.iter().chain(&tls.credential_names).chain(&tls.ca_cert_credential_name);
    names.for_each(|name| check_credential(name, cx));
}

fn check_files(tls: &ServerTlsSettings, is_mutual: bool, node: &Node, cx: &mut Context) {
    let mut has_roots = tls.ca_certificates.is_some() || tls.ca_cert_credential_name.is_some();
    for certificate in &tls.tls_certificates {
        has_roots |= certificate.ca_certificates.is_some();
        if certificate.server_certificate.is_none() || certificate.private_key.is_none() {
            let help = "give the paths of two PEM files";
            let message = "an entry needs `serverCertificate` and `privateKey`";
            cx.at_field("tlsCertificates", |cx| cx.error("missing-field", &certificate.span, message, help));
        }
    }
    if is_mutual && !has_roots {
        let message = "the mode needs `caCertificates`";
        cx.error("missing-field", &node.span, message, "give the path of a PEM file in one of `tlsCertificates`");
    }
}

/// The name of a Secret. Istio takes `kubernetes://` before it; other sources of credentials are refused.
pub(super) fn check_credential(name: &Spanned<String>, cx: &mut Context) {
    let plain = name.strip_prefix("kubernetes://").unwrap_or(name);
    if let Some((scheme, _)) = plain.split_once("://") {
        let message = format!("credentials from `{scheme}://` are not supported");
        cx.error("unsupported", &name.span, message, "use the name of a Secret in the gateway's namespace");
    } else if plain.is_empty() {
        cx.error("missing-field", &name.span, "the name of the Secret is empty", "give its name");
    }
}

fn check_versions(tls: &ServerTlsSettings, cx: &mut Context) {
    let (min, max) = (tls.min_protocol_version.as_deref(), tls.max_protocol_version.as_ref());
    if let (Some(TlsProtocol::V1_3), Some(max)) = (min, max)
        && max.value == TlsProtocol::V1_2
    {
        cx.error("conflict", &max.span, "`maxProtocolVersion` is below `minProtocolVersion`", "raise it, or remove it");
    }
}

/// Names of suites or curves: as in Istio, unknown ones and repetitions are left out.
fn check_names(field: &str, names: &[Spanned<String>], known: &[&str], envoys: &[&str], cx: &mut Context) {
    let mut usable = false;
    for (index, name) in names.iter().enumerate() {
        usable |= known.contains(&name.as_str());
        let message = match name.as_str() {
            other if names.iter().take(index).any(|before| before.as_str() == other) => {
                format!("`{other}` appears twice; this one is ignored")
            }
            name if known.contains(&name) => continue,
            name if envoys.contains(&name) => format!("Evenkeel's proxy never uses `{name}`; a stock Envoy does"),
            name => format!("`{name}` is not known; it is ignored"),
        };
        let help = format!("supported: {}", one_of(known.iter().copied()));
        cx.at_field(field, |cx| cx.warning("no-effect", &name.span, message, help));
    }
    if let Some(first) = names.first().filter(|_| !usable) {
        let help = format!("add one of {}", one_of(known.iter().copied()));
        cx.at_field(field, |cx| cx.error("bad-value", &first.span, "none of the names can be used", help));
    }
}

fn check_pins(tls: &ServerTlsSettings, cx: &mut Context) {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    let is_key =
        |text: &str| text.len() == 44 && text.strip_suffix('=').is_some_and(|rest| rest.chars().all(is_base64));
    for pin in tls.verify_certificate_spki.iter().filter(|pin| !is_key(pin)) {
        let message = format!("`{}` is not a SHA-256 hash in base64 (44 characters)", pin.value);
        let help = "openssl x509 -in client.pem -noout -pubkey | openssl pkey -pubin -outform DER | \
                    openssl dgst -sha256 -binary | base64";
        cx.at_field("verifyCertificateSpki", |cx| cx.error("bad-value", &pin.span, message, help));
    }
    let is_hex = |text: &str| text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit());
    let apart = |text: &str| text.len() == 95 && text.split(':').count() == 32 && text.split(':').all(|p| p.len() == 2);
    let is_hash = |text: &str| is_hex(text) || apart(text) && is_hex(&text.replace(':', ""));
    for pin in tls.verify_certificate_hash.iter().filter(|pin| !is_hash(pin)) {
        let message = format!("`{}` is not a SHA-256 hash in hexadecimal (64 digits)", pin.value);
        let help = "openssl x509 -in client.pem -outform DER | openssl dgst -sha256";
        cx.at_field("verifyCertificateHash", |cx| cx.error("bad-value", &pin.span, message, help));
    }
}

impl ServerTlsSettings {
    /// The cipher suites that Envoy knows, each once.
    pub fn known_cipher_suites(&self) -> Vec<&str> {
        known(&self.cipher_suites, |name| CIPHER_SUITES.contains(&name) || OUTDATED_SUITES.contains(&name))
    }

    /// The curves that Envoy knows, each once.
    pub fn known_ecdh_curves(&self) -> Vec<&str> {
        known(&self.ecdh_curves, |name| CURVES.contains(&name) || name == ENVOYS_CURVE)
    }
}

fn known(names: &[Spanned<String>], is_known: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names.iter().map(|name| name.as_str()).filter(|name| is_known(name)) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}
