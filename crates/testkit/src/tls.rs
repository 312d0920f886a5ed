//! Certificates made for one test, and a TLS client connection over them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, RevokedCertParams, SanType, SerialNumber,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, StreamOwned,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::http::Connection;

/// A certificate authority that exists as long as the test.
pub struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, in PEM.
pub struct Identity {
    /// The certificate chain, leaf first, without the root.
    pub cert_pem: String,
    /// The PKCS #8 private key.
    pub key_pem: String,
}

impl TestCa {
    /// A fresh ECDSA P-256 root.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "test root");
        let issuer = CertifiedIssuer::self_signed(params, key()).expect("a self-signed root");
        Self { issuer }
    }

    /// The root certificate.
    pub fn root_pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server's DNS names.
    pub fn for_dns(&self, names: &[&str]) -> Identity {
        self.issue(names.iter().map(|name| SanType::DnsName((*name).try_into().expect("a DNS name"))).collect())
    }

    /// A workload certificate: one URI, such as `spiffe://cluster.local/ns/default/sa/web`.
    pub fn for_spiffe(&self, uri: &str) -> Identity {
        self.issue(vec![SanType::URI(uri.try_into().expect("an ASCII URI"))])
    }

    /// A workload certificate with this serial number.
    pub fn numbered(&self, uri: &str, serial: u64) -> Identity {
        let names = vec![SanType::URI(uri.try_into().expect("an ASCII URI"))];
        self.issue_with(names, |params| params.serial_number = Some(SerialNumber::from(serial)))
    }

    /// A list that revokes certificates with these serial numbers, PEM; good until 2100.
    ///
    /// # Panics
    /// Never.
    pub fn revocation_list(&self, revoked: &[u64]) -> String {
        let begin = rcgen::date_time_ymd(2001, 1, 1);
        let entry = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: begin,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: begin,
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).expect("a revocation list")
    }

    /// Creates a workload certificate whose subject also has a common name with any text.
    pub fn with_common_name(&self, uri: &str, name: &str) -> Identity {
        let names = vec![SanType::URI(uri.try_into().expect("an ASCII URI"))];
        self.issue_with(names, |params| params.distinguished_name.push(DnType::CommonName, name))
    }

    /// A workload certificate that ended long ago.
    pub fn expired(&self, uri: &str) -> Identity {
        let names = vec![SanType::URI(uri.try_into().expect("an ASCII URI"))];
        self.issue_with(names, |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1))
    }

    /// A workload certificate that names a server too, for clients that know no SPIFFE.
    pub fn for_server(&self, uri: &str, dns: &str) -> Identity {
        let dns = SanType::DnsName(dns.try_into().expect("a DNS name"));
        self.issue(vec![SanType::URI(uri.try_into().expect("an ASCII URI")), dns])
    }

    /// Creates a certificate of a server with these DNS names and this address.
    pub fn for_server_at(&self, names: &[&str], address: IpAddr) -> Identity {
        let dns = |name: &&str| SanType::DnsName((*name).try_into().expect("a DNS name"));
        self.issue(names.iter().map(dns).chain([SanType::IpAddress(address)]).collect())
    }

    /// Creates a certificate of a client that is known by its name and its organization.
    pub fn for_client(&self, name: &str, organization: &str) -> Identity {
        self.issue_with(Vec::new(), |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, organization);
        })
    }

    /// A certificate with several URIs.
    pub fn for_uris(&self, uris: &[&str]) -> Identity {
        self.issue(uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("an ASCII URI"))).collect())
    }

    fn issue(&self, names: Vec<SanType>) -> Identity {
        self.issue_with(names, |_| {})
    }

    fn issue_with(&self, names: Vec<SanType>, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = key();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        change(&mut params);
        let cert = params.signed_by(&key, &self.issuer).expect("a signed certificate");
        Identity { cert_pem: cert.pem(), key_pem: key.serialize_pem() }
    }
}

impl Default for TestCa {
    fn default() -> Self {
        Self::new()
    }
}

impl Identity {
    /// Writes `NAME-cert.pem` and `NAME-key.pem` into `folder` and returns the two paths.
    ///
    /// # Panics
    /// When the folder is not writable.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (folder.join(format!("{name}-cert.pem")), folder.join(format!("{name}-key.pem")));
        std::fs::write(&cert, &self.cert_pem).expect("a writable folder");
        std::fs::write(&key, &self.key_pem).expect("a writable folder");
        (cert, key)
    }
}

/// A client that offers every server the sessions it has with others.
pub struct Resuming(Arc<ClientConfig>);

impl Resuming {
    /// Connects and completes the handshake; whether the server has resumed a session.
    ///
    /// # Errors
    /// The socket's, or `InvalidData` when the handshake fails.
    ///
    /// # Panics
    /// When the name is none.
    pub fn open(&self, address: SocketAddr, server_name: &str) -> io::Result<(Connection, bool)> {
        let name = ServerName::try_from(server_name.to_owned()).expect("a server name");
        let mut socket = Connection::socket(address)?;
        let mut session = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
        let control = socket.try_clone()?;
        Ok((Connection::over(StreamOwned::new(session, socket), control), resumed))
    }
}

/// Sessions without regard to the server's name.
#[derive(Debug)]
struct AnyServer(ClientSessionMemoryCache);

impl AnyServer {
    fn name() -> ServerName<'static> {
        ServerName::try_from("anybody.example").expect("a server name")
    }
}

