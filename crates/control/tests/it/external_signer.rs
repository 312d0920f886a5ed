//! External signers: another control plane, and signers that misbehave.

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use evenkeel_ca::external::ExternalRequest;
use evenkeel_ca::rotation::BUNDLE_FILE;
use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_control::authorities::{self, Kind};
use evenkeel_control::{ClusterSigner, Options, Signed, SignerOptions};
use evenkeel_tls::PeerCertificate;
use evenkeel_xds::istio::auth::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use evenkeel_xds::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use evenkeel_xds::istio::mesh::ProxyConfig;
use evenkeel_xds::unpack;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use time::OffsetDateTime;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};

use crate::certificates::{CLIENT, connect, csr, request, request_over, stream, tls, token};
use crate::fixture::{PATIENCE, Plane, options};

/// What a signer makes of a request.
type Sign = Box<dyn Fn(&str) -> Vec<String> + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Vec<String>, Status>> + Send>>;
type Behaviour = Arc<dyn Fn(&IstioCertificateRequest) -> Answer + Send + Sync>;

/// A signer on the loopback address, in plain text.
#[derive(Clone)]
struct Fake {
    behaviour: Arc<Mutex<Behaviour>>,
    /// The `authorization` of each request.
    asked: Arc<Mutex<Vec<Option<String>>>>,
    address: std::net::SocketAddr,
}

#[tonic::async_trait]
impl IstioCertificateService for Fake {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let bearer = request.metadata().get("authorization").map(|value| value.to_str().expect("text").to_owned());
        self.asked.lock().expect("a list").push(bearer);
        let answer = self.behaviour.lock().expect("a behaviour")(request.get_ref());
        Ok(Response::new(IstioCertificateResponse { cert_chain: answer.await? }))
    }
}

impl Fake {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let refuse: Behaviour = Arc::new(|_| Box::pin(async { Err(Status::internal("nothing yet")) }));
        let this = Self { behaviour: Arc::new(Mutex::new(refuse)), asked: Arc::default(), address };
        let (server, service) = (tonic::transport::Server::builder(), IstioCertificateServiceServer::new(this.clone()));
        tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
        this
    }

    fn does(&self, behaviour: impl Fn(&IstioCertificateRequest) -> Answer + Send + Sync + 'static) {
        *self.behaviour.lock().expect("a behaviour") = Arc::new(behaviour);
    }

    /// What it was asked with since the last call.
    fn asked(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.asked.lock().expect("a list"))
    }

    /// The mesh's settings with this signer.
    fn mesh(&self, timeout: &str) -> String {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
             ca:\n      address: {}\n      requestTimeout: {timeout}\n      tlsSettings: {{mode: DISABLE}}\n",
            self.address
        )
    }
}

/// An authority in a folder.
struct Signer {
    folder: tempfile::TempDir,
}

impl Signer {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        Authority::open(folder.path(), "elsewhere", SystemTime::now()).expect("an authority");
        Self { folder }
    }

    fn roots(&self) -> PathBuf {
        self.folder.path().join("ca-cert.pem")
    }

    fn root(&self) -> String {
        std::fs::read_to_string(self.roots()).expect("a root")
    }

    fn issuer(&self) -> Issuer<'static, KeyPair> {
        let key = std::fs::read_to_string(self.folder.path().join("ca-key.pem")).expect("a key");
        Issuer::from_ca_cert_pem(&self.root(), KeyPair::from_pem(&key).expect("a key")).expect("an issuer")
    }

    /// A chain for the key of a request, and as `change` wants it.
    fn sign(&self, csr: &str, change: &dyn Fn(&mut CertificateParams)) -> Vec<String> {
        let request = CertificateSigningRequestParams::from_pem(csr).expect("a request");
        let mut params = leaf();
        change(&mut params);
        vec![params.signed_by(&request.public_key, &self.issuer()).expect("a certificate").pem(), self.root()]
    }
}

/// A signer of a cluster, which signs or says why not.
#[derive(Debug)]
struct OfCluster {
    signer: tempfile::TempDir,
    refusal: Option<&'static str>,
}

impl ClusterSigner for OfCluster {
    fn name(&self) -> &str {
        "issuers.example.com/mesh"
    }

