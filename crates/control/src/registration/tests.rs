use std::time::UNIX_EPOCH;

use evenkeel_api::Resource;
use evenkeel_api::istio::WorkloadGroupSpec;
use evenkeel_xds::pb::envoy::config::core::v3::Locality;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};

use super::entry::{Connected, Health};
use super::*;

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn object(fields: &[(&str, Value)]) -> Value {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

/// Returns a node of the group `vm` with more metadata.
fn node(address: &str, more: &[(&str, Value)]) -> Node {
    let mut fields = vec![("AUTO_REGISTER_GROUP", text("vm")), ("SERVICE_ACCOUNT", text("vm"))];
    fields.extend(more.iter().cloned());
    let Some(Kind::StructValue(metadata)) = object(&fields).kind else { unreachable!() };
    Node { id: format!("sidecar~{address}~vm-0.shop~x"), metadata: Some(metadata), ..Node::default() }
}

fn registrant(node: &Node) -> Result<Option<Registrant>, RefusedRegistration> {
    Registrant::of(node, &ProxyView::from_node(node).expect("a node"))
}

#[test]
fn entries_are_named_as_in_istio() {
    let check = |address: &str, network: Option<&str>, expected: Option<&str>| {
        let more: Vec<_> = network.map(|network| ("NETWORK", text(network))).into_iter().collect();
        let found = registrant(&node(address, &more)).ok().flatten().map(|found| found.entry_name());
        assert_eq!(found.as_deref(), expected, "{address} {network:?}");
    };
    check("10.0.0.1", None, Some("vm-10.0.0.1"));
    check("10.0.0.1", Some("north"), Some("vm-10.0.0.1-north"));
    check("fd00::1", Some("north"), Some("vm-fd00--1-north"));
    check("fd00::", None, Some("vm-fd00--0"));
    for bad in ["North", "../../etc", "a/b", "-a", "a.", &"n".repeat(64)] {
        check("10.0.0.1", Some(bad), None);
    }
}

#[test]
fn nodes_without_a_group_are_not_registered_and_ones_with_huge_labels_are_refused() {
    let mut plain = node("10.0.0.1", &[]);
    plain.metadata = None;
    assert_eq!(registrant(&plain), Ok(None));
    assert_eq!(registrant(&node("10.0.0.1", &[("AUTO_REGISTER_GROUP", text(""))])), Ok(None));
    let huge = object(&[("a", text(&"x".repeat(20_000)))]);
    let refused = registrant(&node("10.0.0.1", &[("LABELS", huge)])).expect_err("refused");
    assert_eq!(refused, RefusedRegistration::Labels { bytes: 20_001 });
}

#[test]
fn only_an_identity_of_the_groups_account_registers() {
    let registrant = registrant(&node("10.0.0.1", &[])).expect("a registrant").expect("a group");
    let check = |identity: Option<&str>, account: Option<&str>, expected: Option<&str>| {
        let identity = identity.map(|text| text.parse::<SpiffeId>().expect("a SPIFFE id"));
        let result = may_register(identity.as_ref(), &registrant, account).map_err(|error| error.to_string());
        match expected {
            None => assert_eq!(result, Ok(())),
            Some(text) => assert!(result.as_ref().is_err_and(|error| error.contains(text)), "{result:?}"),
        }
    };
    let (own, other) = ("spiffe://cluster.local/ns/shop/sa/vm", "spiffe://cluster.local/ns/shop/sa/other");
    check(Some(own), Some("vm"), None);
    check(Some(own), None, None);
    check(Some(other), None, None);
    check(Some(other), Some("vm"), Some("whose template has `serviceAccount: vm`"));
    check(Some("spiffe://cluster.local/ns/bank/sa/vm"), Some("vm"), Some("may not register in the namespace `shop`"));
    check(None, None, Some("needs a certificate"));
}

fn group() -> WorkloadGroupSpec {
    group_of(
        "metadata: {labels: {app: vm, tier: group}, annotations: {note: hello}}\n  \
              template: {serviceAccount: vm, ports: {http: 8080}, labels: {tier: template, from: template}, \
              network: south, locality: s/1, weight: 2}\n",
    )
}

fn group_of(spec: &str) -> WorkloadGroupSpec {
    let yaml =
        "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: vm, namespace: shop}\nspec:\n  ";
    let (objects, found) = evenkeel_api::load(&[("a.yaml".into(), format!("{yaml}{spec}").into())]);
    assert!(!found.has_errors(), "{found}");
    match &objects[0].resource {
        Resource::WorkloadGroup(group) => group.spec.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_entry_is_made_of_the_groups_template_and_of_what_the_node_says() {
    let more = [
        ("LABELS", object(&[("app", text("special")), ("version", text("v2"))])),
        ("PROXY_CONFIG", object(&[("readinessProbe", object(&[]))])),
        ("NETWORK", text("north")),
    ];
    let locality = Locality { region: "n".into(), zone: "2".into(), sub_zone: String::new() };
    let node = Node { locality: Some(locality), ..node("10.0.0.1", &more) };
    let registrant = registrant(&node).expect("a registrant").expect("a group");
    let health = Health { result: Err("port 80: refused".into()), at: UNIX_EPOCH };
    let document = entry::document(&group(), &registrant, "one", Connected::Since(UNIX_EPOCH), Some(&health));
    let text = format!("{document:#}");
    let expected = r#"{
  "apiVersion": "networking.istio.io/v1",
  "kind": "WorkloadEntry",
  "metadata": {
    "name": "vm-10.0.0.1-north",
    "namespace": "shop",
    "labels": {
      "app": "special",
      "from": "template",
      "tier": "group",
      "version": "v2"
    },
    "annotations": {
      "note": "hello",
      "istio.io/autoRegistrationGroup": "vm",
      "proxy.istio.io/health-checks-enabled": "true",
      "istio.io/workloadController": "one",
      "istio.io/connectedAt": "1970-01-01T00:00:00Z"
    }
  },
  "spec": {
    "address": "10.0.0.1",
    "ports": {
      "http": 8080
    },
    "labels": {
      "app": "special",
      "from": "template",
      "tier": "group",
      "version": "v2"
    },
    "network": "north",
    "locality": "n/2",
    "weight": 2,
    "serviceAccount": "vm"
  },
  "status": {
    "conditions": [
      {
        "type": "Healthy",
        "status": "False",
        "lastProbeTime": "1970-01-01T00:00:00Z",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
        "message": "port 80: refused"
      }
    ]
  }
}"#;
    assert_eq!(text, expected);
    let (_, found) = evenkeel_api::load(&[("a.json".into(), text.as_str().into())]);
    assert!(found.is_empty(), "{found}");
    let stored = entry::read(&document).expect("an entry");
    assert_eq!((&*stored.group, &*stored.controller, stored.health), ("vm", "one", Some(health)));
    assert_eq!(entry::read(&serde_json::json!({})), None);
    let until = entry::document(&group(), &registrant, "one", Connected::Until(UNIX_EPOCH), None);
    let annotations = &until["metadata"]["annotations"];
    assert_eq!(annotations["istio.io/disconnectedAt"], "1970-01-01T00:00:00Z");
    assert!(annotations["istio.io/connectedAt"].is_null());
}

/// Without any part of a group its entries are others.
#[test]
fn every_field_of_a_group_shows_in_its_entries() {
    let parts = [
        "labels: {app: vm}",
        "annotations: {note: hello}",
        "serviceAccount: vm",
        "ports: {http: 8080}",
        "labels: {tier: a}",
        "network: south",
        "locality: s/1",
        "weight: 2",
    ];
    let entry_without = |left_out: usize| {
        let of = |range: std::ops::Range<usize>| {
            let others: Vec<&str> = range.filter(|at| *at != left_out).map(|at| parts[at]).collect();
            others.join(", ")
        };
        let group = group_of(&format!("metadata: {{{}}}\n  template: {{{}}}\n", of(0..2), of(2..parts.len())));
        let registrant = registrant(&node("10.0.0.1", &[])).expect("a registrant").expect("a group");
        entry::document(&group, &registrant, "one", Connected::Since(UNIX_EPOCH), None)
    };
    let whole = entry_without(parts.len());
    for (at, part) in parts.iter().enumerate() {
        assert_ne!(entry_without(at), whole, "{part}");
    }
}

#[test]
fn files_of_long_names_fit_in_a_directory() {
    assert_eq!(file_name(&("shop".into(), "vm-10.0.0.1".into())), "shop.vm-10.0.0.1.json");
    let long = |first: &str| format!("{first}{}", "x".repeat(252)).as_str().into();
    let [one, other] = ["a", "b"].map(|first| file_name(&("n".repeat(63).into(), long(first))));
    assert!(one.len() < 250 && one != other, "{one}");
}

#[test]
fn the_grace_period_is_istios_variable() {
    let of = |value: Option<&str>| grace_from_env(|_| value.map(str::to_owned)).map_err(|error| error.to_string());
    assert_eq!(of(None), Ok(Duration::from_secs(10)));
    assert_eq!(of(Some("1m")), Ok(Duration::from_secs(60)));
    assert!(of(Some("soon")).is_err_and(|error| error.contains("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD: `soon`")));
}

fn stored(state: &std::path::Path) -> Arc<StoredObjects> {
    StoredObjects::open(state, FOLDER, source()).expect("a store").0
}

/// Returns the registrations of a control plane that has read the group.
fn registrations() -> (tempfile::TempDir, Arc<Registrations>) {
    let folder = tempfile::tempdir().expect("a directory");
    let other = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: vm-10.0.0.1, namespace: shop}\n\
                 spec: {template: {}}\n";
    let config = folder.path().join("config");
    std::fs::create_dir(&config).expect("a directory");
    let own = other.replace("vm-10.0.0.1", "vm");
    std::fs::write(config.join("groups.yaml"), format!("{own}{other}")).expect("a file");
    let mesh = evenkeel_model::MeshConfig::default();
    let files = crate::source::directories::Directories::watch(vec![config]).expect("a directory");
    let mut configuration =
        crate::configuration::Configuration::open(vec![Box::new(files)], folder.path(), mesh).expect("a configuration");
    let world = watch::Sender::new(Arc::new(configuration.first()));
    let state = folder.path().join("state");
    std::fs::create_dir(&state).expect("a directory");
    let made = Registrations::new(stored(&state), world.subscribe(), "one".into(), GRACE, Arc::default());
    (folder, made)
}

fn connect(registrations: &Arc<Registrations>, node: &Node) -> Result<Registration, RefusedRegistration> {
    let identity: SpiffeId = "spiffe://cluster.local/ns/shop/sa/vm".parse().expect("a SPIFFE id");
    let view = ProxyView::from_node(node).expect("a node");
    registrations.connect(node, &view, Some(&identity)).map(|registration| registration.expect("a group"))
}

#[test]
fn names_of_two_groups_that_meet_are_not_one_workload() {
    let (_folder, registrations) = registrations();
    let one = connect(&registrations, &node("10.0.0.1", &[("NETWORK", text("10.0.0.2"))])).expect("it registers");
    let meeting = node("10.0.0.2", &[("AUTO_REGISTER_GROUP", text("vm-10.0.0.1"))]);
    let refused = connect(&registrations, &meeting).expect_err("refused");
    assert_eq!(refused.to_string(), "a workload of the WorkloadGroup `vm` is registered as `vm-10.0.0.1-10.0.0.2`");
    assert_eq!(registrations.refusals().len(), 1);
    drop(one);
    // The name is free now.
    connect(&registrations, &meeting).expect("it registers");
    assert!(registrations.refusals().is_empty());
}

#[test]
fn a_workload_that_flaps_is_written_once_a_second() {
    let (_folder, registrations) = registrations();
    let own = connect(&registrations, &node("10.0.0.1", &[])).expect("it registers");
    let begin = Instant::now();
    let written = |after: Duration| registrations.take_work(begin + after).len();
    assert_eq!(written(Duration::ZERO), 1);
    for number in 0..1000 {
        own.health(if number % 2 == 0 { Err("no".to_owned()) } else { Ok(()) });
        assert_eq!(written(Duration::from_millis(number / 2)), 0);
    }
    assert_eq!(written(Duration::from_secs(1)), 1);
    assert_eq!(written(Duration::from_secs(5)), 0, "nothing is new");
    // A stream that ends and one that begins belong to the same workload.
    let again = connect(&registrations, &node("10.0.0.1", &[])).expect("it registers");
    drop(own);
    assert_eq!(written(Duration::from_millis(5500)), 0);
    drop(again);
    assert_eq!(written(Duration::from_secs(6)), 1, "since when it is not connected");
    assert_eq!(written(Duration::from_secs(3600)), 1, "it is removed");
    assert_eq!(written(Duration::from_secs(7200)), 0);
}

/// One identity registered 1,980 workloads in 5 s, with addresses of its choice.
#[test]
fn an_identity_registers_a_limited_number_of_workloads() {
    let yaml = "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: vm, namespace: shop}\nspec: {template: {}}\n";
    let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), yaml.into())]);
    let mut book = evenkeel_model::AddressBook::default();
    let (snapshot, _) = evenkeel_model::build(&objects, &evenkeel_model::MeshConfig::default(), &mut book);
    let (_world, world) = watch::channel(Arc::new(World::of(snapshot)));
    let state = tempfile::tempdir().expect("a directory");
    let registrations = Registrations::new(stored(state.path()), world, "one".to_owned(), GRACE, Arc::default());
    let connect = |account: &str, number: usize| {
        let node = node(&format!("10.0.{}.{}", number / 256, number % 256), &[]);
        let view = ProxyView::from_node(&node).expect("a node");
        let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().expect("an identity");
        registrations.connect(&node, &view, Some(&identity)).map(|registration| registration.expect("a group"))
    };
    let burst = NEW_ENTRIES.0 as usize;
    let mut held: Vec<_> = (0..burst).map(|number| connect("vm", number).expect("registered")).collect();
    let too_fast = connect("vm", burst).map(drop).expect_err("it is limited");
    assert!(matches!(too_fast, RefusedRegistration::TooFast { .. }), "{too_fast}");
    assert!(connect("vm", 0).is_ok(), "a further stream of one of them");
    assert!(connect("other", 2000).is_ok(), "another identity");
    // Entries that another run has written are not new, but count.
    let (group, connected) = (group(), Connected::Since(UNIX_EPOCH));
    for number in burst..=MAX_ENTRIES_PER_IDENTITY {
        let node = node(&format!("10.0.{}.{}", number / 256, number % 256), &[]);
        let registrant = registrant(&node).expect("a registrant").expect("a group");
        let key = (registrant.namespace.clone(), registrant.entry_name().into());
        let document = entry::document(&group, &registrant, "one", connected, None);
        registrations.stored.put(&file_name(&key), document).expect("it is stored");
    }
    held.extend((burst..MAX_ENTRIES_PER_IDENTITY).map(|number| connect("vm", number).expect("registered")));
    let too_many = connect("vm", MAX_ENTRIES_PER_IDENTITY).map(drop).expect_err("it is limited");
    assert!(matches!(too_many, RefusedRegistration::TooMany { .. }), "{too_many}");
}
