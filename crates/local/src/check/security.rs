//! Check steps about security.

use std::net::SocketAddr;

use http::Method;

use super::example::Example;
use super::report::Line;
use crate::client::{Answer, Call};

/// Body of the answer to a request that no policy allows, as in Envoy.
const DENIED: &str = "RBAC: access denied";

/// capitals-info sees the identity that capitals-web's certificate proves, and its own.
pub async fn identities(example: &Example<'_>) -> Line {
    let trust_domain = &example.plan.options.trust_domain;
    let spiffe = |account: &str| format!("spiffe://{trust_domain}/ns/capitals/sa/{account}");
    let what = format!("capitals-info is called by {} over mutual TLS", spiffe("capitals-web"));
    match example.call_from("capitals-web", "capitals-info", Call::get("", "/identity")).await {
        Ok(answer) => {
            let (caller, own) = (format!("URI={}", spiffe("capitals-web")), format!("By={}", spiffe("capitals-info")));
            Line::new(what, answer.body.contains(&caller) && answer.body.contains(&own), answer.to_string())
        }
        Err(seen) => Line::failed(what, seen),
    }
}

/// Mutual TLS is STRICT: a caller without a sidecar gets no answer at all.
pub async fn plaintext(example: &Example<'_>) -> Line {
    let what = "STRICT: plaintext from outside the mesh to capitals-info is refused";
    let (outsider, info) = match (example.replica("check-outsider"), example.replica("capitals-info-v1")) {
        (Ok(outsider), Ok(info)) => (outsider, info),
        (Err(seen), _) | (_, Err(seen)) => return Line::failed(what, seen),
    };
    let address = SocketAddr::from((info.pod.address, 8080));
    match Call::get(address.to_string(), "/capitals/France").send(Some(&outsider.namespace), address).await {
        Ok(answer) => Line::failed(what, answer),
        // A closed connection is the expected denial; one that hangs is not.
        Err(error @ crate::client::CallError::TimedOut(_)) => Line::failed(what, error),
        Err(_) => Line::held(what),
    }
}

/// Another identity of the mesh is refused.
pub async fn stranger(example: &Example<'_>) -> Line {
    let what = "AuthorizationPolicy: another identity's GET to capitals-info gets 403";
    denied(what, example.call_from("check-stranger", "capitals-info", Call::get("", "/capitals/France")).await)
}

/// The allowed identity with another method is refused.
pub async fn method(example: &Example<'_>) -> Line {
    let what = "AuthorizationPolicy: capitals-web's DELETE gets 403";
    let call = Call::get("", "/capitals/France").method(Method::DELETE);
    denied(what, example.call_from("capitals-web", "capitals-info", call).await)
}

fn denied(what: &str, answer: Result<Answer, String>) -> Line {
    match answer {
        Ok(answer) => {
            let what = format!("{what} `{DENIED}`");
            Line::new(what, answer.status == 403 && answer.body.trim() == DENIED, answer.to_string())
        }
        Err(seen) => Line::failed(what, seen),
    }
}
