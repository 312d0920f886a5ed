//! Certificates from a signer of the cluster: the control plane creates a CertificateSigningRequest with the signer's name, approves it, and
//! waits for the certificate, as Istio's registration authority does (`EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API`, `K8S_SIGNER`).
//!
//! Whoever may approve requests of a signer may have any identity signed. So the control plane approves only what it has created itself, for
//! an identity that a token has proven, and the certificate is checked as that of every external signer.

use std::time::Duration;

use evenkeel_ca::external::ExternalRequest;
use evenkeel_control::{ClusterSigner, Signed};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;

use crate::reason::reason;

/// The first pause before it is looked for the certificate; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// See [`FIRST_PAUSE`].
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The shortest lifetime that may be requested (`spec.expirationSeconds`), in seconds.
const MIN_SECONDS: u64 = 600;
/// Maximum number of characters of others' messages that are passed on.
const MAX_REASON: usize = 300;

/// A signer of the cluster.
#[derive(Clone)]
pub struct KubernetesSigner {
    requests: Api<CertificateSigningRequest>,
    name: String,
}

impl std::fmt::Debug for KubernetesSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KubernetesSigner").field(&self.name).finish()
    }
}

impl KubernetesSigner {
    /// The signer of this name, such as `clusterissuers.cert-manager.io/mesh`.
    pub fn new(client: Client, name: &str) -> Self {
        Self { requests: Api::all(client), name: name.to_owned() }
    }

    async fn request(&self, wanted: &ExternalRequest) -> Result<Vec<String>, String> {
        let name = format!("evenkeel-workload-{}", random()?);
        let failed = |what: &str, error: &Error| self.explained(what, error);
        let seconds = wanted.ttl().as_secs().max(MIN_SECONDS);
        let usages = ["digital signature", "key encipherment", "client auth", "server auth"];
        let spec = CertificateSigningRequestSpec {
            request: ByteString(wanted.pem().as_bytes().to_vec()),
            signer_name: self.name.clone(),
            expiration_seconds: i32::try_from(seconds).ok(),
            usages: Some(usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        };
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let object = CertificateSigningRequest { metadata, spec, status: None };
        let created = self.requests.create(&PostParams::default(), &object).await;
        created.map_err(|error| failed("create a CertificateSigningRequest", &error))?;
        // Also if the caller does not wait any longer.
        let _removal = Removal { requests: self.requests.clone(), name: name.clone() };
        let condition = json!({
            "type": "Approved", "status": "True", "reason": "EvenkeelApproved",
            "message": "a token has proven the identity of the workload",
        });
        let approval = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let approved = self.requests.patch_subresource("approval", &name, &PatchParams::default(), &approval).await;
        approved.map_err(|error| failed("approve a CertificateSigningRequest", &error))?;
        let mut pause = FIRST_PAUSE;
        // The caller limits the time.
        loop {
            let found = self.requests.get(&name).await;
            let status = found.map_err(|error| failed("read a CertificateSigningRequest", &error))?.status;
            if let Some(answer) = answer(status.unwrap_or_default()) {
                return answer;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn explained(&self, what: &str, error: &Error) -> String {
        match error {
            Error::Api(status) if status.code == 403 => format!(
                "RBAC forbids to {what} ({}): the control plane needs `create`, `get` and `delete` for certificatesigningrequests, \
                 `patch` for certificatesigningrequests/approval, and `approve` for the signer `{}`",
                status.message, self.name
            ),
            error => format!("the API server does not {what}: {}", reason(error)),
        }
    }
}

impl ClusterSigner for KubernetesSigner {
    fn name(&self) -> &str {
        &self.name
    }

    fn sign<'a>(&'a self, wanted: &'a ExternalRequest) -> Signed<'a> {
        Box::pin(self.request(wanted))
    }
}

/// What a status says; `None`: nothing yet.
fn answer(status: CertificateSigningRequestStatus) -> Option<Result<Vec<String>, String>> {
    let conditions = status.conditions.unwrap_or_default();
    if let Some(refusal) = conditions.iter().find(|condition| matches!(&*condition.type_, "Denied" | "Failed")) {
        let text = refusal.message.as_deref().or(refusal.reason.as_deref()).unwrap_or("it does not say why");
        let text: String = text.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        return Some(Err(format!("the request is {}: {text}", refusal.type_.to_ascii_lowercase())));
    }
    let certificate = status.certificate.filter(|certificate| !certificate.0.is_empty())?;
    let chain = String::from_utf8(certificate.0).map_err(|_| "the certificate is no PEM".to_owned());
    Some(chain.map(|chain| vec![chain]))
}

/// Deletes a request: the API server would keep it for an hour.
struct Removal {
    requests: Api<CertificateSigningRequest>,
    name: String,
}

impl Drop for Removal {
    fn drop(&mut self) {
        let (requests, name) = (self.requests.clone(), std::mem::take(&mut self.name));
        tokio::spawn(async move {
            if let Err(error) = requests.delete(&name, &DeleteParams::default()).await {
                tracing::debug!(%error, name, "a CertificateSigningRequest is not deleted");
            }
        });
    }
}

fn random() -> Result<String, String> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "no random numbers".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;

    use super::*;

    #[test]
    fn a_status_has_a_certificate_or_a_refusal_or_nothing_yet() {
        let check = |condition: Option<(&str, &str)>, certificate: &str, expected: Option<Result<&str, &str>>| {
            let condition = condition.map(|(kind, message)| CertificateSigningRequestCondition {
                type_: kind.to_owned(),
                message: Some(message.to_owned()),
                ..CertificateSigningRequestCondition::default()
            });
            let certificate = Some(ByteString(certificate.as_bytes().to_vec()));
            let status = CertificateSigningRequestStatus { conditions: condition.map(|one| vec![one]), certificate };
            let found = answer(status).map(|answer| answer.map(|chain| chain.concat()));
            assert_eq!(found, expected.map(|answer| answer.map(str::to_owned).map_err(str::to_owned)));
        };
        check(None, "", None);
        check(Some(("Approved", "")), "", None);
        check(Some(("Approved", "")), "chain", Some(Ok("chain")));
        check(Some(("Denied", "no\n")), "", Some(Err("the request is denied: no")));
        check(Some(("Failed", "bad")), "chain", Some(Err("the request is failed: bad")));
    }
}
