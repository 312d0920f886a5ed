//! The `status` of Istio's kinds (`IstioStatus` in `meta/v1alpha1/status.proto`).
//!
//! Its lists are atomic: whoever applies one owns all of it. So conditions of others are applied again as they are.

use evenkeel_analyze::codes;
use evenkeel_base::Severity;
use evenkeel_model::{Condition, HostAddress, Status};
use serde_json::{Map, Value, json};

/// Returns the status to apply to an object with this `current` one; `None` if that says it all. `now`: the time of a condition
/// that changes.
pub(super) fn istio(current: Option<&Value>, status: &Status, now: &str) -> Option<Value> {
    let existing = current.and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let existing = existing.map(Vec::as_slice).unwrap_or_default();
    let is_ours = |other: &Value| status.conditions.iter().any(|own| other["type"] == own.kind);
    let own = status.conditions.iter().map(|own| {
        let before = existing.iter().find(|other| other["type"] == own.kind);
        condition(own, before, status.observed_generation, now)
    });
    let conditions: Vec<Value> = existing.iter().filter(|other| !is_ours(other)).cloned().chain(own).collect();
    let mut document = Map::new();
    document.insert("conditions".to_owned(), Value::Array(conditions));
    if let Some(generation) = status.observed_generation {
        document.insert("observedGeneration".to_owned(), number(generation));
    }
    let messages: Vec<Value> = messages(status);
    if !messages.is_empty() {
        document.insert("validationMessages".to_owned(), Value::Array(messages));
    }
    let addresses = addresses(current, &status.addresses);
    // Addresses that are not needed any more stay until the object changes, as those of istiod do.
    let compared = ["conditions", "observedGeneration", "validationMessages", "addresses"];
    let compared = compared.iter().filter(|field| **field != "addresses" || !addresses.is_empty());
    if !addresses.is_empty() {
        document.insert("addresses".to_owned(), Value::Array(addresses.clone()));
    }
    let differs =
        compared.into_iter().any(|field| !same(current.and_then(|current| current.get(field)), document.get(*field)));
    differs.then_some(Value::Object(document))
}

/// The list of addresses of hosts: `host` and `value` of each. A host that has its address already keeps its others, such as that of
/// the other IP version.
fn addresses(current: Option<&Value>, allotted: &[HostAddress]) -> Vec<Value> {
    let existing = current.and_then(|status| status.get("addresses")).and_then(Value::as_array);
    let of_host = |host: &str| {
        let existing = existing.into_iter().flatten();
        existing.filter(|one| one["host"] == host).cloned().collect::<Vec<Value>>()
    };
    let entries = |own: &HostAddress| {
        let value = own.address.to_string();
        let existing = of_host(&own.host);
        let has_it = existing.iter().any(|one| one["value"] == value.as_str());
        if has_it { existing } else { vec![json!({"value": value, "host": &*own.host})] }
    };
    allotted.iter().flat_map(entries).collect()
}

/// Whether two fields say the same, where an empty list is none, and the order of conditions is nobody's.
fn same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let list = |value: Option<&Value>| {
        let mut list = value.and_then(Value::as_array).cloned().unwrap_or_default();
        list.sort_by_key(ToString::to_string);
        list
    };
    match (one, other) {
        (Some(Value::Array(_)), _) | (_, Some(Value::Array(_))) => list(one) == list(other),
        _ => one == other,
    }
}

fn condition(own: &Condition, before: Option<&Value>, generation: Option<i64>, now: &str) -> Value {
    let holds = if own.holds { "True" } else { "False" };
    let since =
        before.filter(|before| before["status"] == holds).and_then(|before| before["lastTransitionTime"].as_str());
    let mut condition = json!({
        "type": own.kind,
        "status": holds,
        "reason": own.reason,
        "lastTransitionTime": since.unwrap_or(now),
    });
    if !own.message.is_empty() {
        condition["message"] = json!(own.message);
    }
    if let Some(generation) = generation {
        condition["observedGeneration"] = number(generation);
    }
    condition
}

/// A 64-bit number in the JSON form of protobuf, as istiod writes it.
fn number(generation: i64) -> Value {
    Value::String(generation.to_string())
}

