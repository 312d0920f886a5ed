//! The `status` of the Gateway API's kinds.
//!
//! Conditions and listeners are lists by key: only ours are applied, and those of others stay theirs. The list of a route's parents
//! is atomic: whoever applies it owns all of it, so entries of other controllers are applied again as they are.

use std::collections::BTreeSet;

use evenkeel_api::gateway_api::{GROUP, GatewayClass};
use evenkeel_model::gateway_api_status::{
    Ancestor, GatewayApiStatus, GatewayClassStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, ParentReference,
    PolicyStatus, RouteParentStatus, RouteStatus,
};
use evenkeel_model::{Condition, GatewayApiStatus as Status};
use serde_json::{Map, Value, json};

use crate::deployed::{DEPLOYED, INVALID_PARAMETERS};

/// How many ancestors the status of a policy can have.
const MAX_ANCESTORS: usize = 16;

/// Which generation of an object a status is for, and the time of conditions that change.
#[derive(Debug, Clone, Copy)]
pub struct Stamp<'a> {
    /// The generation, if it is known.
    pub generation: Option<i64>,
    /// The time, if it is known.
    pub now: Option<&'a str>,
}

/// Returns the status to apply to an object with this `current` one; `None` if that says it all.
pub(super) fn document(current: Option<&Value>, status: &Status, stamp: Stamp<'_>) -> Option<Value> {
    let current = current.unwrap_or(&Value::Null);
    let wanted = wanted(current, status, stamp);
    (!says(current, &wanted)).then_some(wanted)
}

/// Returns the status that an object with this `current` one has after ours is applied. Conditions of others follow ours.
pub fn after_apply(current: Option<&Value>, status: &Status, stamp: Stamp<'_>) -> Value {
    let current = current.unwrap_or(&Value::Null);
    let mut all = current.as_object().cloned().unwrap_or_default();
    let mut own = wanted(current, status, stamp);
    let is_foreign =
        |of: &&Value| of["type"].as_str().is_none_or(|kind| element(&own["conditions"], "type", kind).is_null());
    let foreign: Vec<Value> =
        current["conditions"].as_array().into_iter().flatten().filter(is_foreign).cloned().collect();
    if let Some(conditions) = own.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.extend(foreign);
    }
    all.extend(own.as_object().cloned().unwrap_or_default());
    all.into()
}

fn wanted(current: &Value, status: &Status, stamp: Stamp<'_>) -> Value {
    match status {
        GatewayApiStatus::Class(class) => of_class(current, class, stamp),
        GatewayApiStatus::Gateway(gateway) => of_gateway(current, gateway, stamp),
        GatewayApiStatus::ListenerSet(set) => of_listener_set(current, set, stamp),
        GatewayApiStatus::Route(route) => of_route(current, route, stamp),
        GatewayApiStatus::Policy(policy) => of_policy(current, policy, stamp),
    }
}

fn of_class(current: &Value, class: &GatewayClassStatus, stamp: Stamp<'_>) -> Value {
    let features: Vec<Value> = class.supported_features.iter().map(|name| json!({"name": name})).collect();
    json!({
        "conditions": conditions(&current["conditions"], &class.conditions, stamp),
        "supportedFeatures": features,
    })
}

fn of_gateway(current: &Value, gateway: &GatewayStatus, stamp: Stamp<'_>) -> Value {
    let conditions = conditions(&current["conditions"], &with_parameters(current, gateway, stamp), stamp);
    let addresses = gateway.addresses.iter().map(|address| json!({"type": address.kind, "value": address.value}));
    let mut status = json!({
        "conditions": conditions,
        "addresses": addresses.collect::<Vec<_>>(),
        "listeners": listeners(current, &gateway.listeners, stamp),
    });
    // Definitions that know no ListenerSets have no such field, and would refuse it.
    if gateway.attached_listener_sets > 0 {
        status["attachedListenerSets"] = gateway.attached_listener_sets.into();
    }
    status
}

/// The conditions of a Gateway. One whose deployment has parameters that cannot be used is not accepted (`InvalidParameters`).
fn with_parameters(current: &Value, gateway: &GatewayStatus, stamp: Stamp<'_>) -> Vec<Condition> {
    let mut all = gateway.conditions.clone();
    let deployed = element(&current["conditions"], "type", DEPLOYED);
    let is_refused = deployed["status"] == "False" && deployed["reason"] == INVALID_PARAMETERS;
    // What is said of an earlier generation may be over.
    let is_current = stamp.generation.is_none_or(|generation| deployed["observedGeneration"] == generation);
    if is_refused && is_current {
        let message = deployed["message"].as_str().unwrap_or_default().to_owned();
        all.retain(|condition| condition.kind != "Accepted");
        all.insert(0, Condition { kind: "Accepted", holds: false, reason: INVALID_PARAMETERS, message });
    }
    all
}

