//! The API server, the nodes, and the rights of the user.

use serde_json::Value;

use super::picture::{Picture, Right, condition, list, name, namespace};
use super::{Check, Outcome, Verdict, minor_version, must, none_of, should};

/// The oldest version of Kubernetes, for native sidecars.
const OLDEST: [u32; 2] = [1, 29];
/// How far clocks may be apart, in seconds. Certificates are valid from some time before they are issued.
const MAX_SKEW_S: i64 = 60;
const GROUP: &str = "kubernetes";
const PAGE: &str = "docs/install.md#before";

pub(super) const CHECKS: &[Check] = &[
    Check { group: GROUP, name: "the API server answers", is_early: true, hint: PAGE, run: answers },
    Check { group: GROUP, name: "the API server is 1.29 or newer", is_early: true, hint: PAGE, run: is_new_enough },
    Check {
        group: GROUP,
        name: "clocks of the API server and this machine agree",
        is_early: true,
        hint: PAGE,
        run: clock,
    },
    Check { group: GROUP, name: "there are nodes", is_early: true, hint: PAGE, run: has_nodes },
    Check { group: GROUP, name: "nodes are ready", is_early: true, hint: PAGE, run: nodes_ready },
    Check { group: GROUP, name: "kubelets are 1.29 or newer", is_early: true, hint: PAGE, run: kubelets },
    Check {
        group: GROUP,
        name: "clocks of the nodes agree with the API server's",
        is_early: true,
        hint: PAGE,
        run: node_clocks,
    },
];

fn version(picture: &Picture) -> Result<&str, String> {
    match &picture.server_version {
        Some(Ok(version)) => Ok(version),
        Some(Err(reason)) => Err(reason.clone()),
        None => Err("not asked".to_owned()),
    }
}

fn answers(picture: &Picture) -> Result<Verdict, String> {
    Ok(version(picture).map_or_else(Verdict::Failed, |_| Verdict::Passed))
}

fn is_new_enough(picture: &Picture) -> Result<Verdict, String> {
    let text = version(picture)?;
    let found = minor_version(text).ok_or_else(|| format!("`{text}` is no version"))?;
    Ok(must(found >= OLDEST, || format!("it is {text}; native sidecars came with 1.29")))
}

fn clock(picture: &Picture) -> Result<Verdict, String> {
    let skew = picture.skew_s.ok_or("the API server has not said what time it is")?;
    Ok(must(skew.abs() <= MAX_SKEW_S, || format!("{skew} s apart: certificates would be not valid yet, or no longer")))
}

fn has_nodes(picture: &Picture) -> Result<Verdict, String> {
    Ok(should(!picture.all("Node")?.is_empty(), || "no node has been registered".to_owned()))
}

fn nodes_ready(picture: &Picture) -> Result<Verdict, String> {
    let unready =
        picture.all("Node")?.iter().filter(|node| condition(node, "Ready").is_some_and(|c| c["status"] != "True"));
    Ok(none_of(unready.map(|node| name(node).to_owned()).collect(), Verdict::Warning))
}

fn kubelets(picture: &Picture) -> Result<Verdict, String> {
    let old = picture.all("Node")?.iter().filter_map(|node| {
        let version = node.pointer("/status/nodeInfo/kubeletVersion")?.as_str()?;
        (minor_version(version)? < OLDEST).then(|| format!("{} has {version}", name(node)))
    });
    Ok(none_of(old.collect(), Verdict::Failed))
}

/// A node renews its Lease every ten seconds by its own clock.
fn node_clocks(picture: &Picture) -> Result<Verdict, String> {
    let skew = picture.skew_s.unwrap_or_default();
    let wrong =
        picture.all("Lease")?.iter().filter(|lease| namespace(lease) == "kube-node-lease").filter_map(|lease| {
            let renewed = seconds(lease.pointer("/spec/renewTime")?)?;
            let ahead = renewed - (picture.now_s + skew);
            (ahead.abs() > MAX_SKEW_S)
                .then(|| format!("{} is {ahead} s off, or has not answered for as long", name(lease)))
        });
    Ok(none_of(wrong.collect(), Verdict::Warning))
}

/// Seconds since 1970 of a time such as `2026-11-30T23:59:59.000000Z`.
pub(super) fn seconds(time: &Value) -> Option<i64> {
    let text = time.as_str()?;
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // Days from 1970 in the Gregorian calendar, where a year begins with March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?)
}

/// One check for each right that the installation needs.
pub(super) fn rights(picture: &Picture) -> Vec<Outcome> {
    let described = |right: &Right| match right.group {
        "" => format!("the user may {} {}", right.verb, right.resource),
        group => format!("the user may {} {}.{group}", right.verb, right.resource),
    };
    let judged = |allowed: &Result<bool, String>| match allowed {
        Ok(true) => Verdict::Passed,
        Ok(false) => Verdict::Failed("RBAC forbids it".to_owned()),
        Err(reason) => Verdict::Skipped(reason.clone()),
    };
    let outcome = |answer: &super::Answer| Outcome {
        group: "permissions",
        name: described(&answer.right),
        verdict: judged(&answer.allowed),
        hint: PAGE,
    };
    picture.rights.iter().map(outcome).collect()
}

/// The reasons for which containers of a Pod wait, such as `ImagePullBackOff`.
pub(super) fn waiting(pod: &Value) -> Vec<String> {
    let states = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let all = states.iter().flat_map(|pointer| list(pod, pointer));
    let reason = |status: &Value| {
        let waiting = status.pointer("/state/waiting")?;
        let (reason, message) = (waiting["reason"].as_str()?, waiting["message"].as_str().unwrap_or_default());
        let container = status["name"].as_str().unwrap_or_default();
        Some(format!("{}/{container}: {reason} {message}", name(pod)).trim_end().to_owned())
    };
    all.filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        let check = |text: &str, expected: Option<i64>| assert_eq!(seconds(&text.into()), expected, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("2024-02-29T12:00:00.123456Z", Some(1_709_208_000));
        check("2026-11-30T23:59:59Z", Some(1_796_083_199));
        check("soon", None);
        check("", None);
    }
}
