//! `evenkeel proxy` supports every field that is sent: it compiles the resources of each proxy.

use std::sync::{Arc, LazyLock};

use evenkeel_runtime_config::{Builder, Config, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::{ResourceSet, ResourceType};

use crate::scenario::{SCENARIOS, SCHEMA, Scenario, translate};

#[test]
fn our_proxy_accepts_every_resource() {
    let mut refused = Vec::new();
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        for view in &scenario.proxies {
            for client_kind in [ClientKind::Envoy, ClientKind::EvenkeelFull, ClientKind::EvenkeelLearned] {
                let view = ProxyView { client_kind, ..view.clone() };
                let (_, rejections) = compile(&translate(&view, &scenario.snapshot));
                refused.extend(rejections.into_iter().map(|rejection| format!("{name}, {}: {rejection}", view.pod)));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// The configuration our proxy would run on, and what it refused.
pub fn compile(set: &ResourceSet) -> (Arc<Config>, Vec<String>) {
    LazyLock::force(&SCHEMA);
    let mut builder = Builder::new(environment(), SecretStore::new());
    let mut refused = Vec::new();
    for kind in ResourceType::ALL {
        for resource in set.of(kind).values() {
            let outcome = match kind {
                ResourceType::Cluster => builder.set_cluster(&resource.any()),
                ResourceType::Endpoint => builder.set_endpoints(&resource.any()),
                ResourceType::Listener => builder.set_listener(&resource.any()),
                ResourceType::Route => builder.set_route(&resource.any()),
                ResourceType::VirtualHost => builder.set_virtual_host(&resource.name, &resource.any()),
                ResourceType::ExtensionConfig => builder.set_extension(&resource.any()),
                ResourceType::Secret | ResourceType::NameTable | ResourceType::ProxyConfig => Ok(()),
            };
            refused.extend(outcome.err().map(|rejection| rejection.to_string()));
        }
    }
    for cluster in builder.dns_clusters() {
        for target in &cluster.targets {
            builder.set_dns_endpoints(&cluster.cluster, &target.host, &[[192, 0, 2, 99].into()]);
        }
    }
    // Nobody shakes hands here: what waits for certificates need not.
    let missing = builder.missing();
    missing.secrets.iter().for_each(|secret| builder.give_up_secret(secret));
    (builder.build(), refused)
}

/// An environment where every certificate file can be read.
pub fn environment() -> Environment {
    let ca = evenkeel_testkit::TestCa::new();
    let identity = ca.for_dns(&["test"]);
    let (chain, key, root) = (identity.cert_pem.clone(), identity.key_pem.clone(), ca.root_pem());
    Environment {
        read_file: Box::new(move |path| {
            let text = match path.to_string_lossy() {
                path if path.ends_with(".key") || path == "/k" => &key,
                path if path.contains("ca-certificates") => &root,
                _ => &chain,
            };
            Ok(text.clone().into_bytes())
        }),
        ..Environment::process()
    }
}
