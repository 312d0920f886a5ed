//! `evenkeel proxy` supports every field that is sent: it compiles the resources of each proxy.

use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_xds::ResourceType;

use crate::scenario::{SCENARIOS, Scenario, translate};

#[test]
fn our_proxy_accepts_every_resource() {
    let mut refused = Vec::new();
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        for view in &scenario.proxies {
            let set = translate(view, &scenario.snapshot);
            let mut builder = Builder::new(environment(), SecretStore::new());
            for kind in ResourceType::ALL {
                for resource in set.of(kind).values() {
                    let outcome = match kind {
                        ResourceType::Cluster => builder.set_cluster(&resource.any),
                        ResourceType::Endpoint => builder.set_endpoints(&resource.any),
                        ResourceType::Listener => builder.set_listener(&resource.any),
                        ResourceType::Route => builder.set_route(&resource.any),
                        ResourceType::Secret | ResourceType::NameTable => Ok(()),
                    };
                    refused.extend(outcome.err().map(|rejection| format!("{name}, {}: {rejection}", view.pod)));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// An environment where every certificate file can be read.
fn environment() -> Environment {
    let ca = evenkeel_testkit::TestCa::new();
    let identity = ca.for_dns(&["test"]);
    let (chain, key, root) = (identity.cert_pem.clone(), identity.key_pem.clone(), ca.root_pem());
    Environment {
        read_file: Box::new(move |path| {
            let text = match path.to_string_lossy() {
                path if path.ends_with(".key") => &key,
                path if path.contains("ca-certificates") => &root,
                _ => &chain,
            };
            Ok(text.clone().into_bytes())
        }),
        ..Environment::process()
    }
}
