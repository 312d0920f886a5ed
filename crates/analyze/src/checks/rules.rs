//! Rules of VirtualServices that have no effect.

use evenkeel_api::{Kind, Object};
use evenkeel_base::{Diagnostic, Diagnostics, ObjectRef, Span};
use evenkeel_model::{GatewayRef, HttpAction, HttpMatch, RouteSet, Snapshot};

/// Matches that an earlier rule has, too: whole rules (IST0130), and single matches of a rule (IST0131).
pub fn duplicate_matches(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for set in snapshot.route_sets.iter().filter(|set| set.kind == Kind::VirtualService) {
        let mut earlier: Vec<(HttpMatch, &Span)> = Vec::new();
        for http in &set.http {
            let bare: Vec<HttpMatch> = http.matches.iter().map(without_names).collect();
            let known = |one: &HttpMatch| earlier.iter().find(|(known, _)| known == one).map(|(_, span)| *span);
            let duplicates: Vec<(usize, &Span)> =
                bare.iter().enumerate().filter_map(|(at, one)| Some((at, known(one)?))).collect();
            let is_whole = !bare.is_empty() && duplicates.len() == bare.len();
            for (at, first) in &duplicates {
                let Some(condition) = http.matches.get(*at) else { continue };
                let name = format!("VirtualService {}/{}", set.namespace, set.name);
                let finding = match is_whole {
                    true if *at == 0 => {
                        let message = format!("{name}: this rule is never used: earlier rules have all of its matches");
                        Diagnostic::warning("duplicate-rule", condition.origin.clone(), message)
                    }
                    true => continue,
                    false => {
                        let message = format!("{name}: this match is never used: an earlier rule has the same");
                        Diagnostic::info("duplicate-match", condition.origin.clone(), message)
                    }
                };
                let finding = finding
                    .with_help("remove it, or match something else")
                    .with_related((*first).clone(), "the earlier one");
                found.push(finding.about(reference(objects, set)));
            }
            earlier.extend(bare.into_iter().zip(&http.matches).map(|(bare, written)| (bare, &written.origin)));
        }
    }
}

/// Hosts that sidecars split into subsets, while a gateway's rules lead to the host as a whole (IST0140): the split does
/// not hold for requests from outside.
pub fn subsets_without_effect(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    for set in snapshot.route_sets.iter() {
        let is_gateways_only = !set.gateways.contains(&GatewayRef::Mesh) && !set.gateways.is_empty();
        if !is_gateways_only || set.kind != Kind::VirtualService {
            continue;
        }
        for http in &set.http {
            let HttpAction::Route { destinations, .. } = &http.action else { continue };
            for to in destinations.iter().filter(|to| to.destination.subset.is_none()) {
                let splits = |other: &&std::sync::Arc<RouteSet>| {
                    other.gateways.contains(&GatewayRef::Mesh)
                        && other.hosts.iter().any(|host| host.value == to.destination.host)
                        && other.destinations().any(|to| to.subset.is_some())
                };
                let Some(other) = snapshot
                    .route_sets_naming(&to.destination.host, &*set.namespace)
                    .into_iter()
                    .find(|other| splits(other))
                else {
                    continue;
                };
                if set.gateways.iter().any(|gateway| other.gateways.contains(gateway)) {
                    continue;
                }
                let message = format!(
                    "VirtualService {}/{}: requests from outside go to all of {}: the subsets of VirtualService {}/{} apply only in the mesh",
                    set.namespace, set.name, to.destination.host, other.namespace, other.name
                );
                let finding = Diagnostic::info("subset-without-effect", to.destination.origin.clone(), message)
                    .with_help("name the subsets here, too")
                    .with_related(other.origin.clone(), "it applies only at `mesh`");
                found.push(finding.about(reference(objects, set)));
            }
        }
    }
}

/// A match without what makes no difference to it.
fn without_names(written: &HttpMatch) -> HttpMatch {
    HttpMatch { name: "".into(), origin: Span::built_in(), ..written.clone() }
}

fn reference(objects: &[&Object], set: &RouteSet) -> ObjectRef {
    let is_it =
        |object: &&&Object| object.kind() == set.kind && object.namespace == set.namespace && object.name == set.name;
    let found = objects.iter().find(is_it).map(|object| object.reference());
    found.unwrap_or_else(|| ObjectRef {
        group: set.kind.group(),
        kind: set.kind.as_str(),
        namespace: set.namespace.clone(),
        name: set.name.clone(),
        source: evenkeel_base::SourceId::files(),
    })
}