fn of_listener_set(current: &Value, set: &ListenerSetStatus, stamp: Stamp<'_>) -> Value {
    json!({
        "conditions": conditions(&current["conditions"], &set.conditions, stamp),
        "listeners": listeners(current, &set.listeners, stamp),
    })
}

fn listeners(current: &Value, own: &[ListenerStatus], stamp: Stamp<'_>) -> Vec<Value> {
    let listener = |own: &ListenerStatus| {
        let before = element(&current["listeners"], "name", &own.name);
        let kinds: Vec<Value> = own.supported_kinds.iter().map(|kind| json!({"group": GROUP, "kind": kind})).collect();
        json!({
            "name": &*own.name,
            "supportedKinds": kinds,
            "attachedRoutes": own.attached_routes,
            "conditions": conditions(&before["conditions"], &own.conditions, stamp),
        })
    };
    own.iter().map(listener).collect()
}

fn of_route(current: &Value, route: &RouteStatus, stamp: Stamp<'_>) -> Value {
    let existing = current["parents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ours = |entry: &&Value| entry["controllerName"].as_str().is_some_and(GatewayClass::is_ours);
    let others = existing.iter().filter(|entry| !is_ours(entry)).cloned();
    let own = |parent: &RouteParentStatus| {
        let reference = reference(&parent.parent);
        let is_same = |entry: &&Value| {
            entry["controllerName"] == parent.controller.as_str() && with_defaults(&entry["parentRef"]) == reference
        };
        let before = existing.iter().find(is_same).unwrap_or(&Value::Null);
        let own = conditions(&before["conditions"], &parent.conditions, stamp);
        let kinds: BTreeSet<&str> = parent.conditions.iter().map(|condition| condition.kind).collect();
        let foreign = before["conditions"].as_array().into_iter().flatten();
        let foreign = foreign.filter(|of| of["type"].as_str().is_none_or(|kind| !kinds.contains(kind))).cloned();
        let all: Vec<Value> = own.into_iter().chain(foreign).collect();
        json!({"parentRef": reference, "controllerName": parent.controller, "conditions": all})
    };
    // In the order of the object, after those of others.
    let parents: Vec<Value> = others.chain(route.parents.iter().map(own)).collect();
    json!({ "parents": parents })
}

/// As those of a route's parents, the list of ancestors is atomic.
fn of_policy(current: &Value, policy: &PolicyStatus, stamp: Stamp<'_>) -> Value {
    let existing = current["ancestors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ours = |entry: &&Value| entry["controllerName"].as_str().is_some_and(GatewayClass::is_ours);
    let others = existing.iter().filter(|entry| !is_ours(entry)).cloned();
    let own = |ancestor: &Ancestor| {
        let reference = json!({
            "group": GROUP,
            "kind": "Gateway",
            "namespace": &*ancestor.namespace,
            "name": &*ancestor.name,
        });
        let is_same = |entry: &&Value| {
            entry["controllerName"] == ancestor.controller.as_str() && entry["ancestorRef"] == reference
        };
        let before = existing.iter().find(is_same).unwrap_or(&Value::Null);
        let conditions = conditions(&before["conditions"], &policy.conditions, stamp);
        json!({"ancestorRef": reference, "controllerName": ancestor.controller, "conditions": conditions})
    };
    let mut ancestors: Vec<Value> = others.chain(policy.ancestors.iter().map(own)).collect();
    ancestors.truncate(MAX_ANCESTORS);
    json!({ "ancestors": ancestors })
}

/// A reference to a parent, with the defaults that the API server adds.
fn reference(parent: &ParentReference) -> Value {
    let mut fields = Map::new();
    fields.insert("group".to_owned(), parent.group.as_deref().unwrap_or(GROUP).into());
    fields.insert("kind".to_owned(), parent.kind.as_deref().unwrap_or("Gateway").into());
    fields.insert("name".to_owned(), parent.name.as_str().into());
    fields.extend(parent.namespace.as_ref().map(|namespace| ("namespace".to_owned(), Value::from(&**namespace))));
    fields.extend(parent.section_name.as_ref().map(|name| ("sectionName".to_owned(), Value::from(&**name))));
    fields.extend(parent.port.map(|port| ("port".to_owned(), port.into())));
    fields.into()
}

fn with_defaults(written: &Value) -> Value {
    let mut fields = written.as_object().cloned().unwrap_or_default();
    fields.entry("group").or_insert_with(|| GROUP.into());
    fields.entry("kind").or_insert_with(|| "Gateway".into());
    fields.into()
}

/// Conditions, each with the time since when it has been as it is.
fn conditions(current: &Value, own: &[Condition], stamp: Stamp<'_>) -> Vec<Value> {
    let condition = |own: &Condition| {
        let holds = if own.holds { "True" } else { "False" };
        let before = element(current, "type", own.kind);
        let since = before["lastTransitionTime"].as_str().filter(|_| before["status"] == holds);
        let mut condition = json!({
            "type": own.kind,
            "status": holds,
            "reason": own.reason,
            "message": own.message,
        });
        if let Some(time) = since.or(stamp.now) {
            condition["lastTransitionTime"] = time.into();
        }
        if let Some(generation) = stamp.generation {
            condition["observedGeneration"] = generation.into();
        }
        condition
    };
    own.iter().map(condition).collect()
}

/// The element of a list with this key.
fn element<'v>(list: &'v Value, key: &str, value: &str) -> &'v Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|element| element[key] == value).unwrap_or(&Value::Null)
}