    fn sign<'a>(&'a self, wanted: &'a ExternalRequest) -> Signed<'a> {
        let authority = Authority::open(self.signer.path(), "elsewhere", SystemTime::now()).expect("an authority");
        let identity = CLIENT.parse().expect("an identity");
        let issued = authority.sign(wanted.pem().as_bytes(), &identity, wanted.ttl(), SystemTime::now());
        let answer = match self.refusal {
            None => Ok(issued.expect("a certificate").chain),
            Some(reason) => Err(reason.to_owned()),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[tokio::test]
async fn a_signer_of_the_cluster_signs_and_is_checked_like_every_other() {
    let check = async |refusal: Option<&'static str>, trusted: bool, expected: Result<(), (Code, &str)>| {
        let (signer, stranger) = (Signer::new(), Signer::new());
        let roots = if trusted { signer.roots() } else { stranger.roots() };
        let cluster: Arc<dyn ClusterSigner> = Arc::new(OfCluster { signer: signer.folder, refusal });
        let plane = plane(&[], SignerOptions { cluster: Some(cluster), ..trusting(&roots) }).await;
        let answer = request(&plane, csr(CLIENT).1, Some(&token(&plane))).await;
        match (answer, expected) {
            (Ok(chain), Ok(())) => assert!(chain.last().is_some_and(|roots| roots.contains("BEGIN")), "{chain:?}"),
            (Err(status), Err((code, part))) => {
                assert!(status.code() == code && status.message().contains(part), "{status}");
            }
            (answer, expected) => panic!("{answer:?}, not {expected:?}"),
        }
    };
    check(None, true, Ok(())).await;
    check(None, false, Err((Code::Internal, "`issuers.example.com/mesh` of the cluster is refused"))).await;
    check(Some("the quota is used up"), true, Err((Code::Unavailable, "the quota is used up"))).await;
}

fn after(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from(SystemTime::now()) + time::Duration::seconds(seconds)
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("a name"))
}

/// What a good signer makes of a request of one hour.
fn leaf() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri(CLIENT)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (after(-60), after(3600));
    params
}

/// A control plane with these files and flags.
async fn plane(files: &[(&str, String)], signer: SignerOptions) -> Plane {
    let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    for (name, text) in files {
        std::fs::write(config.path().join(name), text).expect("a file");
    }
    let options = Options { signer, ..options(config.path(), state.path()) };
    Plane::start_as(config, state, options).await
}

fn trusting(roots: &Path) -> SignerOptions {
    SignerOptions { external_signer_roots: Some(roots.to_owned()), ..SignerOptions::default() }
}

