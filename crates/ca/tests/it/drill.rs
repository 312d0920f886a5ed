//! Years of rotations on a virtual clock: certificates and handshakes are real, time and the network are not.
//!
//! A root lives for half a year and an intermediate for a month. Answers get lost, a workload is out of reach for hours in the middle
//! of a rotation, and clocks are wrong. After every step workloads call each other: no handshake may fail.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_ca::rotation::{AuthorityStore, Kind, Ledger, Ledgers, Observed, Phase, Record, Reloaded, Signing};
use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_testkit::cases;
use rcgen::{
    CertificateParams, CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType,
    SerialNumber,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig, ServerConnection,
    SignatureScheme,
};
use tempfile::TempDir;

use crate::{DAY, HOUR, now};

const WORKLOADS: usize = 6;
/// The error of each workload's clock, in seconds: less than certificates are dated back.
const CLOCKS_OFF: [i64; WORKLOADS] = [0, -90, 60, 0, -30, 5];

/// A workload with its agent.
struct Workload {
    name: String,
    id: String,
    clock_off: i64,
    roots: Vec<CertificateDer<'static>>,
    bundle: String,
    chain: Vec<CertificateDer<'static>>,
    key: String,
    key_id: String,
    serial: String,
    renew_at: SystemTime,
    out_of_reach_until: SystemTime,
}

/// The mesh and its time.
struct Mesh {
    now: SystemTime,
    folder: TempDir,
    store: AuthorityStore,
    ledger: Ledger,
    signing: Signing,
    workloads: Vec<Workload>,
    random: u64,
    handshakes: u64,
    issued: u64,
    lists: Vec<CertificateRevocationListDer<'static>>,
}

impl Mesh {
    fn new() -> Self {
        let (folder, now) = (tempfile::tempdir().unwrap(), now());
        let (store, state) = AuthorityStore::open(folder.path(), None, "cluster.local", now).unwrap();
        let signing = store.signing(state, now).unwrap();
        let ledger = Ledger::open(store.store(), "one", unix(now)).unwrap();
        let workload = |index: usize| Workload {
            name: format!("w{index}.shop"),
            id: format!("spiffe://cluster.local/ns/shop/sa/w{index}"),
            clock_off: CLOCKS_OFF[index],
            roots: Vec::new(),
            bundle: String::new(),
            chain: Vec::new(),
            key: String::new(),
            key_id: String::new(),
            serial: String::new(),
            renew_at: UNIX_EPOCH,
            out_of_reach_until: UNIX_EPOCH,
        };
        let workloads = (0..WORKLOADS).map(workload).collect();
        let (random, handshakes, issued, lists) = (0x2545_f491_4f6c_dd1d, 0, 0, Vec::new());
        let mut mesh = Self { now, folder, store, ledger, signing, workloads, random, handshakes, issued, lists };
        mesh.adopt();
        while mesh.workloads.iter().any(|workload| workload.chain.is_empty()) {
            mesh.agents();
        }
        mesh
    }

