//! Custom resource definitions: Istio's kinds and those of the Gateway API.

use evenkeel_api::definition::{self, BUNDLE_VERSION, BUNDLES};
use evenkeel_base::yaml::Node;
use evenkeel_base::{Severity, Span};
use serde_json::Value;

use super::picture::{Picture, annotation, condition, list, name};
use super::{Check, Verdict, minor_version, must, none_of, should};
use crate::crds::{self, VERSION_ANNOTATION};

const GROUP: &str = "definitions";
const PAGE: &str = "docs/install.md#custom-resource-definitions";
const GATEWAY_API: &str = ".gateway.networking.k8s.io";
const CHANNEL: &str = "gateway.networking.k8s.io/channel";

const NOT_NEWER: &str = "no definition is newer than this program";
const OLDEST: &str = "the Gateway API is 1.1 or newer";
const STORED: &str = "stored objects have versions that are served";
/// Checks that nobody skips: an older definition, or one without a version in which objects are stored, loses what users have stored.
pub const BINDING: [&str; 2] = [NOT_NEWER, STORED];

pub(super) const CHECKS: &[Check] = &[
    Check { group: GROUP, name: NOT_NEWER, is_early: true, hint: PAGE, run: not_newer },
    Check { group: GROUP, name: STORED, is_early: true, hint: PAGE, run: stored },
    Check { group: GROUP, name: OLDEST, is_early: true, hint: PAGE, run: gateway_api },
    Check {
        group: GROUP,
        name: "the Gateway API's definitions have one version",
        is_early: true,
        hint: PAGE,
        run: one_bundle,
    },
    Check {
        group: GROUP,
        name: "the Gateway API is of the standard channel",
        is_early: true,
        hint: PAGE,
        run: channel,
    },
    Check { group: GROUP, name: "what they define is read", is_early: true, hint: PAGE, run: read },
    Check { group: GROUP, name: "Istio's kinds are defined", is_early: false, hint: PAGE, run: present },
    Check { group: GROUP, name: "the API server serves them", is_early: false, hint: PAGE, run: established },
    Check { group: GROUP, name: "they have the versions of this program", is_early: false, hint: PAGE, run: versions },
];

const KIND: &str = "CustomResourceDefinition";

/// Our definitions with what the cluster has of each.
fn pairs(picture: &Picture) -> Result<Vec<[Value; 2]>, String> {
    let found = picture.all(KIND)?;
    let pair = |own: Value| {
        let other = found.iter().find(|other| name(other) == name(&own)).cloned()?;
        Some([own, other])
    };
    Ok(crds::definitions().into_iter().filter_map(pair).collect())
}

fn versions_of(definition: &Value) -> Vec<&str> {
    list(definition, "/spec/versions").iter().filter_map(|version| version["name"].as_str()).collect()
}

fn not_newer(picture: &Picture) -> Result<Verdict, String> {
    let own = minor_version(&picture.version);
    let newer = pairs(picture)?.into_iter().filter_map(|[_, other]| {
        let version = annotation(&other, VERSION_ANNOTATION)?;
        (minor_version(version) > own).then(|| format!("{} is of {version}", name(&other)))
    });
    Ok(none_of(newer.collect(), Verdict::Failed))
}

fn stored(picture: &Picture) -> Result<Verdict, String> {
    let lost = pairs(picture)?.into_iter().flat_map(|[own, other]| {
        let stored = list(&other, "/status/storedVersions").iter().filter_map(Value::as_str);
        let served = versions_of(&own);
        let lost = stored.filter(|version| !served.contains(version));
        lost.map(|version| format!("{} has objects of {version}", name(&own))).collect::<Vec<_>>()
    });
    Ok(none_of(lost.collect(), Verdict::Failed))
}

fn of_gateway_api(picture: &Picture) -> Result<Vec<&Value>, String> {
    let found: Vec<_> =
        picture.all(KIND)?.iter().filter(|definition| name(definition).ends_with(GATEWAY_API)).collect();
    if found.is_empty() { Err("the Gateway API is not installed".to_owned()) } else { Ok(found) }
}

fn gateway_api(picture: &Picture) -> Result<Verdict, String> {
    let old = of_gateway_api(picture)?.into_iter().filter_map(|definition| {
        let version = annotation(definition, BUNDLE_VERSION)?;
        (definition::bundle_version(version)? < *BUNDLES.start())
            .then(|| format!("{} is of {version}", name(definition)))
    });
    Ok(none_of(old.collect(), Verdict::Failed))
}

/// Kinds, versions and fields that users can write and that would have no effect.
fn read(picture: &Picture) -> Result<Verdict, String> {
    let gaps = picture.all(KIND)?.iter().flat_map(|definition| {
        let node = Node::from_json(definition, &Span::of_object(name(definition)));
        let lost = definition::gaps(&node).into_iter().filter(|gap| gap.severity > Severity::Info);
        lost.map(|gap| gap.message).collect::<Vec<_>>()
    });
    Ok(none_of(gaps.collect(), Verdict::Warning))
}

fn one_bundle(picture: &Picture) -> Result<Verdict, String> {
    let mut versions: Vec<_> =
        of_gateway_api(picture)?.into_iter().filter_map(|crd| annotation(crd, BUNDLE_VERSION)).collect();
    versions.sort_unstable();
    versions.dedup();
    Ok(should(versions.len() <= 1, || format!("they are of {}", versions.join(", "))))
}

fn channel(picture: &Picture) -> Result<Verdict, String> {
    let experimental =
        of_gateway_api(picture)?.into_iter().filter(|crd| annotation(crd, CHANNEL) == Some("experimental"));
    Ok(none_of(experimental.map(|crd| name(crd).to_owned()).collect(), Verdict::Warning))
}

fn present(picture: &Picture) -> Result<Verdict, String> {
    let found = picture.all(KIND)?;
    let missing = crds::definitions().into_iter().filter(|own| !found.iter().any(|other| name(other) == name(own)));
    Ok(none_of(missing.map(|own| name(&own).to_owned()).collect(), Verdict::Failed))
}

fn established(picture: &Picture) -> Result<Verdict, String> {
    let waiting = pairs(picture)?.into_iter().filter_map(|[_, other]| {
        let is_served = condition(&other, "Established").is_some_and(|condition| condition["status"] == "True");
        (!is_served).then(|| name(&other).to_owned())
    });
    Ok(none_of(waiting.collect(), Verdict::Failed))
}

fn versions(picture: &Picture) -> Result<Verdict, String> {
    let lacking = pairs(picture)?.into_iter().filter_map(|[own, other]| {
        let served = versions_of(&other);
        let missing: Vec<_> = versions_of(&own).into_iter().filter(|version| !served.contains(version)).collect();
        (!missing.is_empty()).then(|| format!("{} lacks {}", name(&own), missing.join(", ")))
    });
    let found = pairs(picture)?;
    Ok(if found.is_empty() {
        must(false, || "none is there".to_owned())
    } else {
        none_of(lacking.collect(), Verdict::Warning)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_names_the_oldest_version() {
        let [major, minor] = BUNDLES.start();
        assert_eq!(OLDEST, format!("the Gateway API is {major}.{minor} or newer"));
    }
}
