//! Policies at a running gateway: those for its Gateway, those on trial, and those that only log.

use evenkeel_testkit::{Connection, eventually};

use super::gateway::Gateway;

/// A policy of the gateway's namespace for `/private`.
fn policy(name: &str, annotation: &str, whom: &str, action: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: ingress, annotations: {{{annotation}}}}}\n\
         spec: {{{whom}, action: {action}, rules: [{{to: [{{operation: {{paths: [/private]}}}}]}}]}}\n"
    )
}

const API: &str = "gateway.networking.k8s.io";
const BY_LABEL: &str = "selector: {matchLabels: {istio: edge}}";

fn target(kind: &str, group: &str, name: &str) -> String {
    format!("targetRefs: [{{kind: {kind}, group: {group}, name: {name}}}]")
}

fn status(gateway: &Gateway, path: &str) -> Option<u16> {
    let response = Connection::open(gateway.address).ok()?.get("a.test", path, "Connection: close\r\n").ok()?;
    Some(response.status)
}

/// Writes policies, and beside them one that shows when the gateway has them: from then on `/RUN` is refused, which it was not
/// without them.
fn apply(gateway: &Gateway, run: usize, policies: &str) {
    gateway.has_policies("");
    eventually("no policies of another run", || (status(gateway, &format!("/{run}")) == Some(200)).then_some(()));
    let marker = policy("marker", "", BY_LABEL, "DENY").replace("/private", &format!("/{run}"));
    gateway.has_policies(&format!("{marker}{policies}"));
    eventually(&format!("the policies of run {run}"), || {
        (status(gateway, &format!("/{run}")) == Some(403)).then_some(())
    });
}

#[test]
fn policies_for_a_gateway_hold_at_its_pods_and_those_for_waypoints_nowhere() {
    let gateway = Gateway::new();
    let rows = [
        // The gateway has the label `gateway.networking.k8s.io/gateway-name: edge`.
        (target("Gateway", API, "edge"), "DENY", 403, 200),
        (target("Gateway", API, "edge"), "ALLOW", 200, 403),
        (target("Gateway", API, "other"), "DENY", 200, 200),
        (target("Gateway", API, "other"), "ALLOW", 200, 200),
        (target("Service", "''", "back"), "DENY", 200, 200),
        (target("ServiceEntry", "networking.istio.io", "back"), "ALLOW", 200, 200),
        (target("GatewayClass", API, "istio-waypoint"), "DENY", 200, 200),
    ];
    for (run, (whom, action, private, public)) in rows.iter().enumerate() {
        apply(&gateway, run, &policy("p", "", whom, action));
        let found = (status(&gateway, "/private"), status(&gateway, "/public"));
        assert_eq!(found, (Some(*private), Some(*public)), "{action} {whom}");
    }
}

/// An annotation, an action, and for `/private` and `/public` the status and what is in the log.
type Trial<'a> = (&'a str, &'a str, [(u16, Vec<&'a str>); 2]);

#[test]
fn what_is_tried_or_only_logged_is_told_and_not_enforced() {
    let gateway = Gateway::new();
    let tried = "istio.io/dry-run: 'true'";
    let rule = "ns[ingress]-policy[p]-rule[0]";
    let denies = format!("\"istio_dry_run_deny_shadow_effective_policy_id\":\"{rule}\"");
    let allows = format!("\"istio_dry_run_allow_shadow_effective_policy_id\":\"{rule}\"");
    let deny_result = "\"istio_dry_run_deny_shadow_engine_result\":\"denied\"";
    let deny_passed = "\"istio_dry_run_deny_shadow_engine_result\":\"allowed\"";
    let allow_result = "\"istio_dry_run_allow_shadow_engine_result\":\"allowed\"";
    let allow_denied = "\"istio_dry_run_allow_shadow_engine_result\":\"denied\"";
    let rows: [Trial<'_>; 6] = [
        (tried, "DENY", [(200, vec![&denies, deny_result]), (200, vec![deny_passed])]),
        ("istio.io/dry-run: 'T'", "DENY", [(200, vec![&denies, deny_result]), (200, vec![deny_passed])]),
        (tried, "ALLOW", [(200, vec![&allows, allow_result]), (200, vec![allow_denied])]),
        ("", "AUDIT", [(200, vec!["hint=true"]), (200, vec!["hint=false"])]),
        // What is no truth value is none: the policy is enforced.
        ("istio.io/dry-run: maybe", "DENY", [(403, vec![rule]), (200, vec![])]),
        ("istio.io/dry-run: 'false'", "ALLOW", [(200, vec![]), (403, vec!["rbac_access_denied"])]),
    ];
    for (run, (annotation, action, [private, public])) in rows.iter().enumerate() {
        apply(&gateway, run, &policy("p", annotation, BY_LABEL, action));
        let found = (status(&gateway, "/private"), status(&gateway, "/public"));
        assert_eq!(found, (Some(private.0), Some(public.0)), "{action} {annotation}");
        for (path, (_, words)) in [("/private", private), ("/public", public)] {
            // A line of its own, so that no line of another run is taken for it.
            let path = format!("{path}?{run}");
            status(&gateway, &path);
            gateway.logs(&[&[path.as_str()][..], words].concat());
        }
        // The counters go with the rules.
        let is_tried = private.0 == 200 && public.0 == 200 && *action != "AUDIT";
        let of_trials =
            || gateway.stats().lines().filter(|line| line.contains(".shadow_")).collect::<Vec<_>>().join("\n");
        if is_tried {
            let prefix = format!("rbac.istio_dry_run_{}_.shadow_", action.to_lowercase());
            eventually(&format!("counts of {prefix}"), || {
                let counted =
                    of_trials().lines().filter(|line| line.contains(&prefix) && !line.ends_with(": 0")).count();
                (counted == 2).then_some(())
            });
        }
    }
}