/// The findings that have one of Istio's codes, each code once and level.
fn messages(status: &Status) -> Vec<Value> {
    let mut messages = Vec::new();
    for finding in &status.findings {
        let Some(code) = codes::of(finding) else { continue };
        let message = json!({
            "type": {"code": code.code, "name": code.name},
            "level": level(finding.severity),
            "documentationUrl": code.url(),
        });
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    messages
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "ERROR",
        Severity::Warning => "WARNING",
        Severity::Info => "INFO",
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Diagnostic, Span};

    use super::*;

    fn status(generation: i64, findings: &[Diagnostic]) -> Status {
        Status::of(Some(generation), findings)
    }

    fn missing() -> Diagnostic {
        Diagnostic::warning("missing-gateway", Span::default(), "there is no Gateway `a`")
    }

    #[test]
    fn a_status_is_applied_once() {
        let good = istio(None, &status(1, &[]), "T1").expect("there is none");
        assert_eq!(good["conditions"][0]["type"], "Accepted");
        assert_eq!((&good["conditions"][0]["status"], &good["observedGeneration"]), (&json!("True"), &json!("1")));
        assert!(good.get("validationMessages").is_none(), "{good}");
        assert_eq!(istio(Some(&good), &status(1, &[]), "T2"), None);
        let next = istio(Some(&good), &status(2, &[]), "T2").expect("another generation");
        assert_eq!(next["conditions"][0]["lastTransitionTime"], "T1");
        let bad = istio(Some(&good), &status(1, &[missing()]), "T2").expect("a finding");
        let times = [0, 1].map(|at| bad["conditions"][at]["lastTransitionTime"].as_str().unwrap_or_default());
        assert_eq!(times, ["T1", "T2"], "{bad}");
        assert_eq!(bad["conditions"][1]["message"], "there is no Gateway `a`");
        assert_eq!(bad["validationMessages"][0]["level"], "WARNING");
        assert_eq!(bad["validationMessages"][0]["type"]["code"], "IST0101");
    }

    #[test]
    fn addresses_are_those_of_the_hosts() {
        let check = |current: Value, allotted: &[(&str, &str)], expected: Value| {
            let addresses = allotted
                .iter()
                .map(|(host, address)| HostAddress {
                    host: (*host).into(),
                    address: address.parse().expect("an address"),
                })
                .collect();
            let status = Status { addresses, ..status(1, &[]) };
            let applied = istio(Some(&current), &status, "T1").expect("there is no condition");
            assert_eq!(applied.get("addresses").cloned().unwrap_or_default(), expected, "{current}");
            assert_eq!(istio(Some(&applied), &status, "T2"), None);
        };
        let entry = |value: &str| json!({"value": value, "host": "a.com"});
        check(json!({}), &[("a.com", "240.240.0.1")], json!([entry("240.240.0.1")]));
        let both = json!([entry("240.240.0.1"), entry("2001:2::1")]);
        check(json!({"addresses": both}), &[("a.com", "240.240.0.1")], both.clone());
        check(json!({"addresses": both}), &[("a.com", "240.240.0.2")], json!([entry("240.240.0.2")]));
        check(json!({"addresses": both}), &[], Value::Null);
    }

    #[test]
    fn conditions_of_others_stay() {
        let other = json!({"type": "Reconciled", "status": "False", "lastProbeTime": "T0"});
        let current = json!({"conditions": [other], "validationMessages": [], "addresses": [{"value": "240.240.0.1"}]});
        let applied = istio(Some(&current), &status(1, &[]), "T1").expect("ours are missing");
        assert_eq!(applied["conditions"][0], other);
        assert_eq!(applied["conditions"].as_array().map(Vec::len), Some(3));
        assert!(applied.get("addresses").is_none(), "a field of others is not applied: {applied}");
        // Others may have another order.
        let conditions = applied["conditions"].as_array().expect("a list");
        let reordered = json!({
            "conditions": conditions.iter().rev().collect::<Vec<_>>(), "observedGeneration": "1", "validationMessages": [],
        });
        assert_eq!(istio(Some(&reordered), &status(1, &[]), "T2"), None);
    }
}