fn parsed(pem: &str) -> PeerCertificate {
    PeerCertificate::parse(&[CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")]).expect("a certificate")
}

async fn ask(plane: &Plane) -> Result<Vec<String>, Status> {
    request(plane, csr(CLIENT).1, Some(&token(plane))).await
}

#[tokio::test]
async fn only_what_was_asked_for_is_handed_out() {
    let (good, foreign) = (Arc::new(Signer::new()), Arc::new(Signer::new()));
    let fake = Fake::start().await;
    let plane = plane(&[("mesh.yaml", fake.mesh("10s"))], trusting(&good.roots())).await;
    let says = async |chain: Sign| {
        fake.does(move |request| {
            let answer = Ok(chain(&request.csr));
            Box::pin(async { answer })
        });
        ask(&plane).await
    };
    let changed = |change: fn(&mut CertificateParams)| {
        let good = good.clone();
        Box::new(move |csr: &str| good.sign(csr, &change)) as Sign
    };
    let signed = says(changed(|_| {})).await.expect("a certificate");
    assert_eq!(signed.len(), 2, "the leaf, and the mesh's roots instead of the signer's");
    assert_eq!(signed[1].matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(parsed(&signed[0]).issuer, parsed(&good.root()).subject);
    // A signer whose clock is ahead by a moment: it is waited for.
    let signed = says(changed(|leaf| leaf.not_before = after(2))).await.expect("a certificate");
    assert!(parsed(&signed[0]).not_before() <= SystemTime::now());

    let refused = async |what: &str, chain: Sign, text: &str| {
        let status = says(chain).await.expect_err(what);
        assert_eq!(status.code(), Code::Internal, "{what}: {status}");
        let message = status.message();
        assert!(message.contains(text) && message.contains(&fake.address.to_string()), "{what}: {status}");
    };
    const ADMIN: &str = "spiffe://cluster.local/ns/shop/sa/admin";
    refused("another identity", changed(|leaf| leaf.subject_alt_names = vec![uri(ADMIN)]), ADMIN).await;
    refused("two identities", changed(|leaf| leaf.subject_alt_names.push(uri(ADMIN))), "and no other name").await;
    let dns =
        |leaf: &mut CertificateParams| leaf.subject_alt_names.push(SanType::DnsName("istiod".try_into().unwrap()));
    refused("a DNS name, too", changed(dns), "DNS `istiod`").await;
    let subject = |leaf: &mut CertificateParams| {
        leaf.distinguished_name.push(DnType::CommonName, "x/ns/istio-system/sa/admin");
    };
    refused("a subject", changed(subject), "the subject `CN=x/ns/istio-system/sa/admin`").await;
    refused("no name", changed(|leaf| leaf.subject_alt_names.clear()), "no name").await;
    refused("an authority", changed(|leaf| leaf.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), "sign others")
        .await;
    let signing = |leaf: &mut CertificateParams| leaf.key_usages.push(KeyUsagePurpose::KeyCertSign);
    refused("a key for signing", changed(signing), "sign others").await;
    refused("an expired one", changed(|leaf| leaf.not_after = after(-1)), "has expired").await;
    refused("one that ends at once", changed(|leaf| leaf.not_after = after(5)), "has expired").await;
    refused("one of a day", changed(|leaf| leaf.not_after = after(86_400)), "longer than the 3600 s").await;
    refused("one of tomorrow", changed(|leaf| leaf.not_before = after(600)), "not valid yet").await;
    let client_only =
        |leaf: &mut CertificateParams| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    refused("one for clients only", changed(client_only), "peers would refuse it").await;
    let server_only =
        |leaf: &mut CertificateParams| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    refused("one for servers only", changed(server_only), "peers would refuse it").await;
    let of_foreign = foreign.clone();
    refused("a foreign root", Box::new(move |csr| of_foreign.sign(csr, &|_| {})), "peers would refuse it").await;
    // A foreign leaf beside the trusted root.
    let (of_foreign, root) = (foreign.clone(), good.root());
    let mixed = move |csr: &str| vec![of_foreign.sign(csr, &|_| {})[0].clone(), root.clone()];
    refused("a foreign leaf below the root", Box::new(mixed), "peers would refuse it").await;
    let of_good = good.clone();
    let other_key = move |_: &str| of_good.sign(&csr(CLIENT).1, &|_| {});
    refused("another key", Box::new(other_key), "another key").await;
    refused("nothing", Box::new(|_| Vec::new()), "no certificate").await;
    refused("text", Box::new(|_| vec!["certificate".to_owned()]), "no certificate").await;
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    refused("a damaged one", Box::new(move |_| vec![damaged.to_owned()]), "cannot be read").await;
    let of_good = good.clone();
    let many = move |csr: &str| vec![of_good.sign(csr, &|_| {}).concat(); 6];
    refused("very many", Box::new(many), "more than 10").await;

    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains("evenkeel_external_signer_bad_answers 20\n"), "{metrics}");
    assert!(metrics.contains("citadel_server_success_cert_issuance_count 2\n"), "{metrics}");
}

/// Some signers copy the subject of a request; an empty organization is what Istio's agents send.
#[tokio::test]
async fn a_request_with_a_subject_is_not_passed_on() {
    let good = Arc::new(Signer::new());
    let fake = Fake::start().await;
    let plane = plane(&[("mesh.yaml", fake.mesh("10s"))], trusting(&good.roots())).await;
    let with_subject = |kind: DnType, value: &str| {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![uri(CLIENT)];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(kind, value);
        let key = KeyPair::generate().expect("a key");
        params.serialize_request(&key).expect("a request").pem().expect("PEM")
    };
    fake.does(move |request| {
        let answer = Ok(good.sign(&request.csr, &|_| {}));
        Box::pin(async { answer })
    });
    let named = with_subject(DnType::CommonName, "x/ns/istio-system/sa/admin");
    let status = request(&plane, named, Some(&token(&plane))).await.expect_err("a subject");
    assert!(status.message().contains("has the subject"), "{status}");
    assert_eq!(fake.asked().len(), 0);
    let empty = with_subject(DnType::OrganizationName, "");
    request(&plane, empty, Some(&token(&plane))).await.expect("a certificate");
}

/// An authority below a signer's root.
struct Intermediate {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Intermediate {
    fn below(root: &Issuer<'static, KeyPair>, change: impl Fn(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Intermediate");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from(INTERMEDIATE));
        (params.not_before, params.not_after) = (after(-3600), after(86_400));
        change(&mut params);
        let certificate = params.signed_by(&key, root).expect("a certificate").pem();
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).expect("an issuer");
        Self { certificate, issuer }
    }

    fn leaf(&self, csr: &str, serial: u64) -> String {
        let request = CertificateSigningRequestParams::from_pem(csr).expect("a request");
        let mut params = leaf();
        params.serial_number = Some(SerialNumber::from(serial));
        params.signed_by(&request.public_key, &self.issuer).expect("a certificate").pem()
    }
}

/// The serial numbers of an intermediate authority, of a leaf that is revoked, and of one that is not.
const INTERMEDIATE: u64 = 11;
const REVOKED: u64 = 12;
const GOOD: u64 = 13;

/// A revocation list, PEM.
fn list(issuer: &Issuer<'static, KeyPair>, revoked: &[u64]) -> String {
    let revoked = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: after(-60),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: after(-3600),
        next_update: after(3600),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(issuer).expect("a list").pem().expect("PEM")
}

#[tokio::test]
async fn a_signer_may_have_intermediate_authorities() {
    let (good, foreign) = (Signer::new(), Signer::new());
    let fake = Fake::start().await;
    let plane = plane(&[("mesh.yaml", fake.mesh("10s"))], trusting(&good.roots())).await;
    let says = async |between: Intermediate, chain: fn(String, &str, String) -> Vec<String>| {
        let root = good.root();
        fake.does(move |request| {
            let answer = Ok(chain(between.leaf(&request.csr, GOOD), &between.certificate, root.clone()));
            Box::pin(async { answer })
        });
        ask(&plane).await
    };
    let below = |change: fn(&mut CertificateParams)| Intermediate::below(&good.issuer(), change);
    let signed = says(below(|_| {}), |leaf, between, _| vec![leaf, between.to_owned()]).await.expect("a chain");
    assert_eq!(signed.len(), 3, "the leaf, the intermediate authority, the mesh's roots: {signed:?}");
    assert_eq!(parsed(&signed[0]).issuer, parsed(&signed[1]).subject);
    assert_eq!(parsed(&signed[1]).issuer, parsed(&good.root()).subject);
    // The same in one text, and with the root.
    let signed = says(below(|_| {}), |leaf, between, root| vec![leaf + between + &root]).await.expect("a chain");
    assert_eq!(signed.len(), 3, "{signed:?}");

    let refused = async |what: &str, between: Intermediate, chain: fn(String, &str, String) -> Vec<String>| {
        let status = says(between, chain).await.expect_err(what);
        assert_eq!(status.code(), Code::Internal, "{what}: {status}");
        assert!(status.message().contains("peers would refuse it"), "{what}: {status}");
    };
    refused("without it", below(|_| {}), |leaf, _, _| vec![leaf]).await;
    refused("without it, but with the root", below(|_| {}), |leaf, _, root| vec![leaf, root]).await;
    let with: fn(String, &str, String) -> Vec<String> = |leaf, between, _| vec![leaf, between.to_owned()];
    refused("one below a foreign root", Intermediate::below(&foreign.issuer(), |_| {}), with).await;
    refused("one that has ended", below(|params| params.not_after = after(-60)), with).await;
    refused("one that may not sign", below(|params| params.is_ca = IsCa::ExplicitNoCa), with).await;
}

#[tokio::test]
async fn revoked_certificates_of_the_signer_are_not_handed_out() {
    let (signer, own) = (Signer::new(), Authority::new_root("corp", SystemTime::now()).expect("a root"));
    let own_key = KeyPair::from_pem(&own.key).expect("a key");
    let own_list = list(&Issuer::from_ca_cert_pem(&own.certificate, own_key).expect("an issuer"), &[]);
    let of_root = |revoked: &[u64]| list(&signer.issuer(), revoked);
    // With these lists: how an answer ends with a leaf of the root, and with one of an intermediate authority.
    let check = async |what: &str, of_signer: &str, between: Arc<Intermediate>, serial: u64, expected: [bool; 2]| {
        let plugged = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("ca-cert.pem", &own.certificate),
            ("ca-key.pem", &own.key),
            ("root-cert.pem", &own.roots),
            ("ca-crl.pem", &format!("{own_list}{of_signer}")),
        ] {
            std::fs::write(plugged.path().join(name), text).expect("a file");
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(plugged.path().join(name), mode).expect("a mode");
        }
        let fake = Fake::start().await;
        let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        std::fs::write(config.path().join("mesh.yaml"), fake.mesh("10s")).expect("a file");
        let flags = trusting(&signer.roots());
        let ca_certs = Some(plugged.path().to_owned());
        let options = Options { signer: flags, ca_certs, ..options(config.path(), state.path()) };
        let plane = Plane::start_as(config, state, options).await;
        // What tests take for the root.
        std::fs::write(plane.state.path().join("ca-cert.pem"), &own.roots).expect("a file");
        let root = Arc::new(Signer { folder: tempfile::tempdir().expect("a directory") });
        for name in ["ca-cert.pem", "ca-key.pem"] {
            std::fs::copy(signer.folder.path().join(name), root.folder.path().join(name)).expect("a copy");
        }
        for (below, expected) in [false, true].into_iter().zip(expected) {
            let (root, between) = (root.clone(), between.clone());
            fake.does(move |request| {
                let serial_number = move |leaf: &mut CertificateParams| {
                    leaf.serial_number = Some(SerialNumber::from(serial));
                };
                let answer = if below {
                    vec![between.leaf(&request.csr, serial), between.certificate.clone()]
                } else {
                    root.sign(&request.csr, &serial_number)
                };
                Box::pin(async { Ok(answer) })
            });
            let answer = ask(&plane).await;
            assert_eq!(answer.is_ok(), expected, "{what}, below an intermediate authority: {below}: {answer:?}");
            if let Err(status) = answer {
                assert!(status.message().contains("peers would refuse it"), "{what}: {status}");
            }
        }
    };
    let between = || Arc::new(Intermediate::below(&signer.issuer(), |_| {}));
    let with =
        |between: &Intermediate, by_root: &[u64], by_it: &[u64]| of_root(by_root) + &list(&between.issuer, by_it);
    let one = between();
    check("nothing is revoked", &with(&one, &[], &[]), one.clone(), GOOD, [true, true]).await;
    check("another one is", &with(&one, &[REVOKED], &[REVOKED]), one.clone(), GOOD, [true, true]).await;
    check("the root has revoked the leaf", &with(&one, &[REVOKED], &[]), one.clone(), REVOKED, [false, true]).await;
    check("the other has", &with(&one, &[], &[REVOKED]), one.clone(), REVOKED, [true, false]).await;
    check("the root has revoked the other", &with(&one, &[INTERMEDIATE], &[]), one.clone(), GOOD, [true, false]).await;
    // Lists that are there have to speak for every certificate.
    check("the other has no list", &of_root(&[]), one.clone(), GOOD, [true, false]).await;
    check("only the mesh's authority has one", "", one, GOOD, [false, false]).await;
}

/// What the control plane refuses by itself does not reach the signer.
#[tokio::test]
async fn who_asks_is_checked_before_the_signer_is_bothered() {
    let (signer, fake) = (Signer::new(), Fake::start().await);
    let plane = plane(&[("mesh.yaml", fake.mesh("10s"))], trusting(&signer.roots())).await;
    let status = request(&plane, csr(CLIENT).1, None).await.expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = request(&plane, csr("spiffe://cluster.local/ns/shop/sa/admin").1, Some(&token(&plane))).await;
    assert_eq!(status.expect_err("another's name").code(), Code::PermissionDenied);
    let status = request(&plane, "garbage".to_owned(), Some(&token(&plane))).await;
    assert_eq!(status.expect_err("no request").code(), Code::InvalidArgument);
    // A text with two requests: only the one that was checked goes on.
    let two = csr(CLIENT).1 + &csr("spiffe://cluster.local/ns/shop/sa/admin").1;
    let seen = Arc::new(Mutex::new(String::new()));
    let sees = seen.clone();
    fake.does(move |request| {
        sees.lock().expect("a text").push_str(&request.csr);
        Box::pin(async { Err(Status::permission_denied("not today")) })
    });
    let status = request(&plane, two, Some(&token(&plane))).await.expect_err("no certificate");
    assert!(status.message().contains("it does not sign this: not today"), "{status}");
    assert_eq!(seen.lock().expect("a text").matches("BEGIN CERTIFICATE REQUEST").count(), 1);
    assert_eq!(fake.asked(), [None], "asked once, and without anybody's token");
}

#[tokio::test]
async fn a_signer_that_fails_is_asked_again_and_one_that_refuses_is_not() {
    let (signer, fake) = (Arc::new(Signer::new()), Fake::start().await);
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "of-the-plane\n").expect("a file");
    let flags = SignerOptions { external_signer_token: Some(secret.path().to_owned()), ..trusting(&signer.roots()) };
    let plane = plane(&[("mesh.yaml", fake.mesh("20s"))], flags).await;
    let tries = Arc::new(Mutex::new(0));
    fake.does(move |request| {
        let mut tries = tries.lock().expect("a number");
        *tries += 1;
        let answer = match *tries {
            1 | 2 => Err(Status::unavailable("later")),
            _ => Ok(signer.sign(&request.csr, &|_| {})),
        };
        Box::pin(async { answer })
    });
    ask(&plane).await.expect("a certificate at the third try");
    assert_eq!(fake.asked(), vec![Some("Bearer of-the-plane".to_owned()); 3]);
    for (status, text) in [
        (Status::unauthenticated("who are you?"), "does not accept the control plane's credentials: who are you?"),
        (Status::invalid_argument("bad\r\nlines"), "it refuses: bad\\r\\nlines"),
        (Status::resource_exhausted("x".repeat(5000)), "it refuses: xxx"),
    ] {
        fake.does(move |_| {
            let status = status.clone();
            Box::pin(async { Err(status) })
        });
        let status = ask(&plane).await.expect_err("no certificate");
        // Not the agent's credentials are bad: it shall come again.
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(text) && status.message().len() < 500, "{status}");
        assert_eq!(fake.asked().len(), 1, "{text}");
    }
    std::fs::remove_file(secret.path()).expect("a file");
    let status = ask(&plane).await.expect_err("no token");
    assert!(status.message().contains("No such file"), "{status}");
    assert_eq!(fake.asked(), [], "nothing is asked without the token");
    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains("evenkeel_external_signer_failures 4\n"), "{metrics}");
}

