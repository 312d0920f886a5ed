//! An authority for tests, contexts in short form, and one function that runs both sides of a handshake.

use std::time::Duration;

use evenkeel_tls::config::{
    CertificateSource, ClientCertificate, CommonTlsContext, DataSource, DownstreamTlsContext, PeerChecks, TlsParams,
    TrustSource, UpstreamTlsContext, Validation,
};
use evenkeel_tls::{
    ClientHello, ClientHelloReader, DownstreamTls, HandshakeError, Inspection, PeerCertificate, SanMatcher,
    SecretStore, TlsStream, UpstreamTls,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SanType, SerialNumber, SignatureAlgorithm,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::OffsetDateTime;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Spiffe ids of the two workloads most tests are about.
pub const WEB: &str = "spiffe://cluster.local/ns/default/sa/web";
pub const INFO: &str = "spiffe://cluster.local/ns/default/sa/info";

/// Bounds every handshake in the tests; one takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

#[derive(Clone)]
pub struct Pair {
    pub chain: String,
    pub key: String,
}

impl TestCa {
    pub fn new(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate().unwrap())
    }

    /// One with an RSA key, as `openssl req -newkey rsa:2048` makes it.
    pub fn rsa(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap())
    }

    fn with_key(name: &str, key: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// An authority that this one has signed.
    pub fn authority(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(77_u64));
        change(&mut params);
        Self { issuer: CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.issuer).unwrap() }
    }

    /// The same certificate authority's leaf of version 1, as `openssl x509 -req` without extensions makes it.
    pub fn version1(&self, name: &str) -> Pair {
        let pair = self.issue(|params| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.serial_number = Some(SerialNumber::from(7_u64));
        });
        let der = CertificateDer::from_pem_slice(pair.chain.as_bytes()).unwrap();
        let key = self.issuer.key();
        let chain = version1(&der, |message| rcgen::SigningKey::sign(key, message).unwrap());
        Pair { chain, ..pair }
    }

    /// A list that revokes these serial numbers, and is good for so many minutes.
    pub fn revocation_list(&self, revoked: &[u64], minutes: i64) -> String {
        self.revocation_list_of(revoked, -120..minutes, 1)
    }

    /// A list that is valid for these minutes from now on, with this CRL number.
    pub fn revocation_list_of(&self, revoked: &[u64], minutes: std::ops::Range<i64>, number: u64) -> String {
        let (now, hour) = (OffsetDateTime::now_utc(), time::Duration::hours(1));
        let entry = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now - hour,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now + time::Duration::minutes(minutes.start),
            next_update: now + time::Duration::minutes(minutes.end),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    pub fn workload(&self, uri: &str) -> Pair {
        self.issue(|params| params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())])
    }

    pub fn expired(&self, uri: &str) -> Pair {
        self.issue(|params| {
            params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
            params.not_before = OffsetDateTime::now_utc() - Duration::from_secs(7200);
            params.not_after = OffsetDateTime::now_utc() - Duration::from_secs(3600);
        })
    }

    /// A certificate for DNS names, with a key of this kind.
    pub fn server(&self, names: &[&str], algorithm: &'static SignatureAlgorithm) -> Pair {
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
        self.issue_for(KeyPair::generate_for(algorithm).unwrap(), |params| params.subject_alt_names = names)
    }

    pub fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        self.issue_for(KeyPair::generate().unwrap(), change)
    }

    fn issue_for(&self, key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        Pair { chain: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

impl Pair {
    /// Its leaf, parsed.
    pub fn leaf(&self) -> PeerCertificate {
        let leaf = CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap();
        PeerCertificate::parse(&[leaf]).unwrap()
    }

    /// `openssl x509 -pubkey | openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | base64`
    pub fn key_hash(&self) -> String {
        let key = KeyPair::from_pem(&self.key).unwrap();
        let der = rcgen::PublicKeyData::subject_public_key_info(&key);
        base64(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der).as_ref())
    }

    pub fn source(&self) -> CertificateSource {
        CertificateSource::Static {
            chain: DataSource::Inline(self.chain.clone().into_bytes()),
            key: DataSource::Inline(self.key.clone().into_bytes()),
        }
    }
}

pub fn trusting(ca: &TestCa, names: Vec<SanMatcher>) -> Validation {
    let trust = TrustSource::Static(DataSource::Inline(ca.pem().into_bytes()));
    Validation::Chain { trust, checks: PeerChecks { subject_alt_names: names, ..PeerChecks::default() } }
}

pub fn common(certificate: Option<CertificateSource>, validation: Validation, alpn: &[&str]) -> CommonTlsContext {
    let alpn = alpn.iter().map(|protocol| (*protocol).to_owned()).collect();
    CommonTlsContext { certificates: certificate.into_iter().collect(), validation, alpn, params: TlsParams::default() }
}

/// A mutual-TLS server as an inbound listener has it.
pub fn server_context(ca: &TestCa, pair: &Pair) -> DownstreamTlsContext {
    let mesh = SanMatcher { kind: None, pattern: evenkeel_tls::StringPattern::prefix("spiffe://cluster.local/") };
    DownstreamTlsContext {
        common: common(Some(pair.source()), trusting(ca, vec![mesh]), &["http/1.1"]),
        client_certificate: ClientCertificate::Required,
    }
}

/// A mutual-TLS client as an outbound cluster has it.
pub fn client_context(ca: &TestCa, pair: &Pair, server: &str) -> UpstreamTlsContext {
    UpstreamTlsContext {
        common: common(Some(pair.source()), trusting(ca, vec![SanMatcher::uri(server)]), &["http/1.1"]),
        sni: "outbound_.8080_.v1_.info.default.svc.cluster.local".into(),
    }
}

pub fn server(context: &DownstreamTlsContext) -> DownstreamTls {
    DownstreamTls::new(context, &SecretStore::new()).unwrap()
}

pub fn client(context: &UpstreamTlsContext) -> UpstreamTls {
    UpstreamTls::new(context, &SecretStore::new()).unwrap()
}

pub type Outcome = Result<TlsStream<TcpStream>, HandshakeError>;

/// Two connected sockets.
pub async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// Runs both sides of a handshake. A TLS 1.3 client is done before the server has seen its certificate, so the client's
/// outcome is taken after its first read.
pub async fn shake(client: &UpstreamTls, server: &DownstreamTls) -> (Outcome, Outcome) {
    let (near, far) = sockets().await;
    let both = async { tokio::join!(client.connect(near), accept(server, far)) };
    tokio::time::timeout(PATIENCE, both).await.expect("a handshake in time")
}

pub async fn accept(server: &DownstreamTls, mut socket: TcpStream) -> Outcome {
    let hello = read_hello(&mut socket).await.expect("a ClientHello");
    server.accept(hello, socket).await
}

/// What a listener does: reads until the ClientHello is whole.
pub async fn read_hello(socket: &mut TcpStream) -> Result<ClientHello, Inspection> {
    let mut reader = ClientHelloReader::new();
    let mut buffer = [0; 4096];
    loop {
        let count = socket.read(&mut buffer).await.unwrap();
        assert_ne!(count, 0, "the client closed before its ClientHello was whole");
        match reader.push(&buffer[..count]) {
            Inspection::NeedMore(more) => reader = more,
            Inspection::Hello(hello) => return Ok(*hello),
            other => return Err(other),
        }
    }
}

/// Makes a certificate of version 3 one of version 1: without a version and extensions, and signed again.
fn version1(der: &[u8], sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let (_, certificate, _) = element(der);
    let (_, tbs, rest) = element(certificate);
    let (algorithm, _, _) = element(rest);
    let (mut fields, mut rest) = (Vec::new(), tbs);
    while !rest.is_empty() {
        let (whole, _, after) = element(rest);
        // [0] is the version, [3] the extensions.
        if !matches!(whole[0], 0xa0 | 0xa3) {
            fields.extend_from_slice(whole);
        }
        rest = after;
    }
    let tbs = wrapped(0x30, &fields);
    let signature = wrapped(0x03, &[&[0], sign(&tbs).as_slice()].concat());
    let certificate = wrapped(0x30, &[&tbs, algorithm, &signature].concat());
    let lines: Vec<_> =
        base64(&certificate).as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// The first DER element as a whole, its contents, and what follows it.
fn element(der: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let (head, length) = match der[1] {
        0x81 => (3, usize::from(der[2])),
        0x82 => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        short => (2, usize::from(short)),
    };
    (&der[..head + length], &der[head..head + length], &der[head + length..])
}

fn wrapped(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let head: Vec<u8> = match length {
        0..=0x7f => vec![tag, length as u8],
        0x80..=0xff => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head.as_slice(), contents].concat()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let bits = group.iter().chain([0, 0].iter()).take(3).fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let digit = |at: usize| if at <= group.len() { char::from(DIGITS[bits >> (18 - 6 * at) & 63]) } else { '=' };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}