/// Whether a status says all of another one. Conditions may have others beside them; other lists are complete.
fn says(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(_) | Value::Null, Value::Object(wanted)) => {
            wanted.iter().all(|(name, value)| says(current.get(name).unwrap_or(&Value::Null), value))
        }
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        (Value::Array(existing), Value::Array(wanted)) => {
            let is_condition = |one: &Value| one.get("type").is_some() && one.get("status").is_some();
            let is_listener = |one: &Value| one.get("attachedRoutes").is_some();
            let by_key = |key: &str| {
                wanted.iter().all(|one| says(element(current, key, one[key].as_str().unwrap_or_default()), one))
            };
            if !wanted.is_empty() && wanted.iter().all(is_condition) {
                by_key("type")
            } else if !wanted.is_empty() && wanted.iter().all(is_listener) {
                existing.len() == wanted.len() && by_key("name")
            } else {
                existing.len() == wanted.len() && existing.iter().zip(wanted).all(|(one, other)| says(one, other))
            }
        }
        (current, wanted) => current == wanted,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_model::gateway_api_status::GatewayStatusAddress;

    use super::*;

    const AT_T1: Stamp<'_> = Stamp { generation: Some(1), now: Some("T1") };
    const AT_T2: Stamp<'_> = Stamp { generation: Some(1), now: Some("T2") };
    const LATER: Stamp<'_> = Stamp { generation: Some(2), now: Some("T2") };

    fn condition(kind: &'static str, holds: bool) -> Condition {
        Condition { kind, holds, reason: kind, message: String::new() }
    }

    fn gateway(holds: bool, listeners: &[&str]) -> Status {
        let listener = |name: &&str| ListenerStatus {
            name: (*name).into(),
            supported_kinds: vec!["HTTPRoute"],
            attached_routes: 1,
            conditions: vec![condition("Accepted", true)],
        };
        Status::Gateway(GatewayStatus {
            conditions: vec![condition("Accepted", true), condition("Programmed", holds)],
            addresses: vec![GatewayStatusAddress { kind: "Hostname", value: "a.svc".to_owned() }],
            listeners: listeners.iter().map(listener).collect(),
            attached_listener_sets: 0,
        })
    }

    fn route(parents: &[&str]) -> Status {
        let parent = |name: &&str| RouteParentStatus {
            parent: ParentReference { name: (*name).to_owned(), ..ParentReference::default() },
            controller: "istio.io/gateway-controller".to_owned(),
            conditions: vec![condition("Accepted", true)],
        };
        Status::Route(RouteStatus { parents: parents.iter().map(parent).collect() })
    }

    #[test]
    fn a_status_is_applied_once() {
        let first = document(None, &gateway(false, &["a"]), AT_T1).expect("there is none");
        assert_eq!(first["conditions"][1]["status"], "False");
        assert_eq!(first["listeners"][0]["attachedRoutes"], 1);
        assert_eq!(document(Some(&first), &gateway(false, &["a"]), AT_T2), None);
        let next = document(Some(&first), &gateway(true, &["a"]), AT_T2).expect("another condition");
        let times = [0, 1].map(|at| next["conditions"][at]["lastTransitionTime"].as_str().unwrap_or_default());
        assert_eq!(times, ["T1", "T2"]);
        let later = document(Some(&first), &gateway(false, &["a"]), LATER).expect("another generation");
        assert_eq!(later["conditions"][0]["lastTransitionTime"], "T1");
        assert_eq!(later["listeners"][0]["conditions"][0]["observedGeneration"], 2);
        assert!(document(Some(&first), &gateway(false, &[]), AT_T2).is_some(), "a listener is gone");
        assert!(document(Some(&first), &gateway(false, &["a", "b"]), AT_T2).is_some(), "a listener is new");
    }

    #[test]
    fn a_gateway_with_unusable_parameters_is_not_accepted() {
        let check = |reason: &str, generation: i64, expected: &str| {
            let deployed = json!({"type": DEPLOYED, "status": "False", "reason": reason, "message": "there is none",
                "observedGeneration": generation});
            let current = json!({ "conditions": [deployed] });
            let status = document(Some(&current), &gateway(true, &["a"]), LATER).expect("ours are missing");
            let accepted = element(&status["conditions"], "type", "Accepted");
            let text = |name: &str| accepted[name].as_str().unwrap_or_default();
            assert_eq!(format!("{} {}: {}", text("status"), text("reason"), text("message")), expected);
            assert!(!status.to_string().contains(DEPLOYED), "it is not ours to apply: {status}");
        };
        check(INVALID_PARAMETERS, 2, "False InvalidParameters: there is none");
        check(INVALID_PARAMETERS, 1, "True Accepted: ");
        check("NotOwned", 2, "True Accepted: ");
    }

    #[test]
    fn conditions_of_others_are_no_difference() {
        let mut current = document(None, &gateway(true, &["a"]), AT_T1).expect("there is none");
        let other = json!({"type": "Reconciled", "status": "True"});
        for list in ["/conditions", "/listeners/0/conditions"] {
            let list = current.pointer_mut(list).and_then(Value::as_array_mut).expect("a list");
            list.insert(0, other.clone());
        }
        assert_eq!(document(Some(&current), &gateway(true, &["a"]), AT_T2), None);
        let applied = document(Some(&current), &gateway(false, &["a"]), AT_T2).expect("another condition");
        assert!(!applied.to_string().contains("Reconciled"), "they are not ours to apply: {applied}");
    }

    #[test]
    fn a_status_without_a_known_time_keeps_what_the_object_has() {
        let unknown = Stamp { generation: None, now: None };
        let mut current = document(None, &gateway(false, &["a"]), AT_T1).expect("there is none");
        let other = json!({"type": "Reconciled", "status": "True"});
        current["conditions"].as_array_mut().expect("a list").insert(0, other.clone());
        let after = after_apply(Some(&current), &gateway(true, &["a"]), unknown);
        let times = [0, 1].map(|at| after["conditions"][at]["lastTransitionTime"].as_str());
        assert_eq!(times, [Some("T1"), None]);
        assert_eq!(after["conditions"][2], other);
        assert_eq!(after["conditions"][0].get("observedGeneration"), None);
    }

    #[test]
    fn a_policy_has_conditions_for_each_gateway() {
        let policy = |names: &[&str]| {
            let ancestor = |name: &&str| Ancestor {
                namespace: "shop".into(),
                name: (*name).into(),
                controller: "evenkeel.dev/gateway-controller".to_owned(),
            };
            Status::Policy(PolicyStatus {
                ancestors: names.iter().map(ancestor).collect(),
                conditions: vec![condition("Accepted", true)],
            })
        };
        let foreign = json!({"ancestorRef": {"name": "x"}, "controllerName": "example.com/c", "conditions": []});
        let current = json!({ "ancestors": [foreign] });
        let applied = document(Some(&current), &policy(&["a", "b"]), AT_T1).expect("ours are missing");
        assert_eq!(applied["ancestors"][0], foreign);
        assert_eq!(applied["ancestors"][2]["ancestorRef"]["name"], "b");
        assert_eq!(applied["ancestors"][2]["conditions"][0]["lastTransitionTime"], "T1");
        assert_eq!(document(Some(&applied), &policy(&["a", "b"]), AT_T2), None);
        let none = document(Some(&applied), &policy(&[]), AT_T2).expect("all of ours are gone");
        assert_eq!(none["ancestors"], json!([foreign]));
    }

    #[test]
    fn parents_of_others_stay_and_so_do_their_conditions_at_ours() {
        let foreign = json!({"parentRef": {"name": "x"}, "controllerName": "example.com/c", "conditions": []});
        let current = json!({ "parents": [foreign] });
        let applied = document(Some(&current), &route(&["a", "b"]), AT_T1).expect("ours are missing");
        assert_eq!(applied["parents"][0], foreign);
        assert_eq!(applied["parents"].as_array().map(Vec::len), Some(3));
        assert_eq!(document(Some(&applied), &route(&["a", "b"]), AT_T2), None);
        let mut extended = applied.clone();
        let other = json!({"type": "Other", "status": "True"});
        extended["parents"][1]["conditions"].as_array_mut().expect("a list").push(other.clone());
        assert_eq!(document(Some(&extended), &route(&["a", "b"]), AT_T2), None);
        let fewer = document(Some(&extended), &route(&["a"]), AT_T2).expect("one is gone");
        assert_eq!(fewer["parents"].as_array().map(Vec::len), Some(2));
        assert_eq!(fewer["parents"][1]["conditions"][1], other);
        let none = document(Some(&extended), &route(&[]), AT_T2).expect("all of ours are gone");
        assert_eq!(none["parents"], json!([foreign]));
        assert_eq!(document(None, &route(&[]), AT_T1), None, "there is nothing to say");
    }
}