    /// A number below `limit`; the same in every run.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn adopt(&mut self) {
        let record = Record::Runs { generation: self.signing.state.generation };
        self.ledger.append(&record, unix(self.now)).unwrap();
    }

    /// The control plane's part of a step. Now and then it has crashed and starts again.
    fn control_plane(&mut self) {
        if self.below(20) == 0 {
            let (store, state) = AuthorityStore::open(self.folder.path(), None, "cluster.local", self.now).unwrap();
            self.ledger = Ledger::open(store.store(), &format!("run-{}", self.random), unix(self.now)).unwrap();
            self.signing = store.signing(state, self.now).unwrap();
            self.store = store;
            self.adopt();
        }
        let ledgers = Ledgers::read(self.store.store()).unwrap();
        let observed = Observed { ledgers: &ledgers, bundle: &self.signing.version };
        if let Some(next) = self.signing.state.advance(&observed, unix(self.now)) {
            self.store.save(&next).unwrap();
            self.store.clean(&next).unwrap();
            self.signing = self.store.signing(next, self.now).unwrap();
            self.adopt();
            self.everybody_calls_everybody();
        }
    }

    /// What the agents do in a step.
    fn agents(&mut self) {
        for index in 0..WORKLOADS {
            if self.workloads[index].out_of_reach_until > self.now {
                continue;
            }
            // A push takes a while, and not all get it at the same time.
            let has_leaf = !self.workloads[index].chain.is_empty();
            if has_leaf && self.workloads[index].bundle != self.signing.version && self.below(3) > 0 {
                let (roots, version) = (parse(&self.signing.roots), self.signing.version.clone());
                let soon = self.now + Duration::from_millis(self.below(3000));
                let workload = &mut self.workloads[index];
                (workload.roots, workload.bundle) = (roots, version.clone());
                if workload.key_id != self.signing.active.key_id() {
                    workload.renew_at = workload.renew_at.min(soon);
                }
                let record = Record::Trusts { serial: workload.serial.clone(), bundle: version, at: millis(self.now) };
                self.ledger.append(&record, unix(self.now)).unwrap();
            }
            // A lost answer is noticed soon: the next try is of the same step.
            while self.workloads[index].renew_at <= self.now {
                self.renew(index);
            }
        }
    }

    fn renew(&mut self, index: usize) {
        let workload = &self.workloads[index];
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(workload.id.as_str().try_into().unwrap())];
        let csr = params.serialize_request(&key).unwrap();
        let id = workload.id.parse().unwrap();
        let issued = self.signing.active.sign(csr.der(), &id, DAY, self.now).unwrap();
        let record = Record::Issued {
            name: workload.name.clone(),
            identity: workload.id.clone(),
            signer: self.signing.active.id().to_owned(),
            serial: issued.serial.clone(),
            bundle: self.signing.version.clone(),
            at: millis(self.now),
            end: unix(issued.not_after),
            pod: false,
        };
        self.ledger.append(&record, unix(self.now)).unwrap();
        self.issued += 1;
        if self.below(10) == 0 {
            // The answer is lost; the agent asks again.
            return;
        }
        let half = issued.not_after.duration_since(self.now).unwrap().mul_f64(0.45 + self.below(100) as f64 / 1000.0);
        let (roots, version) = (parse(&self.signing.roots), self.signing.version.clone());
        let workload = &mut self.workloads[index];
        workload.chain = parse(&issued.chain.concat());
        workload.key = key.serialize_pem();
        workload.key_id = self.signing.active.key_id().to_owned();
        workload.serial = issued.serial;
        (workload.roots, workload.bundle) = (roots, version);
        workload.renew_at = self.now + half;
        let record = Record::Shown { serial: workload.serial.clone(), at: millis(self.now) };
        self.ledger.append(&record, unix(self.now)).unwrap();
    }

    fn somebody_calls_somebody(&mut self) {
        let count = WORKLOADS as u64;
        let (client, more) = (self.below(count), 1 + self.below(count - 1));
        self.call(client as usize, ((client + more) % count) as usize).unwrap();
    }

    fn everybody_calls_everybody(&mut self) {
        for client in 0..WORKLOADS {
            for server in (0..WORKLOADS).filter(|server| *server != client) {
                let phase = self.signing.state.phase;
                self.call(client, server).unwrap_or_else(|error| panic!("{phase:?}: w{client} to w{server}: {error}"));
            }
        }
    }

    /// A handshake with mutual TLS in memory.
    fn call(&mut self, client: usize, server: usize) -> Result<(), Error> {
        self.handshakes += 1;
        let (client, server) = (&self.workloads[client], &self.workloads[server]);
        let mut client =
            ClientConnection::new(Arc::new(client_config(client, self.now)?), ServerName::try_from("w.shop").unwrap())?;
        let mut server = ServerConnection::new(Arc::new(server_config(server, &self.lists, self.now)?))?;
        let mut wire = Vec::new();
        while client.is_handshaking() || server.is_handshaking() {
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut &*std::mem::take(&mut wire)).unwrap();
            server.process_new_packets()?;
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut &*std::mem::take(&mut wire)).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    /// Lets a rotation run to its end.
    fn until_steady(&mut self) {
        let mut steps = 0;
        while self.signing.state.phase != Phase::Steady {
            let pause = Duration::from_secs(if self.someone_is_out_of_reach() { 600 } else { 3 });
            self.step(pause);
            steps += 1;
            assert!(steps < 10_000, "{:?} never ends", self.signing.state.phase);
        }
    }

    fn someone_is_out_of_reach(&self) -> bool {
        self.workloads.iter().any(|workload| workload.out_of_reach_until > self.now)
    }

    fn step(&mut self, pause: Duration) {
        self.now += pause;
        self.agents();
        if self.signing.state.phase != Phase::Steady {
            self.control_plane();
        }
        self.somebody_calls_somebody();
    }

    fn rotate(&mut self, kind: Kind) {
        let begun = self.store.rotate(&self.signing.state, kind, self.now).unwrap();
        self.signing = self.store.signing(begun, self.now).unwrap();
        self.adopt();
        self.everybody_calls_everybody();
    }
}

