//! Rules of GRPCRoutes: a call is a request for the path `/SERVICE/METHOD`.

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{GrpcMethodMatch, GrpcRouteMatch, GrpcRouteSpec, ValueMatchType};
use evenkeel_base::{Diagnostics, Spanned};

use super::super::shared;
use super::super::tracking::Cx;
use super::backends::{Backends, Transport};
use super::http_routes::headers_of;
use super::http_rules::{Rule, SHARE_REFUSED, in_order};
use crate::{HttpMatch, HttpRoute, StringMatch};

/// What stands for any service or method in an expression.
const ANY: &str = "[^/]+";

/// A route for each condition of each rule, in the order of precedence.
pub(super) fn routes(cx: &Cx<'_>, object: &Object, spec: &GrpcRouteSpec, found: &mut Diagnostics) -> Vec<HttpRoute> {
    let mut backends = Backends { cx, object, found, effect: SHARE_REFUSED, transport: Transport::Tcp };
    let all = spec.rules.iter().enumerate().flat_map(|(number, rule)| {
        let rule = Rule {
            number,
            name: rule.name.as_ref(),
            span: &rule.span,
            conditions: rule.matches.iter().map(condition).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeout: None,
            retries: None,
            session: rule.session_persistence.as_ref(),
        };
        rule.routes(&mut backends)
    });
    in_order(all.collect())
}

fn condition(written: &Spanned<GrpcRouteMatch>) -> HttpMatch {
    HttpMatch {
        uri: Some(written.method.as_ref().map_or_else(|| StringMatch::Prefix("/".into()), path)),
        headers: headers_of(&written.headers),
        origin: written.span.clone(),
        ..HttpMatch::default()
    }
}

/// The paths of calls that a condition holds for.
fn path(written: &GrpcMethodMatch) -> StringMatch {
    let service = written.service.as_ref().map(|service| service.as_str());
    let method = written.method.as_ref().map(|method| method.as_str());
    match (written.kind.unwrap_or(ValueMatchType::Exact), service, method) {
        (ValueMatchType::Exact, Some(service), Some(method)) => {
            StringMatch::Exact(format!("/{service}/{method}").into())
        }
        (ValueMatchType::Exact, Some(service), None) => StringMatch::Prefix(format!("/{service}/").into()),
        (ValueMatchType::Exact, None, Some(method)) => StringMatch::Regex(format!("/{ANY}/{method}").into()),
        (ValueMatchType::RegularExpression, _, _) => {
            let text = format!("/{}/{}", service.unwrap_or(ANY), method.unwrap_or(ANY));
            StringMatch::Regex(shared(&text))
        }
        (ValueMatchType::Exact, None, None) => StringMatch::Prefix("/".into()),
    }
}
