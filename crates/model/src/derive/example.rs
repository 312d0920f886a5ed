//! An example of all that a new kind needs: this file, a row in `step.rs`, and a list in the snapshot. Only in tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::{ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::run::Run;
use super::step::Results;
use super::tracking::Cx;
use super::{renew, reuse_if_equal};
use crate::Snapshot;

/// The result for one object.
#[derive(Debug, PartialEq)]
pub(crate) struct Example {
    name: Arc<str>,
    /// Whether Istio's Gateway of the same name is there.
    has_twin: bool,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    examples: BTreeMap<ObjectKey, Arc<Example>>,
    changed: bool,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let example = run.read(|cx, found| example(cx, key, found));
    let keep = example.is_some();
    run.tables.example.set(key, example);
    keep
}

fn example(cx: &Cx<'_>, key: &ObjectKey, found: &mut Diagnostics) -> Option<Example> {
    let object = cx.object(key)?;
    let Resource::ReferenceGrant(_) = &object.resource else { return None };
    let has_twin = cx.gateway(&key.namespace, &key.name).is_some();
    if !has_twin {
        let finding = Diagnostic::info("alone", object.origin.clone(), format!("{object} has no twin"));
        found.push(finding.about(object.reference()));
    }
    Some(Example { name: object.name.clone(), has_twin })
}

impl Table {
    fn set(&mut self, key: &ObjectKey, new: Option<Example>) {
        let old = self.examples.remove(key);
        let new = new.map(|new| reuse_if_equal(old.as_ref(), new));
        self.changed |= old.as_ref().map(Arc::as_ptr) != new.as_ref().map(Arc::as_ptr);
        self.examples.extend(new.map(|new| (key.clone(), new)));
    }
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let changed = std::mem::take(&mut self.changed).then(|| self.examples.values().cloned());
        renew(&mut next.examples, changed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_api::{Kind, Object};

    use super::super::Builder;
    use super::super::step::{Step, announced};
    use crate::{AddressBook, Built, MeshConfig};

    use super::*;

    fn gateway(name: &str) -> Arc<Object> {
        let text = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\n\
             spec: {{servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n"
        );
        object(&text)
    }

    fn object(text: &str) -> Arc<Object> {
        let (mut objects, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        Arc::new(objects.remove(0))
    }

    #[test]
    fn a_row_is_all_it_takes_to_be_derived_and_kept_up_to_date() {
        let twin = object(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: front}\n\
             spec: {from: [{group: '', kind: A, namespace: b}], to: [{group: '', kind: Secret}]}\n",
        );
        // The builder compares with a full rebuild after each change.
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(true);
        let mut apply =
            |path: &str, objects: Vec<Arc<Object>>| builder.apply_files([(Path::new(path).into(), objects)]);
        let shown = |built: &Built| {
            let examples = built.snapshot.examples.iter().map(|e| format!("{} {}", e.name, e.has_twin));
            (examples.collect::<Vec<_>>(), built.diagnostics.len())
        };
        assert_eq!(shown(&apply("twin.yaml", vec![twin.clone()])), (vec!["front false".to_owned()], 1));
        let with_twin = apply("istio.yaml", vec![gateway("front")]);
        assert_eq!(shown(&with_twin), (vec!["front true".to_owned()], 0));
        let other = apply("other.yaml", vec![gateway("other")]);
        assert!(with_twin.snapshot.examples.same(&other.snapshot.examples), "of no concern to it");
        assert_eq!(shown(&apply("istio.yaml", Vec::new())), (vec!["front false".to_owned()], 1));
        assert_eq!(shown(&apply("twin.yaml", Vec::new())), (Vec::new(), 0));
    }

    /// Kinds without a row are read only by the steps of others.
    #[test]
    fn kinds_have_a_row() {
        let none: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !announced(**kind)).collect();
        let expected = [Kind::ServiceAccount, Kind::Deployment, Kind::StatefulSet, Kind::DaemonSet];
        assert_eq!(none, expected.iter().collect::<Vec<_>>());
        assert!(Step::Mesh.stage() < Step::Gateways.stage());
    }
}
