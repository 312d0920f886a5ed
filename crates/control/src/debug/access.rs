//! Who may read which page, where pages are served beyond this machine and somebody verifies tokens: as in Istio, service
//! accounts of the root namespace all of them, and those of other namespaces what is about their own proxies and objects.

use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_admin::{diagnostics, syncz};
use http::{HeaderMap, StatusCode};

use crate::authentication::{Presented, TokenAuthenticator, TokenRefusal, bearer};

/// The pages that everybody may read: for Prometheus and probes.
const PUBLIC: [&str; 2] = ["/metrics", "/ready"];
/// The resources of a proxy.
pub(super) const OF_A_PROXY: &str = "/debug/config_dump";
/// The clients.
pub(super) const CLIENTS: &str = "/debug/adsz";
/// The pages that service accounts of any namespace may read, about their own proxies and objects.
const OF_A_NAMESPACE: [&str; 4] = [OF_A_PROXY, CLIENTS, syncz::PATH, diagnostics::PATH];

/// What a client may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything.
    All,
    /// What is about proxies of this namespace alone.
    Namespace(String),
}

/// Why a client may not read a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) reason: String,
}

impl Extent {
    /// Whether what is about this namespace may be read.
    pub(super) fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(own) => own == namespace,
        }
    }
}

/// Decides about clients.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// `None`: whoever reaches the port may read everything.
    tokens: Option<Arc<dyn TokenAuthenticator>>,
}

impl Access {
    pub(super) fn new(tokens: Option<Arc<dyn TokenAuthenticator>>) -> Self {
        Self { tokens }
    }

    /// Returns what a client may read of the page at `path`; else the refusal. `is_local`: it has come over loopback.
    pub(super) async fn of(
        &self,
        headers: &HeaderMap,
        path: &str,
        is_local: bool,
        root: &str,
    ) -> Result<Extent, Refusal> {
        let Some(tokens) = self.tokens.as_ref().filter(|_| !is_local && !PUBLIC.contains(&path)) else {
            return Ok(Extent::All);
        };
        let refused = |status: StatusCode, reason: String| Refusal { status, reason };
        let token = bearer(headers).ok_or_else(|| {
            let reason = "this page needs `authorization: Bearer TOKEN`, with a service account's token for the audience `istio-ca`";
            refused(StatusCode::UNAUTHORIZED, reason.to_owned())
        })?;
        let now = SystemTime::now();
        // The pages are for who is in the control plane's own cluster: others may have a namespace of the same name.
        let token = Presented { token, cluster: "" };
        // Most tokens have been seen a moment ago, and strangers' ones are refused without a question to anybody.
        let verdict = match tokens.verdict(token, now) {
            Some(verdict) => verdict,
            None => tokens.review(token, now).await,
        };
        let workload = verdict.map_err(|refusal| match refusal {
            TokenRefusal::Invalid(reason) => {
                refused(StatusCode::UNAUTHORIZED, format!("the token is not accepted: {reason}"))
            }
            TokenRefusal::Unavailable(reason) => {
                refused(StatusCode::SERVICE_UNAVAILABLE, format!("the token cannot be verified: {reason}"))
            }
        })?;
        if workload.namespace == root {
            return Ok(Extent::All);
        }
        if OF_A_NAMESPACE.contains(&path) {
            return Ok(Extent::Namespace(workload.namespace));
        }
        let reason = format!(
            "this page is about the whole mesh, and for service accounts of `{root}`; those of `{}` may read {}, about their own proxies and objects",
            workload.namespace,
            OF_A_NAMESPACE.join(", ")
        );
        Err(refused(StatusCode::FORBIDDEN, reason))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_ca::{TokenKey, Workload};

    use super::*;

    #[tokio::test]
    async fn pages_are_for_the_root_namespace_and_a_proxys_own() {
        let state = tempfile::tempdir().expect("a directory");
        let key = Arc::new(TokenKey::open(state.path()).expect("a key"));
        let token = |namespace: &str| {
            let workload = Workload { namespace: namespace.into(), service_account: "a".into(), pod: "a-0".into() };
            key.mint(&workload, Duration::from_secs(60), SystemTime::now()).expect("a token")
        };
        let access = Access::new(Some(key.clone()));
        let check = async |token: Option<&str>, path: &str, is_local: bool, expected: Result<Extent, (u16, &str)>| {
            let mut headers = HeaderMap::new();
            if let Some(token) = token {
                headers.insert("authorization", format!("Bearer {token}").parse().expect("a value"));
            }
            match (access.of(&headers, path, is_local, "istio-system").await, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{path}"),
                (Err(Refusal { status, reason }), Err((code, part))) => {
                    assert!(status == code && reason.contains(part), "{path}: {status} {reason}");
                }
                (found, expected) => panic!("{path}: {found:?}, not {expected:?}"),
            }
        };
        let (root, shop) = (token("istio-system"), token("shop"));
        for path in ["/metrics", "/ready"] {
            check(None, path, false, Ok(Extent::All)).await;
        }
        for path in ["/debug/syncz", "/debug/config_dump", "/debug/history", "/"] {
            check(None, path, true, Ok(Extent::All)).await;
            check(None, path, false, Err((401, "authorization: Bearer TOKEN"))).await;
            check(Some("a.b.c"), path, false, Err((401, "not accepted"))).await;
            check(Some(&root), path, false, Ok(Extent::All)).await;
        }
        for path in ["/debug/config_dump", "/debug/syncz", "/debug/adsz", "/debug/diagnostics"] {
            check(Some(&shop), path, false, Ok(Extent::Namespace("shop".into()))).await;
        }
        for path in ["/debug/history", "/debug/registryz", "/debug/pprof/heap", "/debug/ca", "/", "/debug/syncz/"] {
            check(Some(&shop), path, false, Err((403, "for service accounts of `istio-system`"))).await;
        }
        let anybody = Access::new(None).of(&HeaderMap::new(), "/debug/syncz", false, "istio-system").await;
        assert_eq!(anybody, Ok(Extent::All));
    }
}
