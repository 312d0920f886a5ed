//! Roots of several trust domains: each is trusted only for identities of its own.

use evenkeel_tls::config::{ClientCertificate, PeerChecks, TrustSource, Validation};
use evenkeel_tls::{DownstreamTls, SdsSecret, SdsServer, SecretStore, TrustBundle, UpstreamTls};
use rcgen::SanType;

use crate::support::*;

const PARTNER: &str = "spiffe://partner.example/ns/default/sa/web";

fn trusted(domains: &[(&str, &TestCa)]) -> Validation {
    let domains = domains.iter().map(|(name, ca)| ((*name).to_owned(), ca.pem().into_bytes())).collect();
    Validation::Chain { trust: TrustSource::Domains(domains), checks: PeerChecks::default() }
}

fn uris(ca: &TestCa, uris: &[&str]) -> Pair {
    let names = uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())).collect();
    ca.issue(|params| params.subject_alt_names = names)
}

#[tokio::test]
async fn a_root_vouches_only_for_its_own_trust_domain() {
    let (own, partner, stranger) = (TestCa::new("own"), TestCa::new("partner"), TestCa::new("stranger"));
    let trust = || trusted(&[("cluster.local", &own), ("partner.example", &partner)]);
    // The same peer as a client and as a server.
    let check = async |peer: &Pair, expected: Option<&str>| {
        let mut far = server_context(&own, &own.workload(INFO));
        far.common.validation = trust();
        let (_, served) = shake(&client(&client_context(&own, peer, INFO)), &server(&far)).await;
        let mut near = client_context(&own, &own.workload(WEB), INFO);
        near.common.validation = trust();
        let mut peers = server_context(&own, peer);
        (peers.common.validation, peers.client_certificate) = (Validation::None, ClientCertificate::No);
        let (connected, _) = shake(&client(&near), &server(&peers)).await;
        for outcome in [served, connected] {
            match (outcome.map(drop).map_err(|error| error.to_string()), expected) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) if error.contains(part) => {}
                (found, expected) => panic!("{found:?}, expected {expected:?}"),
            }
        }
    };
    check(&own.workload(WEB), None).await;
    check(&partner.workload(PARTNER), None).await;
    check(&partner.workload("spiffe://partner.example/any/path"), None).await;
    // Identity forgery: each authority for the other's trust domain.
    check(&own.workload(PARTNER), Some("not signed by a root of its trust domain `partner.example`")).await;
    check(&partner.workload(WEB), Some("not signed by a root of its trust domain `cluster.local`")).await;
    check(&stranger.workload(WEB), Some("not signed by a root of its trust domain `cluster.local`")).await;
    // A trust domain that nobody vouches for.
    check(&own.workload("spiffe://unknown.example/ns/a/sa/b"), Some("no roots of its trust domain `unknown.example`"))
        .await;
    check(&partner.workload("spiffe://cluster.local.partner.example/ns/a/sa/b"), Some("no roots of its trust domain"))
        .await;
    // Names that are ambiguous, or none.
    for names in [
        &[PARTNER, WEB][..],
        &[WEB, PARTNER],
        &["https://partner.example/ns/a/sa/b"],
        &["spiffe://Partner.example/ns/a/sa/b"],
        &["spiffe://user@partner.example/ns/a/sa/b"],
        &["spiffe://partner.example:443/ns/a/sa/b"],
        &["spiffe:///ns/a/sa/b"],
        &[],
    ] {
        check(&uris(&partner, names), Some("no SPIFFE id, or more than one URI")).await;
    }
}

#[tokio::test]
async fn a_trust_domain_that_is_withdrawn_is_refused_with_its_sessions() {
    let (own, partner) = (TestCa::new("own"), TestCa::new("partner"));
    let (store, secret) =
        (SecretStore::new(), SdsSecret { name: "ROOTCA".into(), server: SdsServer::Cluster("sds-grpc".into()) });
    let mut far = server_context(&own, &own.workload(INFO));
    far.common.validation =
        Validation::Chain { trust: TrustSource::Sds(secret.clone()), checks: PeerChecks::default() };
    let far = DownstreamTls::new(&far, &store).unwrap();
    let near: UpstreamTls = client(&client_context(&own, &partner.workload(PARTNER), INFO));
    let deliver = |domains: &[(&str, &TestCa)]| {
        let domains: Vec<_> = domains.iter().map(|(name, ca)| ((*name).to_owned(), ca.pem().into_bytes())).collect();
        store.set_domains(&secret, &domains, None)
    };
    let serves = async || shake(&near, &far).await.1.is_ok();
    deliver(&[("cluster.local", &own), ("partner.example", &partner)]).unwrap();
    assert!(serves().await);
    assert!(serves().await, "resumed");
    // The same roots, but for others: a session ticket does not help.
    deliver(&[("cluster.local", &own), ("other.example", &partner)]).unwrap();
    assert!(!serves().await);
    deliver(&[("cluster.local", &own), ("partner.example", &partner)]).unwrap();
    assert!(serves().await);
    deliver(&[("cluster.local", &own)]).unwrap();
    assert!(!serves().await);
    // What cannot be used changes nothing.
    assert!(deliver(&[]).is_err());
    assert!(!serves().await);
}

#[test]
fn what_is_no_set_of_trust_domains_is_refused() {
    let ca = TestCa::new("root");
    let check = |domains: &[(&str, &str)], expected: &str| {
        let bundles = domains.iter().map(|(name, roots)| (*name, roots.as_bytes()));
        let error = TrustBundle::from_domains(bundles).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let pem = ca.pem();
    check(&[], "no `BEGIN CERTIFICATE`");
    check(&[("a.example", "")], "trust domain `a.example`: holds no");
    check(&[("A.example", &pem)], "not the name of a trust domain");
    check(&[("", &pem)], "not the name of a trust domain");
    check(&[("a.example", &pem), ("a.example", &pem)], "two bundles");
}
