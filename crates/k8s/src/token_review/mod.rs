//! Projected service account tokens, verified by the API server (TokenReview).
//!
//! The API server knows what no signature says: whether the Pod, the service account and the node that a token is bound to
//! still exist. So it is asked about each token, and a verdict counts for [`FRESH`]. While it cannot be reached, what it has
//! said within [`STALE`] still counts, but never longer than the token itself; other tokens are refused.

mod cache;
mod claims;
pub mod clusters;

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_ca::Workload;
use evenkeel_ca::tokens::{ACCOUNT_PREFIX, AUDIENCE, MAX_TOKEN_BYTES};
use evenkeel_control::authentication::{Presented, Review, TokenAuthenticator, TokenRefusal};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;

use cache::{Cache, Digest};
use claims::Claims;

/// How long a verdict counts without another question. As long again, the API server itself remembers one.
pub const FRESH: Duration = Duration::from_secs(10);
/// How long a verdict counts while the API server cannot be reached.
pub const STALE: Duration = Duration::from_secs(300);
/// How long the API server may take for a verdict, and a question for its turn.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of questions at a time.
const MAX_REVIEWS: usize = 32;
/// Prefix of the user name of a service account.
const ACCOUNT: &str = "system:serviceaccount:";
/// Where the API server says which Pod a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// Verifies tokens of service accounts for the audience `istio-ca` by the API server.
pub struct TokenReviews {
    reviews: Api<TokenReview>,
    verdicts: Mutex<Cache>,
    turns: Semaphore,
}

impl fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenReviews")
    }
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("the API server has not answered a TokenReview within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error(
        "the control plane may not create TokenReviews: bind its service account to the ClusterRole `system:auth-delegator` ({0})"
    )]
    Forbidden(String),
    #[error("the API server has not answered a TokenReview: {0}")]
    Failed(kube::Error),
}

impl TokenReviews {
    /// Creates an authenticator that asks this client's API server.
    pub fn new(client: Client) -> Self {
        Self { reviews: Api::all(client), verdicts: Mutex::default(), turns: Semaphore::new(MAX_REVIEWS) }
    }

    async fn verify(&self, token: &str, now: SystemTime) -> Result<Workload, TokenRefusal> {
        let claims = check(token, now)?;
        let digest = Digest::of(token);
        match self.ask(token).await {
            Ok(status) => {
                let workload = workload(status).map_err(TokenRefusal::Invalid);
                match &workload {
                    Ok(workload) => self.verdicts().insert(digest, workload.clone(), claims.end, Instant::now()),
                    // It is refused from now on, also when the API server cannot be reached.
                    Err(_) => self.verdicts().remove(&digest),
                }
                workload
            }
            // The API server has answered: it is not away.
            Err(error @ ReviewError::Forbidden(_)) => Err(TokenRefusal::Unavailable(error.to_string())),
            Err(error) => {
                let known = self.verdicts().get(&digest, STALE, Instant::now());
                known.inspect(|_| tracing::warn!(%error, "a token is accepted by an earlier verdict")).ok_or_else(
                    || {
                        TokenRefusal::Unavailable(format!(
                            "{error}; tokens that nobody has presented before are refused"
                        ))
                    },
                )
            }
        }
    }

    async fn ask(&self, token: &str) -> Result<TokenReviewStatus, ReviewError> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            self.reviews.create(&PostParams::default(), &review).await
        };
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(review)) => Ok(review.status.unwrap_or_default()),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                Err(ReviewError::Forbidden(status.message.clone()))
            }
            Ok(Err(error)) => Err(ReviewError::Failed(error)),
            Err(_) => Err(ReviewError::Timeout),
        }
    }

    fn verdicts(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenAuthenticator for TokenReviews {
    fn verdict(&self, presented: Presented<'_>, now: SystemTime) -> Option<Result<Workload, TokenRefusal>> {
        match check(presented.token, now) {
            Ok(_) => self.verdicts().get(&Digest::of(presented.token), FRESH, Instant::now()).map(Ok),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    fn review<'a>(&'a self, presented: Presented<'a>, now: SystemTime) -> Review<'a> {
        Box::pin(self.verify(presented.token, now))
    }
}

/// Refuses what the API server would refuse as well, without asking it. What this accepts is not verified.
fn check(token: &str, now: SystemTime) -> Result<Claims, TokenRefusal> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenRefusal::Invalid(format!("the token has more than {MAX_TOKEN_BYTES} bytes")));
    }
    let claims = Claims::read(token)
        .ok_or_else(|| TokenRefusal::Invalid("the token is no JSON Web Token that expires".to_owned()))?;
    if !claims.audiences.iter().any(|audience| audience == AUDIENCE) {
        let found = claims.audiences.join("`, `");
        return Err(TokenRefusal::Invalid(format!("its audience is not `{AUDIENCE}` but `{found}`")));
    }
    match now.duration_since(claims.end) {
        Ok(since) => Err(TokenRefusal::Invalid(format!("the token expired {} s ago", since.as_secs()))),
        Err(_) => Ok(claims),
    }
}

/// Returns the workload that a verdict identifies.
fn workload(status: TokenReviewStatus) -> Result<Workload, String> {
    if status.authenticated != Some(true) {
        let reason = status.error.unwrap_or_else(|| "the API server does not accept it".to_owned());
        return Err(format!("the API server refuses the token: {reason}"));
    }
    // A server that does not know audiences accepts tokens for any.
    if !status.audiences.is_some_and(|audiences| audiences.iter().any(|audience| audience == AUDIENCE)) {
        return Err(format!("the API server does not confirm the token's audience `{AUDIENCE}`"));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.as_deref().unwrap_or_default();
    let account = name.strip_prefix(ACCOUNT).and_then(|account| account.split_once(':'));
    let (namespace, service_account) =
        account.ok_or_else(|| format!("the token is of the user `{name}`, which is no service account"))?;
    let pod = pod(&user).unwrap_or_else(|| format!("{ACCOUNT_PREFIX}{service_account}"));
    Ok(Workload { namespace: namespace.to_owned(), service_account: service_account.to_owned(), pod })
}

fn pod(user: &UserInfo) -> Option<String> {
    user.extra.as_ref()?.get(POD_NAME)?.first().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(authenticated: bool, audience: &str, name: &str, pod: Option<&str>) -> TokenReviewStatus {
        let extra = pod.map(|pod| [(POD_NAME.to_owned(), vec![pod.to_owned()])].into());
        TokenReviewStatus {
            authenticated: Some(authenticated),
            audiences: Some(vec![audience.to_owned()]),
            user: Some(UserInfo { username: Some(name.to_owned()), extra, ..UserInfo::default() }),
            error: None,
        }
    }

    #[test]
    fn a_verdict_names_a_service_account_for_this_audience_or_nobody() {
        let check = |status: TokenReviewStatus, expected: Result<&str, &str>| {
            let found = workload(status).map(|w| format!("{}/{}/{}", w.namespace, w.service_account, w.pod));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        let web = "system:serviceaccount:shop:web";
        check(status(true, "istio-ca", web, Some("web-0")), Ok("shop/web/web-0"));
        check(status(true, "istio-ca", web, None), Ok("shop/web/serviceaccount/web"));
        check(status(false, "istio-ca", web, None), Err("does not accept it"));
        check(status(true, "other", web, None), Err("does not confirm the token's audience"));
        check(TokenReviewStatus { audiences: None, ..status(true, "", web, None) }, Err("does not confirm"));
        check(status(true, "istio-ca", "admin", None), Err("the user `admin`, which is no service account"));
        check(TokenReviewStatus::default(), Err("does not accept it"));
    }
}
