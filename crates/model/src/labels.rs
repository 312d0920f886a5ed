//! Labels of objects, and selectors of labels.

use std::collections::BTreeMap;

/// Labels of an object, or a selector that requires all of them.
pub type Labels = BTreeMap<String, String>;

/// Whether all labels of a selector are present. The empty selector selects everything.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Whether a label or an annotation of a Service or a ServiceEntry may have an effect. Nothing selects these objects by labels, so that
/// those of other tools, which change all day, are left out.
pub fn may_concern_mesh(name: &str) -> bool {
    name.contains("istio") || name.starts_with("gateway.networking.k8s.io/")
}

/// The labels of a Service or a ServiceEntry that may have an effect.
pub fn of_mesh(labels: &Labels) -> Labels {
    labels
        .iter()
        .filter(|(name, _)| may_concern_mesh(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// An object with labels that selectors can match.
pub trait Selectable {
    /// Whether all labels of `selector` are present. The empty selector selects everything.
    fn selected_by(&self, selector: &Labels) -> bool;
}

impl Selectable for Labels {
    fn selected_by(&self, selector: &Labels) -> bool {
        selects(selector, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_mesh() {
        let check = |name: &str, expected: bool| assert_eq!(may_concern_mesh(name), expected, "{name}");
        check("istio.io/persistent-session", true);
        check("networking.istio.io/exportTo", true);
        check("istio", true);
        check("gateway.networking.k8s.io/gateway-name", true);
        check("app", false);
        check("argocd.argoproj.io/instance", false);
        check("kubernetes.io/service-name", false);
    }
}