impl ClientSessionStore for AnyServer {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(Self::name(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(&Self::name())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(Self::name(), value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(&Self::name())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&Self::name());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(Self::name(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&Self::name())
    }
}

/// Settings of a TLS client.
#[derive(Default)]
pub struct TlsClient<'a> {
    /// Server name to send and to verify.
    pub server_name: &'a str,
    /// Root to trust, PEM.
    pub root_pem: String,
    /// Own certificate for mutual TLS.
    pub identity: Option<&'a Identity>,
    /// ALPN protocols to offer.
    pub alpn: &'a [&'a str],
}

impl TlsClient<'_> {
    /// Connects and completes the handshake.
    ///
    /// # Errors
    /// The socket's, or `InvalidData` when the handshake fails.
    ///
    /// # Panics
    /// When the PEM inputs are malformed.
    pub fn open(&self, address: SocketAddr) -> io::Result<Connection> {
        let name = ServerName::try_from(self.server_name.to_owned()).expect("a server name");
        let mut socket = Connection::socket(address)?;
        let mut session = ClientConnection::new(Arc::new(self.config()), name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        let control = socket.try_clone()?;
        Ok(Connection::over(StreamOwned::new(session, socket), control))
    }

    /// Connects, lets `talk` use the connection, and keeps only the socket: the session's memory is given back, and the peer
    /// is not told. The server may be anybody.
    ///
    /// # Errors
    /// The socket's, or `InvalidData` when the handshake fails.
    ///
    /// # Panics
    /// When the PEM inputs are malformed.
    pub fn open_unverified(
        &self,
        address: SocketAddr,
        talk: impl FnOnce(&mut StreamOwned<ClientConnection, TcpStream>),
    ) -> io::Result<TcpStream> {
        let mut config = self.config();
        config.dangerous().set_certificate_verifier(Arc::new(Anybody));
        let name = ServerName::try_from("anybody.example").expect("a server name");
        let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, Connection::socket(address)?);
        talk(&mut stream);
        Ok(stream.sock)
    }

    /// Creates a client that resumes sessions of any server, whatever its name.
    ///
    /// # Panics
    /// When the PEM inputs are malformed.
    pub fn resuming(&self) -> Resuming {
        let mut config = self.config();
        config.dangerous().set_certificate_verifier(Arc::new(Anybody));
        config.resumption = Resumption::store(Arc::new(AnyServer(ClientSessionMemoryCache::new(8))));
        Resuming(Arc::new(config))
    }

    /// The bytes this client would begin with.
    ///
    /// # Panics
    /// When the PEM inputs are malformed.
    pub fn client_hello(&self) -> Vec<u8> {
        let name = ServerName::try_from(self.server_name.to_owned()).expect("a server name");
        let mut session = ClientConnection::new(Arc::new(self.config()), name).expect("a client");
        let mut hello = Vec::new();
        session.write_tls(&mut hello).expect("memory takes it");
        hello
    }

    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(self.root_pem.as_bytes()) {
            roots.add(root.expect("a PEM certificate")).expect("a root certificate");
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider's defaults")
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.cert_pem.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("PEM certificates");
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("a PEM key");
                builder.with_client_auth_cert(chain, key).expect("a matching key")
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("an ECDSA P-256 key")
}

/// Takes any certificate for good.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ED25519]
    }
}
/// The server's end of TLS connections, without client certificates.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl TlsServer {
    /// Shows this certificate.
    ///
    /// # Panics
    /// When certificate or key is not PEM.
    pub fn new(identity: &Identity) -> Self {
        let chain = CertificateDer::pem_slice_iter(identity.cert_pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("a PEM key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.expect("the provider's defaults").with_no_client_auth();
        let config = config.with_single_cert(chain.expect("PEM certificates"), key).expect("a key of its certificate");
        Self { config: Arc::new(config) }
    }

    /// Begins a connection; the handshake happens as it is read.
    ///
    /// # Panics
    /// When rustls does not take its own configuration.
    pub fn accept(&self, socket: TcpStream) -> TlsConnection {
        let connection = ServerConnection::new(Arc::clone(&self.config)).expect("a sound configuration");
        TlsConnection(StreamOwned::new(connection, socket))
    }

    /// Answers the first bytes of each connection with these, on a free port of loopback until the process ends. A client that
    /// does not trust the certificate gets nothing.
    ///
    /// # Panics
    /// When no port is free.
    pub fn answer_with(self, answer: impl Fn() -> Vec<u8> + Send + 'static) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let mut connection = self.accept(socket);
                if connection.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                    let _ = connection.write_all(&answer());
                    let _ = connection.flush();
                }
            }
        });
        port
    }
}

/// A connection to such a server.
pub struct TlsConnection(StreamOwned<ServerConnection, TcpStream>);

impl TlsConnection {
    /// Returns the server name that the client sent, once something has been read.
    pub fn server_name(&self) -> Option<&str> {
        self.0.conn.server_name()
    }

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        &self.0.sock
    }

    /// Sends `close_notify`.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn close_notify(&mut self) -> io::Result<()> {
        self.0.conn.send_close_notify();
        while self.0.conn.wants_write() {
            self.0.conn.write_tls(&mut self.0.sock)?;
        }
        Ok(())
    }
}

impl Read for TlsConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for TlsConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
