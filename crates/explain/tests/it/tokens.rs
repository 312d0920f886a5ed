//! A call with a token: whether it passes, and the rule that decides, with its position.

use evenkeel_testkit::jwt::{Signer, jwks};

use crate::mesh::{ask, world};

#[test]
fn a_token_is_judged_and_the_rule_is_named() {
    let (issuer, stranger) = (Signer::ec("k", "P-256"), Signer::ec("k", "P-256"));
    let text = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: jwt, namespace: shop}}\nspec:\n  \
         selector: {{matchLabels: {{app: web}}}}\n  jwtRules:\n  - issuer: me\n    jwks: '{}'\n",
        jwks(&[&issuer])
    );
    let world = world(&text);
    for (call, expected) in [
        (String::new(), "forward"),
        (format!("?access_token={}", issuer.token(r#"{"iss":"me","sub":"you"}"#)), "forward"),
        (format!("?access_token={}", stranger.token(r#"{"iss":"me"}"#)), "Jwt_verification_fails"),
        (format!("?access_token={}", issuer.token(r#"{"iss":"me","exp":1}"#)), "Jwt_is_expired"),
        ("?access_token=x".to_owned(), "Jwt_is_not_in_the_form"),
    ] {
        let answer = ask(&world, &format!("reviews-v1.shop GET http://web.shop/a{call}")).expect("an answer");
        let shown = answer.to_text(false);
        let json = serde_json::to_string(&answer).expect("JSON");
        assert!(shown.contains(expected) || json.contains(expected), "{call}: {shown}\n{json}");
        assert!(json.contains("tokens of me are judged by RequestAuthentication shop/jwt ("), "{call}: {json}");
        assert!(json.contains(":7)"), "{call}: {json}");
    }
}
