//! A signer of the cluster: a loop that signs what has been approved, as cert-manager's do, against a real API server.

use std::time::{Duration, SystemTime};

use evenkeel_ca::Authority;
use evenkeel_ca::external::ExternalRequest;
use evenkeel_control::ClusterSigner as _;
use evenkeel_k8s::certificate_requests::KubernetesSigner;
use evenkeel_k8s::trust_bundles::{RootsError, SignerRoots};
use evenkeel_testkit::kubernetes::ApiServer;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use serde_json::json;

use crate::fixture::{admin, client, until};

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const HOUR: Duration = Duration::from_secs(3600);

fn wanted() -> ExternalRequest {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(WEB.try_into().expect("a name"))];
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate().expect("a key");
    let request = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    ExternalRequest::new(request.as_bytes(), &WEB.parse().expect("an identity"), HOUR).expect("a sound request")
}

/// Signs what is approved for this signer, or says that it does not.
async fn signs(client: Client, signer: &'static str, refusal: Option<&'static str>) {
    let folder = tempfile::tempdir().expect("a directory");
    let authority = Authority::open(folder.path(), "elsewhere", SystemTime::now()).expect("an authority");
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    loop {
        let selected = ListParams::default().fields(&format!("spec.signerName={signer}"));
        for request in requests.list(&selected).await.expect("a list").items {
            let conditions = request.status.and_then(|status| status.conditions).unwrap_or_default();
            let [usages, seconds] = [
                request.spec.usages.is_some_and(|usages| usages.len() == 4),
                request.spec.expiration_seconds == Some(3600),
            ];
            assert!(usages && seconds, "what a certificate of a workload needs");
            if !conditions.iter().any(|condition| condition.type_ == "Approved" && condition.status == "True") {
                continue;
            }
            let status = match refusal {
                None => {
                    let identity = WEB.parse().expect("an identity");
                    let issued = authority.sign(&request.spec.request.0, &identity, HOUR, SystemTime::now());
                    let chain = issued.expect("a certificate").chain.concat();
                    json!({"certificate": k8s_openapi::ByteString(chain.into_bytes())})
                }
                Some(message) => {
                    let mut conditions = json!(conditions);
                    let failed = json!({"type": "Failed", "status": "True", "reason": "No", "message": message});
                    conditions.as_array_mut().expect("a list").push(failed);
                    json!({"conditions": conditions})
                }
            };
            let name = request.metadata.name.unwrap_or_default();
            // It may have been deleted.
            let _ =
                requests.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clusters_signers_sign_what_the_control_plane_approves() {
    let server = ApiServer::shared();
    let account = server.namespace("signer");
    let admin = admin(server).await;
    let (good, bad, silent) = ("good.example.com/mesh", "bad.example.com/mesh", "silent.example.com/mesh");
    let signers = [(good, None), (bad, Some("the quota is used up"))];
    let signing = signers.map(|(name, refusal)| tokio::spawn(signs(admin.clone(), name, refusal)));

    let chain = KubernetesSigner::new(admin.clone(), good).sign(&wanted()).await.expect("a certificate");
    assert!(chain.concat().contains("BEGIN CERTIFICATE"), "{chain:?}");
    let refused = KubernetesSigner::new(admin.clone(), bad).sign(&wanted()).await.expect_err("a refusal");
    assert!(refused.contains("failed: the quota is used up"), "{refused}");
    // Who does not wait any longer leaves nothing behind.
    let waiting = KubernetesSigner::new(admin.clone(), silent);
    let wanted_one = wanted();
    assert!(tokio::time::timeout(Duration::from_millis(500), waiting.sign(&wanted_one)).await.is_err());
    let requests: Api<CertificateSigningRequest> = Api::all(admin.clone());
    until(async || requests.list(&ListParams::default()).await.is_ok_and(|list| list.items.is_empty())).await;

    // The API server lets only those approve who may approve for the signer.
    let limited = client(&server.kubeconfig_of(&account, "default")).await;
    let limited = KubernetesSigner::new(limited, good);
    let refused = limited.sign(&wanted()).await.expect_err("a refusal");
    assert!(refused.contains("RBAC forbids to create") && refused.contains("`approve` for the signer"), "{refused}");
    let role = ["create", "clusterrole", "requests", "--verb=create,get,delete,patch"];
    let resources = "--resource=certificatesigningrequests,certificatesigningrequests/approval";
    server.kubectl(&[&role[..], &[resources]].concat());
    let subject = format!("--serviceaccount={account}:default");
    server.kubectl(&["create", "clusterrolebinding", "requests", "--clusterrole=requests", &subject]);
    until(async || limited.sign(&wanted()).await.expect_err("a refusal").contains("forbids to approve")).await;
    server.apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: approver}\nrules:\n\
         - {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: [good.example.com/mesh], verbs: [approve]}\n",
    );
    server.kubectl(&["create", "clusterrolebinding", "approver", "--clusterrole=approver", &subject]);
    until(async || limited.sign(&wanted()).await.is_ok()).await;
    signing.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_roots_of_a_signer_are_those_of_its_bundles_and_never_none() {
    let server = ApiServer::start();
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("roots.pem");
    let root = |name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).expect("a directory");
        Authority::open(folder.as_path(), name, SystemTime::now()).expect("an authority").trust_bundle_pem().to_owned()
    };
    let signer = "good.example.com/mesh";
    let bundle = |name: &str, signer: &str, pem: &str| {
        let spec = json!({"signerName": signer, "trustBundle": pem});
        let metadata = json!({"name": format!("{}:{name}", signer.replace('/', ":"))});
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": metadata, "spec": spec,
        });
        server.apply(&object.to_string());
    };
    let mut roots = SignerRoots::new(admin(&server).await, signer, path.clone());
    let none = roots.begin().await.expect_err("there is no bundle");
    assert!(matches!(&none, RootsError::None(name) if name == signer), "{none}");
    let [one, two, other] = ["one", "two", "other"].map(root);
    bundle("one", signer, &one);
    bundle("other", "bad.example.com/mesh", &other);
    roots.begin().await.expect("roots");
    let written = || std::fs::read_to_string(&path).expect("the file");
    assert_eq!(written().trim(), one.trim());
    // A further root comes beside it; without any bundle, what was there stays.
    bundle("two", signer, &two);
    roots.refresh().await.expect("roots");
    assert!(written().contains(one.trim()) && written().contains(two.trim()) && !written().contains(other.trim()));
    server.kubectl(&["delete", "clustertrustbundles", "--all"]);
    assert!(matches!(roots.refresh().await, Err(RootsError::None(_))));
    assert!(written().contains(two.trim()));
    // A start while the API server is away takes the file.
    server.kill();
    let mut again = SignerRoots::new(admin(&server).await, signer, path.clone());
    again.begin().await.expect("the roots of an earlier process");
}