/// Tells when it is dropped.
struct Notifier(Option<oneshot::Sender<()>>);

impl Drop for Notifier {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(()));
    }
}

#[tokio::test]
async fn a_silent_signer_ends_with_the_limit_and_with_the_agent() {
    let (signer, fake) = (Signer::new(), Fake::start().await);
    let plane = plane(&[("mesh.yaml", fake.mesh("1s"))], trusting(&signer.roots())).await;
    fake.does(|_| Box::pin(std::future::pending()));
    let status = ask(&plane).await.expect_err("no certificate");
    assert!(status.message().contains("no answer within 1000 ms"), "{status}");

    // An agent that goes away takes its request with it.
    plane.write("mesh.yaml", &fake.mesh("1h"));
    let slot: Arc<Mutex<Vec<oneshot::Receiver<()>>>> = Arc::default();
    let slots = slot.clone();
    fake.does(move |_| {
        let (sender, receiver) = oneshot::channel();
        slots.lock().expect("a list").push(receiver);
        let told = Notifier(Some(sender));
        Box::pin(async move {
            let _told = told;
            std::future::pending().await
        })
    });
    // The new limit is in force when a request outlives the old one.
    let ended = async {
        loop {
            let channel = connect(&plane).await;
            let token = token(&plane);
            let asking = request_over(channel, csr(CLIENT).1, Some(&token));
            if tokio::time::timeout(Duration::from_secs(3), asking).await.is_err() {
                return slot.lock().expect("a list").pop();
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("the new limit").expect("a request at the signer");
    tokio::time::timeout(PATIENCE, ended).await.expect("the signer is told").expect("the request has ended");
}

/// A signer that does not answer at all, or whose settings cannot be used: nobody signs instead.
#[tokio::test]
async fn without_its_signer_the_control_plane_signs_nothing() {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let roots = Signer::new();
    let check = async |mesh: &str, flags: SignerOptions, text: &str| {
        let file = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    {mesh}\n"
        );
        let plane = plane(&[("mesh.yaml", file)], flags).await;
        let status = ask(&plane).await.expect_err(mesh);
        assert_eq!(status.code(), Code::Unavailable, "{mesh}: {status}");
        assert!(status.message().contains(text), "{mesh}: {status}");
    };
    let nobody = format!("ca: {{address: \"{unused}\", tlsSettings: {{mode: DISABLE}}}}");
    check(&nobody, trusting(&roots.roots()), "refused").await;
    for unusable in [
        "ca: {}",
        "ca: {address: signer.example}",
        "ca: {adress: \"signer.example:1\"}",
        "ca: {address: \"signer.example:1\", tlsSettings: {mode: DISABLE}}",
        "ca: {address: \"signer.example:1\", tlsSettings: {mode: ISTIO_MUTUAL}}",
        "ca: {address: \"signer.example:1\", tlsSettings: {mode: SIMPLE, insecureSkipVerify: true}}",
        "ca: {address: \"signer.example:1\"",
        "ca: signer.example:1",
    ] {
        check(unusable, SignerOptions::default(), "no external signer: `ca` of the mesh's settings cannot be used")
            .await;
    }
}

/// Another control plane as the signer, over TLS, which knows workloads by their own tokens.
struct Pair {
    signer: Plane,
    plane: Plane,
}

impl Pair {
    async fn start(change: impl Fn(&mut SignerOptions, &Plane)) -> Self {
        let signer = Plane::start(&[]).await;
        let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        // Both know the workloads' tokens.
        drop(token(&signer));
        let key = "token-key.pem";
        std::fs::copy(signer.state.path().join(key), state.path().join(key)).expect("a key");
        let roots = signer.state.path().join(BUNDLE_FILE);
        let mut flags = SignerOptions {
            external_signer: Some(signer.addresses.secure_grpc.to_string()),
            external_signer_ca: Some(roots.clone()),
            external_signer_forward_token: true,
            ..trusting(&roots)
        };
        change(&mut flags, &signer);
        let options = Options { signer: flags, ..options(config.path(), state.path()) };
        Self { plane: Plane::start_as(config, state, options).await, signer }
    }
}

#[tokio::test]
async fn a_second_control_plane_signs_and_its_certificates_are_served() {
    let Pair { signer, plane } = Pair::start(|_, _| {}).await;
    let (key, csr) = csr(CLIENT);
    let chain = request(&plane, csr, Some(&token(&plane))).await.expect("a certificate");
    assert_eq!(signer.json("/debug/ca").await["workloads"], 1, "the signer's ledger has it");
    let mut stream = stream(&plane, tls(&plane, Some((&chain, &key))), "shop", "client").await.expect("a stream");
    stream.want_roots().await;
    let told = |update: &evenkeel_xds::client::Update| {
        let roots = update.added.iter().find(|resource| resource.any.type_url.ends_with("ProxyConfig"))?;
        unpack::<ProxyConfig>(&roots.any).expect("a message").ca_certificates_pem.first().cloned()
    };
    let roots = stream.until(told).await;
    assert!(roots.starts_with("-----BEGIN"), "nobody is told whose certificates are current: {roots}");
    assert_eq!(roots.matches("BEGIN CERTIFICATE").count(), 2);
    let status = plane.until("/debug/ca", |page| {
        let status: serde_json::Value = serde_json::from_str(page).ok()?;
        (status["external"]["trusting"] == 1).then_some(status)
    });
    assert_eq!(status.await["external"]["address"], signer.addresses.secure_grpc.to_string());

    // A rotation of the plane's own authority waits for no new certificate of the workload, only for its trust.
    authorities::request(plane.state.path(), Kind::Root).expect("asked");
    loop {
        let roots = stream.until(told).await;
        assert!(roots.starts_with("-----BEGIN"), "{roots}");
        let status = plane.json("/debug/ca").await;
        if status["state"]["phase"] == "steady" {
            assert_eq!(status["state"]["generation"], 5, "{status}");
            break;
        }
    }
    assert_eq!(roots_of(&plane), 2, "the new root, and the signer's");
}

fn roots_of(plane: &Plane) -> usize {
    let bundle = std::fs::read_to_string(plane.state.path().join(BUNDLE_FILE)).expect("a bundle");
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[tokio::test]
async fn the_signer_is_verified_and_verifies() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name);
    let made = |name: &str, files: &PluggedFiles| {
        let at = path(name);
        std::fs::create_dir_all(&at).expect("a directory");
        std::fs::write(at.join("ca-cert.pem"), &files.certificate).expect("a file");
        std::fs::write(at.join("ca-key.pem"), &files.key).expect("a file");
        at
    };
    let identity = |name: &str, authority: &Authority| {
        let server = authority.server_certificate(&["ra"], Duration::from_secs(3600), SystemTime::now());
        let server = server.expect("a certificate");
        std::fs::write(path(&format!("{name}.pem")), server.chain_pem).expect("a file");
        std::fs::write(path(&format!("{name}.key")), server.key_pem).expect("a file");
    };
    let other = Authority::new_root("other", SystemTime::now()).expect("a root");
    let other_at = made("other", &other);
    let shows = |flags: &mut SignerOptions, name: &str| {
        flags.external_signer_cert = Some(path(&format!("{name}.pem")));
        flags.external_signer_key = Some(path(&format!("{name}.key")));
    };
    // One of the signer's own, and one of nobody it knows.
    let own = Pair::start(|flags, signer| {
        identity("own", &Authority::open(signer.state.path(), "cluster.local", SystemTime::now()).expect("the signer"));
        shows(flags, "own");
    });
    ask(&own.await.plane).await.expect("a certificate");
    identity("stranger", &Authority::from_files(&other, SystemTime::now()).expect("an authority"));
    let strange = Pair::start(|flags, _| shows(flags, "stranger")).await;
    let status = ask(&strange.plane).await.expect_err("no certificate");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(strange.signer.json("/debug/ca").await["workloads"], 0);
    // Whoever has the signer's address is not the signer.
    let wrong = Pair::start(|flags, _| flags.external_signer_ca = Some(other_at.join("ca-cert.pem"))).await;
    let status = ask(&wrong.plane).await.expect_err("no certificate");
    assert!(status.message().contains("UnknownIssuer") || status.message().contains("certificate"), "{status}");
    assert_eq!(wrong.signer.json("/debug/ca").await["workloads"], 0, "nothing was asked");
    let unknown = Pair::start(|flags, _| flags.external_signer_ca = None).await;
    ask(&unknown.plane).await.expect_err("the system's roots do not know it");
    // Without a token this signer signs nothing.
    let without = Pair::start(|flags, _| flags.external_signer_forward_token = false).await;
    let status = ask(&without.plane).await.expect_err("no certificate");
    assert!(status.message().contains("does not accept the control plane's credentials"), "{status}");
}

#[tokio::test]
async fn roots_of_the_signer_are_followed() {
    let (old, new) = (Signer::new(), Signer::new());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("a file");
    write(&old.root());
    let fake = Fake::start().await;
    let plane = plane(&[("mesh.yaml", fake.mesh("10s"))], trusting(file.path())).await;
    assert_eq!(roots_of(&plane), 2);
    fake.does({
        let new = Arc::new(new);
        write(&(old.root() + &new.root()));
        move |request| {
            let answer = Ok(new.sign(&request.csr, &|_| {}));
            Box::pin(async { answer })
        }
    });
    let asked = async {
        while ask(&plane).await.is_err() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("the new root is trusted");
    assert_eq!(roots_of(&plane), 3);
    // A file that somebody damages takes nothing away.
    write("garbage");
    ask(&plane).await.expect("a certificate");
    let missing = trusting(Path::new("/nonexistent"));
    let (config, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let options = Options { signer: missing, ..options(config.path(), state.path()) };
    let error = evenkeel_control::ControlPlane::start(&options).await.expect_err("no roots").to_string();
    assert!(error.contains("--external-signer-roots: /nonexistent"), "{error}");
}
