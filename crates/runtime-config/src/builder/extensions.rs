//! Configurations of filters (ECDS): the listeners that use one are compiled again when it changes.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_xds::{Any, ResourceType};

use super::entry::Version;
use super::names::Holder;
use super::{Awaited, Builder, Reference, check, decode};
use crate::compile::Cx;
use crate::compile::listener::CompiledListener;
use crate::rejection::{Problem, Rejection};

const KIND: &str = "TypedExtensionConfig";

/// A listener's newest version, compiled with other configurations of its filters.
type Recompiled = (Arc<str>, Version<CompiledListener>);

impl Builder {
    /// Sets the configuration of the filters of this name, received by ECDS.
    pub fn set_extension(&mut self, resource: &Any) -> Result<(), Rejection> {
        let message: TypedExtensionConfig = decode(KIND, resource)?;
        let cx = Cx::new(&self.environment);
        let config = check(KIND, &message.name, resource, cx, |cx| {
            cx.non_empty("name", &message.name)?;
            cx.required("typed_config", message.typed_config.as_ref()).cloned()
        })?;
        let name: Arc<str> = message.name.into();
        if self.extensions.get(&name).is_some_and(|before| **before == config) {
            return Ok(());
        }
        let before = self.extensions.insert(Arc::clone(&name), Arc::new(config));
        match self.recompile_users(&name) {
            Ok(listeners) => {
                self.given_up.remove(&Awaited::Extension(name.clone()));
                self.replace(listeners);
                self.arrived(ResourceType::ExtensionConfig, &name);
                Ok(())
            }
            Err(problems) => {
                match before {
                    Some(before) => _ = self.extensions.insert(name.clone(), before),
                    None => _ = self.extensions.remove(&name),
                }
                Err(Rejection { kind: KIND, name: name.to_string(), problems })
            }
        }
    }

    /// ECDS no longer has this name: its filters go on with their default configuration, and without one let nothing pass.
    pub fn remove_extension(&mut self, reference: &Reference) {
        if let Some(before) = self.extensions.remove(&reference.name) {
            match self.recompile_users(&reference.name) {
                Ok(listeners) => self.replace(listeners),
                // They had been compiled before; should they not be now, what is in force stays.
                Err(_) => _ = self.extensions.insert(reference.name.clone(), before),
            }
        }
        self.give_up_extension(reference);
    }

    /// The initial fetch timeout of an ECDS name has passed: its listeners become active with the default configuration, or
    /// with a filter that lets nothing pass.
    pub fn give_up_extension(&mut self, reference: &Reference) {
        if self.graph.names.knows(ResourceType::ExtensionConfig, &reference.name) {
            self.given_up.insert(Awaited::Extension(reference.name.clone()));
            self.arrived(ResourceType::ExtensionConfig, &reference.name);
        }
    }

    /// The configuration held for the filters of this name.
    pub fn extension(&self, name: &str) -> Option<&Any> {
        self.extensions.get(name).map(|config| &**config)
    }

    pub(super) fn has_extension(&self, name: &Arc<str>) -> bool {
        self.extensions.contains_key(name) || self.given_up.contains(&Awaited::Extension(name.clone()))
    }

    pub(super) fn forget_extension(&mut self, name: &Arc<str>) {
        self.given_up.remove(&Awaited::Extension(name.clone()));
        self.extensions.remove(name);
    }

    fn recompile_users(&self, name: &Arc<str>) -> Result<Vec<Recompiled>, Vec<Problem>> {
        let holders = self.graph.names.holders(ResourceType::ExtensionConfig, name);
        let listeners = holders.into_iter().filter_map(|holder| match holder {
            Holder::Listener(listener) => Some(listener),
            _ => None,
        });
        let mut recompiled = Vec::new();
        for listener in listeners {
            let newest = self.listeners.get(&listener).and_then(|entry| entry.versions.newest());
            let Some(Version { resource, .. }) = newest else { continue };
            match self.compiled_listener(resource, &listener) {
                Ok(compiled) => {
                    let version = Version { resource: resource.clone(), compiled: Arc::new(compiled) };
                    recompiled.push((listener, version));
                }
                Err(rejection) => {
                    let in_listener = |problem: Problem| Problem {
                        path: format!("listener {listener}: {}", problem.path),
                        reason: problem.reason,
                    };
                    return Err(rejection.problems.into_iter().map(in_listener).collect());
                }
            }
        }
        Ok(recompiled)
    }

    fn replace(&mut self, listeners: Vec<Recompiled>) {
        for (name, version) in listeners {
            self.set_listener_version(name, version);
        }
    }
}