#[test]
fn years_without_a_failed_handshake() {
    let years = u32::try_from(cases(1, 3)).unwrap();
    let mut mesh = Mesh::new();
    let first_root = mesh.workloads[0].roots[0].clone();
    let mut rotations = 0;
    for day in 1..=365 * years {
        for _ in 0..4 {
            mesh.step(HOUR * 6);
        }
        if day % 180 == 0 {
            // An unreachable workload delays the rotation, and nothing breaks.
            if day % 360 == 0 {
                mesh.workloads[3].out_of_reach_until = mesh.now + HOUR * 7;
            }
            let held_up = mesh.someone_is_out_of_reach();
            let began = mesh.now;
            mesh.rotate(Kind::Root);
            mesh.until_steady();
            let took = mesh.now.duration_since(began).unwrap();
            assert_eq!(took > HOUR * 6, held_up, "{took:?}");
        } else if day % 30 == 0 {
            mesh.rotate(Kind::Intermediate);
            mesh.until_steady();
        } else {
            continue;
        }
        rotations += 1;
    }
    assert_eq!(rotations, 365 * years / 30);
    // The last push has reached all, and nobody trusts the retired root.
    for _ in 0..20 {
        mesh.step(Duration::from_secs(3));
    }
    for workload in &mesh.workloads {
        assert!(!workload.roots.contains(&first_root) && workload.roots.len() == 1, "{}", workload.name);
    }
    assert!(mesh.issued > 365 * u64::from(years) * WORKLOADS as u64, "{} certificates", mesh.issued);
    println_summary(&mesh, years, rotations);

    a_revoked_leaf_is_refused_and_nobody_else(&mut mesh);
}

/// Continues after the drill: the operator plugs in an authority with revocation lists.
fn a_revoked_leaf_is_refused_and_nobody_else(mesh: &mut Mesh) {
    let root = Authority::new_root("corp", mesh.now).unwrap();
    let Reloaded::Begun(begun) = mesh.store.reload(&mesh.signing.state, &root, mesh.now).unwrap() else { panic!() };
    mesh.signing = mesh.store.signing(*begun, mesh.now).unwrap();
    mesh.adopt();
    mesh.until_steady();
    mesh.everybody_calls_everybody();

    let thief = mesh.workloads[2].serial.clone();
    mesh.lists = vec![revocation_list(&root, &thief, mesh.now)];
    for server in [0, 1, 3, 4, 5] {
        let error = mesh.call(2, server).unwrap_err().to_string();
        assert!(error.contains("Revoked"), "{error}");
    }
    mesh.call(0, 1).unwrap();
    mesh.call(5, 4).unwrap();
    // Its owner gets another one, which is not on the list.
    while mesh.workloads[2].serial == thief {
        mesh.renew(2);
    }
    mesh.everybody_calls_everybody();
}

/// A list of one certificate, by its serial number in hexadecimal.
pub fn revocation_list(root: &PluggedFiles, serial: &str, now: SystemTime) -> CertificateRevocationListDer<'static> {
    let key = KeyPair::from_pem(&root.key).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&root.certificate, key).unwrap();
    let bytes: Vec<u8> =
        (0..serial.len()).step_by(2).map(|at| u8::from_str_radix(&serial[at..at + 2], 16).unwrap()).collect();
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from_slice(&bytes),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + DAY * 7).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    CertificateRevocationListDer::from(list.signed_by(&issuer).unwrap().der().to_vec())
}

#[allow(clippy::print_stdout, reason = "what the drill has played is shown with --nocapture")]
fn println_summary(mesh: &Mesh, years: u32, rotations: u32) {
    println!("{years} years: {rotations} rotations, {} certificates, {} handshakes", mesh.issued, mesh.handshakes);
}

#[derive(Debug)]
struct Clock(UnixTime);

impl Clock {
    fn of(workload: &Workload, now: SystemTime) -> Arc<Self> {
        let seconds = unix(now).checked_add_signed(workload.clock_off).unwrap();
        Arc::new(Self(UnixTime::since_unix_epoch(Duration::from_secs(seconds))))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn store_of(workload: &Workload) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    workload.roots.iter().for_each(|root| roots.add(root.clone()).unwrap());
    Arc::new(roots)
}

fn key_of(workload: &Workload) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(workload.key.as_bytes()).unwrap()
}

fn client_config(workload: &Workload, now: SystemTime) -> Result<ClientConfig, Error> {
    let verifier = Arc::new(Verifier { roots: store_of(workload), provider: provider() });
    ClientConfig::builder_with_details(provider(), Clock::of(workload, now))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(workload.chain.clone(), key_of(workload))
}

fn server_config(
    workload: &Workload,
    lists: &[CertificateRevocationListDer<'static>],
    now: SystemTime,
) -> Result<ServerConfig, Error> {
    let clients = WebPkiClientVerifier::builder_with_provider(store_of(workload), provider());
    let clients = match lists {
        [] => clients,
        lists => clients.with_crls(lists.iter().cloned()).enforce_revocation_expiration(),
    };
    let clients = clients.build().map_err(|error| Error::General(error.to_string()))?;
    ServerConfig::builder_with_details(provider(), Clock::of(workload, now))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(workload.chain.clone(), key_of(workload))
}

/// As the mesh's clients verify servers: the chain, not the SNI.
struct Verifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn parse(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
