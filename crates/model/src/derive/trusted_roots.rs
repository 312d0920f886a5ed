//! Trusted roots in ConfigMaps, which objects of the Gateway API refer to.

use std::sync::Arc;

use evenkeel_api::kubernetes::ConfigMap;
use evenkeel_api::{Kind, ObjectKey, Resource};
use evenkeel_tls::TrustBundle;

use super::tracking::Cx;

/// What is referred to.
pub(super) struct RootsReference<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a Arc<str>,
    pub(super) name: &'a str,
}

/// Why roots cannot be used.
pub(super) struct RootsError {
    /// The code of the finding.
    pub(super) code: &'static str,
    /// The reason.
    pub(super) message: String,
}

/// The roots of a ConfigMap, as PEM.
pub(super) fn roots(cx: &Cx<'_>, reference: &RootsReference<'_>) -> Result<Vec<u8>, RootsError> {
    let RootsReference { group, kind, namespace, name } = *reference;
    if !group.is_empty() || kind != Kind::ConfigMap.as_str() {
        let message = format!("trusted roots are in a ConfigMap, not in a {kind} of `{group}`");
        return Err(RootsError { code: "unsupported-value", message });
    }
    let key = ObjectKey { kind: Kind::ConfigMap, namespace: namespace.clone(), name: name.into() };
    let Some(Resource::ConfigMap(map)) = cx.object(&key).map(|object| &object.resource) else {
        let message = format!("there is no ConfigMap `{namespace}/{name}` with `{}`", ConfigMap::ROOTS);
        return Err(RootsError { code: "missing-config-map", message });
    };
    let unusable = |reason: &dyn std::fmt::Display| RootsError {
        code: "bad-credential",
        message: format!("the ConfigMap `{namespace}/{name}` cannot be used: {reason}"),
    };
    let bytes = match (map.data.get(ConfigMap::ROOTS), map.binary_data.get(ConfigMap::ROOTS)) {
        (Some(text), _) => text.value.as_bytes().to_vec(),
        (None, Some(bytes)) => bytes.0.clone(),
        (None, None) => return Err(unusable(&"it has no `ca.crt`")),
    };
    TrustBundle::from_pem(&bytes).map_err(|error| unusable(&format!("`ca.crt` {error}")))?;
    // Several are joined, each of whole lines.
    Ok(if bytes.ends_with(b"\n") { bytes } else { [bytes, b"\n".to_vec()].concat() })
}
