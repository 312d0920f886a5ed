//! Keys of issuers: fetched, put into proxies' filters, and kept over an outage of the issuer and a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::jwt::{Signer, jwks};
use evenkeel_testkit::{Backend, Reply};

use crate::fixture::Plane;

fn authentication(uri: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: jwt, namespace: shop}}\n\
         spec: {{jwtRules: [{{issuer: me, jwksUri: '{uri}'}}]}}\n"
    )
}

/// Waits until keys are missing, or not.
async fn until_missing(plane: &Plane, missing: bool) {
    plane.until("/debug/diagnostics", |page| (page.contains("no-jwks") == missing).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_keys_survive_an_outage_and_a_restart() {
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let (serves, text) = (Arc::new(AtomicBool::new(true)), set.clone());
    let serving = Arc::clone(&serves);
    let backend = Backend::start(move |_| match serving.load(Ordering::SeqCst) {
        true => Reply::text(text.clone()),
        false => Reply::Fixed(503, Vec::new(), Vec::new()),
    });
    let uri = |path: &str| format!("http://{}/{path}", backend.address());
    let plane = Plane::start(&[("a.yaml", authentication(&uri("a")))]).await;
    until_missing(&plane, false).await;

    // Another source, while the issuer is away: its tokens are refused, and the first keys stay.
    serves.store(false, Ordering::SeqCst);
    plane.write("b.yaml", &authentication(&uri("b")).replace("name: jwt", "name: other"));
    until_missing(&plane, true).await;
    let page = plane.page("/debug/diagnostics").await;
    assert!(page.contains("b.yaml") && page.contains(&uri("b")) && !page.contains(&uri("a")), "{page}");

    let (config, state) = plane.stop().await;
    std::fs::remove_file(config.path().join("b.yaml")).expect("a file");
    let plane = Plane::start_in(config, state).await;
    let page = plane.page("/debug/diagnostics").await;
    assert!(!page.contains("no-jwks"), "{page}");

    // It is back: what was missing is fetched.
    plane.write("b.yaml", &authentication(&uri("b")).replace("name: jwt", "name: other"));
    until_missing(&plane, true).await;
    serves.store(true, Ordering::SeqCst);
    until_missing(&plane, false).await;
}
