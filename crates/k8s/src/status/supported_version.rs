//! The condition `SupportedVersion` of a GatewayClass: whether the cluster's definitions of the Gateway API are of a known version.

use evenkeel_api::definition::{BUNDLE_VERSION, BUNDLES, bundle_version};
use evenkeel_model::Condition;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::PartialObjectMeta;

use crate::discovery;

/// The definition that is asked; all are installed together.
const DEFINITION: &str = "gatewayclasses.gateway.networking.k8s.io";

/// Returns the condition for the definitions of a cluster.
pub(super) async fn condition(client: &Client) -> Result<Condition, kube::Error> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &discovery::definitions());
    let definition = api.get_opt(DEFINITION).await?;
    let annotations = definition.and_then(|definition| definition.metadata.annotations).unwrap_or_default();
    Ok(of(annotations.get(BUNDLE_VERSION).map(String::as_str)))
}

fn of(version: Option<&str>) -> Condition {
    let is_known = version.and_then(bundle_version).is_some_and(|version| BUNDLES.contains(&version));
    let version = version.unwrap_or("unknown");
    let (reason, message) = if is_known {
        ("SupportedVersion", format!("the definitions are of version {version}"))
    } else {
        let [oldest, newest] = [BUNDLES.start(), BUNDLES.end()].map(|[major, minor]| format!("{major}.{minor}"));
        let message = format!("the definitions are of version {version}, and {oldest} to {newest} are known");
        ("UnsupportedVersion", message)
    };
    Condition { kind: "SupportedVersion", holds: is_known, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_up_to_the_newest_known_one_are_supported() {
        let check = |version: Option<&str>, expected: bool, reason: &str| {
            let condition = of(version);
            assert_eq!((condition.holds, condition.reason), (expected, reason), "{version:?}: {}", condition.message);
        };
        check(Some("v1.6.0"), true, "SupportedVersion");
        check(Some("v1.1.0-rc1"), true, "SupportedVersion");
        check(Some("v1.0.0"), false, "UnsupportedVersion");
        check(Some("v1.7.0"), false, "UnsupportedVersion");
        check(Some("v0.8.1"), false, "UnsupportedVersion");
        check(Some("main"), false, "UnsupportedVersion");
        check(None, false, "UnsupportedVersion");
    }
}
