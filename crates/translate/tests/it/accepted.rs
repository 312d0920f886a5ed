//! What is accepted is served: random meshes of accepted objects give resources that our proxy and stock Envoy load.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_testkit::{Random, cases, envoy_validate};
use evenkeel_translate::{ClientKind, ProxyView};

use crate::bootstrap::bootstrap;
use crate::edits::edit;
use crate::incremental::envoys;
use crate::own_proxy::compile;
use crate::scenario::{as_json, translate};

/// Edits of one mesh.
const EDITS: usize = 60;
/// Files of a Sidecar of [`edit`], which Envoy opens when it validates.
const FILES: [&str; 2] = ["\"/c\"", "\"/k\""];

/// A random mesh, and its text.
fn mesh(seed: u64) -> (Snapshot, String) {
    let mut random = Random::new(seed);
    let files: BTreeMap<String, String> = (0..EDITS).map(|_| edit(&mut random)).collect();
    let files: Vec<(Arc<str>, Arc<str>)> =
        files.iter().map(|(name, text)| (name.as_str().into(), text.as_str().into())).collect();
    let (objects, found) = evenkeel_api::load(&files);
    assert!(!found.has_errors(), "{found}");
    let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    let text = files.iter().map(|(name, text)| format!("# {name}\n{text}---\n")).collect();
    (snapshot, text)
}

#[test]
fn our_proxy_loads_the_resources_of_random_meshes() {
    for seed in 0..cases(20, 600) as u64 {
        let (snapshot, text) = mesh(seed);
        for view in envoys() {
            for client_kind in [ClientKind::Envoy, ClientKind::EvenkeelLearned] {
                let (_, refused) = compile(&translate(&ProxyView { client_kind, ..view.clone() }, &snapshot));
                assert!(refused.is_empty(), "seed {seed}, {} {client_kind:?}: {refused:#?}\n{text}", view.pod);
            }
        }
    }
}

#[test]
fn envoy_loads_the_resources_of_random_meshes() {
    for seed in 0..cases(3, 60) as u64 {
        let (snapshot, text) = mesh(1_000 + seed);
        let views = envoys();
        let gateway = views.iter().rfind(|view| view.namespace.starts_with("istio")).expect("a gateway");
        for view in [&views[seed as usize % 3], gateway] {
            let mut resources = as_json(&translate(view, &snapshot));
            if let Some(listeners) = resources["LDS"].as_array_mut() {
                listeners.retain(|listener| FILES.iter().all(|file| !listener.to_string().contains(file)));
            }
            let text_of = bootstrap(&resources, false).to_string();
            if let Err(said) = envoy_validate(&text_of) {
                panic!("seed {seed}, {}: {said}\n{text}", view.pod);
            }
        }
    }
}
