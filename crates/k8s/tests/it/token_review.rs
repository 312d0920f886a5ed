//! Tokens of a real API server, good and bad ones, and what happens while it cannot be reached.

use std::time::{Duration, SystemTime};

use evenkeel_ca::tokens::AUDIENCE;
use evenkeel_control::authentication::{Presented, TokenAuthenticator, TokenRefusal};
use evenkeel_k8s::token_review::TokenReviews;
use evenkeel_testkit::kubernetes::{ApiServer, TokenOptions};

use crate::fixture::{admin, client, pod, until};

fn istio(pod: Option<&str>) -> TokenOptions<'_> {
    TokenOptions { audience: Some(AUDIENCE), pod, ..TokenOptions::default() }
}

async fn review(reviews: &TokenReviews, token: &str) -> Result<String, TokenRefusal> {
    let workload = reviews.review(Presented { token, cluster: "" }, SystemTime::now()).await?;
    Ok(format!("{}/{}/{}", workload.namespace, workload.service_account, workload.pod))
}

#[tokio::test]
async fn a_token_proves_what_the_api_server_says_and_only_while_its_objects_exist() {
    let server = ApiServer::shared();
    let (shop, other) = (server.namespace("shop"), server.namespace("other"));
    for (namespace, account) in [(&shop, "web"), (&shop, "leaving"), (&other, "web")] {
        server.service_account(namespace, account);
    }
    server.apply(&pod(&shop, "web-0", "web"));
    let reviews = TokenReviews::new(admin(server).await);
    let check = async |token: &str, expected: Result<String, &str>| match (review(&reviews, token).await, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected),
        (Err(TokenRefusal::Invalid(found)), Err(expected)) => assert!(found.contains(expected), "{found}"),
        (found, expected) => panic!("{found:?}, not {expected:?}"),
    };
    let bound = server.token(&shop, "web", &istio(Some("web-0")));
    check(&bound, Ok(format!("{shop}/web/web-0"))).await;
    let free = server.token(&shop, "web", &istio(None));
    check(&free, Ok(format!("{shop}/web/serviceaccount/web"))).await;
    let of_other = server.token(&other, "web", &istio(None));
    check(&of_other, Ok(format!("{other}/web/serviceaccount/web"))).await;
    // The payload of one token with the signature of another.
    let parts = |token: &str| token.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (one, two) = (parts(&free), parts(&of_other));
    check(&[&*one[0], &*two[1], &*one[2]].join("."), Err("the API server refuses the token")).await;
    let for_others = server.token(&shop, "web", &TokenOptions { audience: Some("vault"), ..istio(None) });
    check(&for_others, Err("its audience is not `istio-ca` but `vault`")).await;
    let for_the_server = server.token(&shop, "web", &TokenOptions::default());
    check(&for_the_server, Err("its audience is not `istio-ca`")).await;
    check("e30.e30.", Err("no JSON Web Token that expires")).await;
    check(&"x".repeat(20_000), Err("more than 16384 bytes")).await;
    let later = SystemTime::now() + Duration::from_secs(3600);
    let expired = reviews.review(Presented { token: &free, cluster: "" }, later).await.expect_err("it has ended");
    assert!(expired.to_string().contains("expired"), "{expired}");

    // What it is bound to is deleted: the API server itself remembers its verdict for ten seconds.
    let leaving = server.token(&shop, "leaving", &istio(None));
    check(&leaving, Ok(format!("{shop}/leaving/serviceaccount/leaving"))).await;
    server.kubectl(&["delete", "pod", "web-0", "--namespace", &shop, "--force", "--grace-period=0"]);
    server.kubectl(&["delete", "serviceaccount", "leaving", "--namespace", &shop]);
    for token in [&bound, &leaving] {
        let refused = async || review(&reviews, token).await.err();
        until(async || refused().await.is_some()).await;
        assert!(matches!(refused().await, Some(TokenRefusal::Invalid(_))), "{:?}", refused().await);
    }
    check(&free, Ok(format!("{shop}/web/serviceaccount/web"))).await;
}

#[tokio::test]
async fn without_the_api_server_known_tokens_are_accepted_and_others_refused() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    let (known, unknown) = (server.token(&shop, "default", &istio(None)), server.token(&shop, "default", &istio(None)));
    let reviews = TokenReviews::new(admin(&server).await);
    review(&reviews, &known).await.expect("it is good");
    server.pause();
    let refused = review(&reviews, &unknown).await.expect_err("nobody has presented it before");
    assert!(matches!(&refused, TokenRefusal::Unavailable(text) if text.contains("within 5 s")), "{refused}");
    review(&reviews, &known).await.expect("its verdict is known");
    server.kill();
    let refused = review(&reviews, &unknown).await.expect_err("nobody has presented it before");
    assert!(matches!(&refused, TokenRefusal::Unavailable(text) if text.contains("refused")), "{refused}");
    review(&reviews, &known).await.expect("its verdict is known");
    server.restart();
    review(&reviews, &unknown).await.expect("it is good");
}

#[tokio::test]
async fn a_control_plane_that_may_not_ask_says_what_it_lacks() {
    let server = ApiServer::shared();
    let shop = server.namespace("shop");
    let reviews = TokenReviews::new(client(&server.kubeconfig_of(&shop, "default")).await);
    let refused = review(&reviews, &server.token(&shop, "default", &istio(None))).await.expect_err("it may not ask");
    assert!(matches!(&refused, TokenRefusal::Unavailable(text) if text.contains("system:auth-delegator")), "{refused}");
}
