//! Decides which objects are read: those of the namespaces that `discoverySelectors` select.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};

use crate::{Labels, MeshConfig};

/// Which objects are read.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Discovery {
    mesh: Option<Box<MeshConfig>>,
    namespaces: Arc<BTreeMap<Arc<str>, Labels>>,
}

impl Discovery {
    /// Selects namespaces by the mesh's settings and their labels.
    pub(super) fn of(mesh: &MeshConfig, namespaces: &Arc<BTreeMap<Arc<str>, Labels>>) -> Self {
        // Nearly always everything is read, and nothing has to be compared.
        if mesh.discovery_selectors.is_empty() && !mesh.leave_out_refused {
            return Self::default();
        }
        let only = MeshConfig {
            discovery_selectors: mesh.discovery_selectors.clone(),
            leave_out_refused: mesh.leave_out_refused,
            ..MeshConfig::default()
        };
        Self { mesh: Some(Box::new(only)), namespaces: namespaces.clone() }
    }

    /// Whether an object is read. The mesh's settings and the namespaces themselves are, wherever they are.
    pub(super) fn reads(&self, object: &Object) -> bool {
        let Some(mesh) = &self.mesh else { return true };
        if matches!(object.kind(), Kind::ConfigMap | Kind::Namespace) || !object.kind().is_namespaced() {
            return true;
        }
        // What stands in for an object that is not supported has no rules then; tools tell of it.
        let is_left_out = mesh.leave_out_refused && object.refused.is_some() && object.unsupported().is_none();
        !is_left_out && mesh.discovers(&object.namespace, self.namespaces.get(&object.namespace))
    }
}
