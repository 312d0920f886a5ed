//! Equal input gives equal bytes: versions are hashes of them.

use evenkeel_xds::ResourceType;

use crate::scenario::{SCENARIOS, Scenario, translate};

#[test]
fn equal_input_gives_equal_versions() {
    for name in SCENARIOS {
        // Read twice: every map inside is a new one, with another order of its own.
        let (one, two) = (Scenario::read(name), Scenario::read(name));
        for (a, b) in one.proxies.iter().zip(&two.proxies) {
            let (a, b) = (translate(a, &one.snapshot), translate(b, &two.snapshot));
            for kind in ResourceType::ALL {
                assert_eq!(a.of(kind), b.of(kind), "{name} {kind}");
            }
        }
    }
}

#[test]
fn every_resource_a_user_caused_names_its_place() {
    let scenario = Scenario::read("capitals");
    let set = translate(&scenario.proxies[0], &scenario.snapshot);
    for (kind, name) in [
        (ResourceType::Cluster, "outbound|8080|v2|capitals-info.capitals.svc.cluster.local"),
        (ResourceType::Route, "8080"),
        (ResourceType::Listener, "0.0.0.0_8080"),
    ] {
        let resource = set.get(kind, name).unwrap_or_else(|| panic!("no {kind} {name}"));
        let origin = resource.origin.as_deref().unwrap_or_default();
        assert!(origin.starts_with("input.yaml:"), "{name}: {origin:?}");
    }
}
