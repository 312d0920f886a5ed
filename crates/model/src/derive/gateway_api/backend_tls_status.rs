//! The status of a BackendTLSPolicy.

use std::collections::BTreeSet;

use evenkeel_api::gateway_api::BackendTlsPolicy;
use evenkeel_api::{Object, ObjectKey};

use super::super::backend_tls::claims;
use super::super::tracking::{Cx, Fact};
use super::super::trusted_roots::{RootsReference, roots};
use crate::Condition;
use crate::gateway_api_status::PolicyStatus;

/// The condition of a policy that applies.
const ACCEPTED: &str = "Accepted";
/// The condition of a policy whose roots can be used.
const RESOLVED_REFS: &str = "ResolvedRefs";

/// The status: the same conditions for each Gateway whose routes lead to a target.
pub(super) fn status(cx: &Cx<'_>, key: &ObjectKey, object: &Object, policy: &BackendTlsPolicy) -> PolicyStatus {
    let claims = claims(cx, key);
    let mut ancestors = BTreeSet::new();
    for claim in &claims {
        let table = &cx.read(Fact::AncestorsOf(claim.host.as_str())).gateway_api_statuses;
        ancestors.extend(table.ancestors_of(&claim.host).cloned());
    }
    let roots = roots_of(cx, object, policy);
    let winner = claims.iter().map(|claim| claim.winner.as_ref()).collect::<Option<Vec<_>>>();
    let accepted = if let Some(reason) = &object.refused {
        Condition::fails(ACCEPTED, "Invalid", format!("the policy is refused: {reason}; calls to its targets fail"))
    } else if roots.usable == 0 {
        let message = "there are no roots that can be used; calls to its targets fail";
        Condition::fails(ACCEPTED, "NoValidCACertificate", message)
    } else if let Some(winner) = winner.as_deref().and_then(<[_]>::first) {
        Condition::fails(
            ACCEPTED,
            "Conflicted",
            format!("the older BackendTLSPolicy `{winner}` applies to its targets"),
        )
    } else {
        Condition::holds(ACCEPTED, "Accepted", "the policy applies to its targets")
    };
    PolicyStatus { ancestors: ancestors.into_iter().collect(), conditions: vec![accepted, roots.condition] }
}

/// What becomes of the references to roots.
struct Roots {
    /// How many can be used.
    usable: usize,
    condition: Condition,
}

fn roots_of(cx: &Cx<'_>, object: &Object, policy: &BackendTlsPolicy) -> Roots {
    let validation = &policy.spec.validation;
    let mut condition = Condition::holds(RESOLVED_REFS, "ResolvedRefs", "all references are resolved");
    if let Some(known) = &validation.well_known_ca_certificates {
        return Roots { usable: usize::from(known.value == "System"), condition };
    }
    let mut usable = 0;
    for reference in &validation.ca_certificate_refs {
        let (group, kind, name) = (reference.group.as_str(), reference.kind.as_str(), reference.name.as_str());
        match roots(cx, &RootsReference { group, kind, namespace: &object.namespace, name }) {
            Ok(_) => usable += 1,
            Err(error) if condition.holds => {
                let is_kind = error.code == "unsupported-value";
                let reason = if is_kind { "InvalidKind" } else { "InvalidCACertificateRef" };
                condition = Condition::fails(RESOLVED_REFS, reason, error.message);
            }
            Err(_) => {}
        }
    }
    Roots { usable, condition }
}
