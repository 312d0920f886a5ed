//! Virtual hosts as separate resources, and all other resources that are requested by name.

use std::sync::Arc;

use evenkeel_runtime_config::{Builder, Config, Demand, Reference, RouteTable, Source};
use evenkeel_xds::Any;

use crate::input;

const TABLE: &str = "\
name: t
vhds: { config_source: { ads: {}, resource_api_version: V3 } }
ignore_port_in_host_matching: true
virtual_hosts: [{ name: rest, domains: [\"*\"], routes: [{ match: { prefix: / }, direct_response: { status: 502 } }] }]
";

fn host(name: &str, domains: &str, cluster: &str) -> Any {
    let text = format!(
        "name: {name}\ndomains: [{domains}]\nroutes: [{{ match: {{ prefix: / }}, route: {{ cluster: {cluster} }} }}]"
    );
    input::resource("envoy.config.route.v3.VirtualHost", &text)
}

fn cluster(name: &str) -> Any {
    input::cluster(&format!("name: {name}\ntype: STATIC\nload_assignment: {{ cluster_name: {name} }}"))
}

fn demand(host: &str) -> Demand {
    Demand::VirtualHost { table: "t".into(), host: host.into() }
}

fn builder() -> Builder {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&input::rds_listener("t"))).unwrap();
    builder.set_route(&input::route(TABLE)).unwrap();
    builder
}

fn table(config: &Config) -> &RouteTable {
    &config.routes["t"]
}

fn serves(config: &Config, host: &str) -> String {
    table(config).find_virtual_host(host.as_bytes()).map(|host| host.name.to_string()).unwrap_or_default()
}

fn names(references: &[Reference]) -> Vec<&str> {
    references.iter().map(|reference| &*reference.name).collect()
}

#[test]
fn virtual_hosts_under_their_own_names_join_by_domain() {
    let mut builder = builder();
    builder.set_virtual_host("t/a.test", &host("a", "a.test, '*.a.test'", "c")).unwrap();
    builder.set_virtual_host("t/b.test", &host("b", "b.test", "c")).unwrap();
    let first = builder.build();
    for (asked, expected) in [("a.test", "a"), ("X.A.TEST:80", "a"), ("b.test", "b"), ("c.test", "rest")] {
        assert_eq!(serves(&first, asked), expected, "{asked}");
    }
    // A change of one leaves the others as they are, and the configuration before it, too.
    builder.set_virtual_host("t/a.test", &host("a2", "a.test, c.test", "c")).unwrap();
    let second = builder.build();
    for (asked, expected) in [("a.test", "a2"), ("x.a.test", "rest"), ("b.test", "b"), ("c.test", "a2")] {
        assert_eq!(serves(&second, asked), expected, "{asked}");
    }
    assert_eq!(serves(&first, "x.a.test"), "a");
    let b = |config: &Arc<Config>| table(config).find_virtual_host(b"b.test").unwrap().clone();
    assert!(Arc::ptr_eq(&b(&first), &b(&second)));
    // A new table keeps them; one that is removed is gone.
    builder.set_route(&input::route(&TABLE.replace("502", "503"))).unwrap();
    builder.remove_virtual_host("t/b.test");
    let third = builder.build();
    assert_eq!((serves(&third, "a.test"), serves(&third, "b.test")), ("a2".to_owned(), "rest".to_owned()));
}

#[test]
fn an_answer_is_for_the_host_that_was_asked_for_and_no_other() {
    let mut builder = builder();
    assert_eq!(table(&builder.build()).unanswered(b"X.A.test:80"), Some(demand("x.a.test")));
    builder.demand(demand("x.a.test"));
    assert_eq!(names(&builder.interest().virtual_hosts), ["t/x.a.test"]);
    builder.set_virtual_host("t/x.a.test", &host("any", "'*.a.test'", "c")).unwrap();
    let config = builder.build();
    assert_eq!((serves(&config, "x.a.test"), table(&config).unanswered(b"x.a.test")), ("any".to_owned(), None));
    // The wildcard may hide a closer one.
    assert_eq!(table(&config).unanswered(b"y.a.test"), Some(demand("y.a.test")));
    builder.demand(demand("y.a.test"));
    builder.remove_virtual_host("t/y.a.test");
    let config = builder.build();
    assert_eq!((serves(&config, "y.a.test"), table(&config).unanswered(b"y.a.test")), ("rest".to_owned(), None));
    assert!(!config.has(&demand("y.a.test")) && config.answers(&demand("y.a.test")));
    // What is withdrawn has to be asked for again.
    builder.withdraw(&demand("x.a.test"));
    assert_eq!(table(&builder.build()).unanswered(b"x.a.test"), Some(demand("x.a.test")));
}

#[test]
fn what_no_host_can_be_is_not_asked_for() {
    let config = builder().build();
    let long = "a".repeat(400);
    for authority in ["", ":80", "a/b", "*.test", "\u{e9}.test", &long] {
        assert_eq!(table(&config).unanswered(authority.as_bytes()), None, "{authority}");
    }
}

#[test]
fn an_answer_waits_for_the_clusters_it_names() {
    let mut builder = builder();
    builder.ask_by_name([Arc::from("web")]);
    builder.demand(demand("a"));
    builder.set_virtual_host("t/a", &host("a", "a", "c")).unwrap();
    assert!(!builder.build().answers(&demand("a")));
    assert_eq!(names(&builder.missing().clusters), ["c"]);
    // Endpoints are asked for along with it.
    assert_eq!(names(&builder.interest().endpoints), ["c"]);
    builder.set_cluster(&cluster("c")).unwrap();
    let config = builder.build();
    assert_eq!((serves(&config, "a"), config.clusters.len()), ("a".to_owned(), 1));
    // A change that names another cluster serves when that is there, and the old one goes then.
    builder.set_virtual_host("t/a", &host("a2", "a", "d")).unwrap();
    let config = builder.build();
    assert_eq!((serves(&config, "a"), config.clusters.contains_key("c")), ("a".to_owned(), true));
    builder.remove_cluster("d");
    builder.build();
    let config = builder.build();
    assert_eq!((serves(&config, "a"), config.clusters.contains_key("c")), ("a2".to_owned(), false));
}

#[test]
fn a_removed_cluster_serves_until_what_replaces_its_host_does() {
    let eds = |name: &str| {
        input::cluster(&format!(
            "name: {name}\ntype: EDS\neds_cluster_config: {{ eds_config: {{ ads: {{}}, resource_api_version: V3 }} }}"
        ))
    };
    let endpoints = |name: &str| {
        let address = "address: { socket_address: { address: 10.0.0.1, port_value: 80 } }";
        let text = format!("cluster_name: {name}\nendpoints: [{{ lb_endpoints: [{{ endpoint: {{ {address} }} }}] }}]");
        input::resource("envoy.config.endpoint.v3.ClusterLoadAssignment", &text)
    };
    let has = |config: &Config, name: &str| {
        config.clusters.get(name).is_some_and(|cluster| !cluster.endpoints.hosts.is_empty())
    };
    let mut builder = builder();
    builder.ask_by_name([Arc::from("web")]);
    builder.demand(demand("a"));
    builder.set_virtual_host("t/a", &host("a", "a", "c")).unwrap();
    builder.set_cluster(&eds("c")).unwrap();
    builder.set_endpoints(&endpoints("c")).unwrap();
    assert!(has(&builder.build(), "c"));
    // The server takes the host that names `d` for served, and removes what the one before it named.
    builder.set_virtual_host("t/a", &host("a2", "a", "d")).unwrap();
    builder.build();
    builder.remove_endpoints("c");
    builder.remove_cluster("c");
    let config = builder.build();
    assert!(serves(&config, "a") == "a" && has(&config, "c"));
    builder.set_cluster(&eds("d")).unwrap();
    assert!(has(&builder.build(), "c"), "`d` has no endpoints yet");
    builder.set_endpoints(&endpoints("d")).unwrap();
    let config = builder.build();
    assert!(serves(&config, "a") == "a2" && has(&config, "d") && !config.clusters.contains_key("c"));
    // One that comes back before that stays.
    builder.set_virtual_host("t/a", &host("a3", "a", "e")).unwrap();
    builder.build();
    builder.remove_cluster("d");
    builder.set_cluster(&eds("d")).unwrap();
    builder.set_virtual_host("t/a", &host("a4", "a", "d")).unwrap();
    let config = builder.build();
    assert!(serves(&config, "a") == "a4" && has(&config, "d"));
    // Where nothing replaces what uses it, it goes at once.
    builder.remove_cluster("d");
    assert!(!builder.build().clusters.contains_key("d"));
}

#[test]
fn what_is_given_up_goes_for_absent_until_an_answer_comes() {
    let mut builder = builder();
    builder.ask_by_name([Arc::from("web")]);
    builder.demand(demand("a"));
    assert!(!builder.build().answers(&demand("a")));
    builder.give_up(&demand("a"));
    assert_eq!(serves(&builder.build(), "a"), "rest");
    assert!(builder.is_given_up(&demand("a")) && builder.is_answered(&demand("a")));
    // One that is known and waits for a cluster goes on without the cluster.
    builder.set_virtual_host("t/a", &host("a", "a", "c")).unwrap();
    assert_eq!(serves(&builder.build(), "a"), "rest");
    builder.set_virtual_host("t/b", &host("b", "b", "c")).unwrap();
    builder.demand(demand("b"));
    builder.build();
    builder.give_up(&demand("b"));
    let config = builder.build();
    assert_eq!((serves(&config, "a"), serves(&config, "b")), ("a".to_owned(), "b".to_owned()));
    assert!(!builder.is_given_up(&demand("a")));
}

#[test]
fn a_host_of_a_table_that_does_not_exist_is_answered() {
    let gone = || Demand::VirtualHost { table: "9999".into(), host: "old".into() };
    let table = Reference { name: "9999".into(), source: Source::Ads, initial_fetch_timeout: None };
    // Either order of the answers, and either of them given up for want of one.
    type Step<'s> = &'s dyn Fn(&mut Builder);
    let no_table: Step<'_> = &|builder| builder.give_up_route(&table);
    let no_host: Step<'_> = &|builder| builder.remove_virtual_host("9999/old");
    let give_up: Step<'_> = &|builder| builder.give_up(&gone());
    for steps in [[no_table, no_host], [no_host, no_table], [give_up, no_table], [no_table, give_up]] {
        let mut builder = builder();
        builder.ask_by_name([Arc::from("web")]);
        builder.demand(gone());
        builder.build();
        assert_eq!(names(&builder.missing().virtual_hosts), ["9999/old"]);
        for step in steps {
            step(&mut builder);
            builder.build();
        }
        assert!(builder.is_answered(&gone()) && !builder.is_present(&gone()));
        assert_eq!(names(&builder.missing().virtual_hosts), [""; 0]);
        assert_eq!(names(&builder.missing().routes), [""; 0]);
        // The service comes back: its host is asked for all the while, and serves as soon as it is there.
        builder.set_route(&input::route(&TABLE.replace("name: t", "name: '9999'"))).unwrap();
        builder.set_virtual_host("9999/old", &host("old", "old", "c")).unwrap();
        builder.set_cluster(&cluster("c")).unwrap();
        let config = builder.build();
        let found = config.routes["9999"].find_virtual_host(b"old").map(|host| host.name.to_string());
        assert_eq!(found.as_deref(), Some("old"));
    }
}

#[test]
fn listeners_are_asked_for_along_with_those_that_name_them() {
    let mut builder = input::builder();
    builder.ask_by_name([Arc::from("web")]);
    let naming = |names: &str| {
        let listener = input::rds_listener("t");
        format!("{listener}metadata: {{ filter_metadata: {{ evenkeel.dev: {{ listeners: \"{names}\" }} }} }}\n")
    };
    builder.set_listener(&input::listener(&naming("a,b"))).unwrap();
    builder.build();
    assert_eq!(names(&builder.interest().listeners), ["a", "b", "web"]);
    builder.set_listener(&input::listener(&naming("b"))).unwrap();
    builder.set_route(&input::route(TABLE)).unwrap();
    builder.build();
    builder.build();
    assert_eq!(names(&builder.interest().listeners), ["b", "web"]);
}

/// No request demands them: the proxy asks for the keys of tokens itself.
#[test]
fn clusters_of_keys_are_asked_for_along_with_their_listener() {
    let mut builder = input::builder();
    builder.ask_by_name([Arc::from("web")]);
    let filter = "      - { name: j, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication, \
                  providers: { p: { issuer: me, remote_jwks: { http_uri: { uri: \"http://keys/\", cluster: keys, timeout: 1s } } } } } }\n";
    let listener = input::rds_listener("t").replace("      - { name: d,", &format!("{filter}      - {{ name: d,"));
    builder.set_listener(&input::listener(&listener)).unwrap();
    builder.build();
    assert_eq!(names(&builder.missing().clusters), ["keys"]);
    builder.set_cluster(&cluster("keys")).unwrap();
    assert!(builder.build().clusters.contains_key("keys"));
}

#[test]
fn listeners_are_asked_for_by_destination() {
    let mut builder = input::builder();
    let destination = "10.96.0.1:80".parse().unwrap();
    assert!(builder.build().unanswered_listeners(destination).is_empty(), "its server sends all there are");
    builder.ask_by_name([]);
    let both = ["10.96.0.1_80", "0.0.0.0_80"].map(|name| Demand::Listener(name.into()));
    assert_eq!(builder.build().unanswered_listeners(destination), both);
    both.iter().for_each(|demand| _ = builder.demand(demand.clone()));
    builder.remove_listener("10.96.0.1_80");
    assert_eq!(builder.build().unanswered_listeners(destination), both[1..]);
    builder.give_up(&both[1]);
    assert!(builder.build().unanswered_listeners(destination).is_empty());
    // That of any address does not hide that of the address.
    let other = "10.96.0.2:80".parse().unwrap();
    assert_eq!(builder.build().unanswered_listeners(other), [Demand::Listener("10.96.0.2_80".into())]);
}

#[test]
fn what_is_wrong_is_named() {
    let mut builder = builder();
    let check = |builder: &mut Builder, name: &str, resource: &Any, expected: &str| {
        let error = builder.set_virtual_host(name, resource).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&mut builder, "t", &host("a", "a", "c"), "is not of the form ROUTE_CONFIGURATION/HOST");
    check(&mut builder, "t/a", &host("a", "", "c"), "domains: must not be empty");
    check(&mut builder, "t/a", &host("a", "a, A", "c"), "domains[1]: \"A\": the domain is listed twice");
    let inline = input::rds_listener("t")
        .replace("rds: {", "route_config: { name: t, vhds: { config_source: { ads: {} } } }\n      no: {");
    let inline =
        inline.lines().filter(|line| !line.contains("no: {")).fold(String::new(), |all, line| all + line + "\n");
    let error = builder.set_listener(&input::listener(&inline)).unwrap_err().to_string();
    assert!(error.contains("route_config.vhds: needs a route configuration of its own"), "{error}");
    let elsewhere = "api_config_source: { api_type: GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: x } }] }";
    let error = builder.set_route(&input::route(&TABLE.replace("ads: {}", elsewhere))).unwrap_err().to_string();
    assert!(error.contains("vhds.config_source: must be ads"), "{error}");
}
