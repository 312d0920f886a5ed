//! Routes that match claims of tokens.

use evenkeel_api::Object;
use evenkeel_api::decode::MatchName;
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_model::{Gateway, GatewayRef, HttpRoute, Snapshot};

/// Reports routes that match claims where no RequestAuthentication provides any (IST0149): a condition on a claim never holds
/// there, and one in `withoutHeaders` always does.
pub fn without_tokens(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for set in snapshot.route_sets.iter() {
        let Some(rule) = set.http.iter().find(|rule| has_claims(rule)) else { continue };
        for at in &set.gateways {
            let what = match at {
                GatewayRef::Mesh => "sidecars do not read tokens of calls that their workload makes".to_owned(),
                GatewayRef::Named { namespace, name } => {
                    let gateways = snapshot.gateways.iter();
                    let mut named = gateways.filter(|own| own.namespace == *namespace && own.name == *name);
                    if !named.any(|gateway| !is_judged(snapshot, gateway)) {
                        continue;
                    }
                    format!("no RequestAuthentication is for the proxies of Gateway {namespace}/{name}")
                }
            };
            let (kind, namespace, name) = (set.kind, &set.namespace, &set.name);
            let message = format!("{kind} {namespace}/{name} routes by claims of tokens, and {what}");
            let finding = Diagnostic::warning("claims-without-tokens", rule.origin.clone(), message);
            let finding = finding.with_help("write a RequestAuthentication that selects the gateway's Pods");
            let object = objects.iter().find(|own| (own.kind(), &own.namespace, &own.name) == (kind, namespace, name));
            found.push(match object {
                Some(object) => finding.about(object.reference()),
                None => finding,
            });
        }
    }
}

fn has_claims(rule: &HttpRoute) -> bool {
    let names = rule.matches.iter().flat_map(|matched| matched.headers.iter().chain(&matched.without_headers));
    names.map(|header| &header.name).any(|name| name.starts_with(MatchName::CLAIMS))
}

/// Whether a RequestAuthentication is for the proxies of a Gateway. They may be in any namespace.
fn is_judged(snapshot: &Snapshot, gateway: &Gateway) -> bool {
    let root = &snapshot.mesh.root_namespace;
    snapshot.request_authentications.iter().any(|one| {
        if one.selection.is_everything() {
            one.namespace == *root || one.namespace == gateway.namespace
        } else {
            one.selection.fits(&gateway.selector)
        }
    })
}
