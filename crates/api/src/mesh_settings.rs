//! The mesh's settings in force, of a ConfigMap that may be refused.

use evenkeel_base::Diagnostics;

use crate::istio::MeshConfig;
use crate::{Object, Resource, refused};

impl MeshConfig {
    /// Reads the settings from such a ConfigMap; if it is refused, only the settings without a mistake. `None`: it is
    /// another object.
    pub fn of_object(object: &Object) -> Option<(Self, Diagnostics)> {
        if let (Some(_), Resource::ConfigMap(map)) = (&object.refused, &object.resource) {
            return Some((refused::mesh_config(map.data.get(Self::KEY)?)?, Diagnostics::new()));
        }
        let (config, diagnostics) = Self::read(object)?;
        Some((config?, diagnostics))
    }
}
