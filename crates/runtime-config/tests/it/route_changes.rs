//! A changed route table is equal to the same table received at once, and its unchanged parts are reused.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_testkit::Random;
use evenkeel_tls::SecretStore;
use evenkeel_xds::{Any, Schema};

use super::input;

/// The table as YAML: of each virtual host its number, and what differs between its versions.
fn text(hosts: &[(usize, usize)], table: usize) -> String {
    let others = match table {
        1 => "request_headers_to_remove: [x-a]\n",
        2 => "ignore_port_in_host_matching: true\nmax_direct_response_body_size_bytes: 3\n",
        3 => "validate_clusters: true\n",
        4 => "request_mirror_policies: [{ cluster: c0 }]\n",
        5 => "vhds: { config_source: { ads: {} } }\n",
        6 => "internal_only_headers: [\"a b\"]\n",
        _ => "",
    };
    let host = |(number, version): &(usize, usize)| {
        let domain = match version {
            0..3 => format!("h{number}"),
            // One that another virtual host may have, and one that is refused.
            3 => "h1".to_owned(),
            4 => "a*b".to_owned(),
            _ => format!("h{number}.v{version}"),
        };
        let action = match version {
            6 => "direct_response: { status: 200, body: { filename: page } }".to_owned(),
            7 => "direct_response: { status: 200, body: { inline_string: long } }".to_owned(),
            8 => "route: { cluster: a, internal_redirect_action: HANDLE_INTERNAL_REDIRECT }".to_owned(),
            version => format!("route: {{ cluster: c{version} }}"),
        };
        format!("- {{ name: n{number}, domains: [\"{domain}\"], routes: [{{ match: {{ prefix: / }}, {action} }}] }}\n")
    };
    let hosts: String = hosts.iter().map(host).collect();
    format!("name: r\n{others}virtual_hosts:\n{hosts}")
}

/// What stands around the table: a listener that names it, and clusters that it may name; c2 is not there.
fn around() -> Vec<Any> {
    let cluster = |name: &str| input::cluster(&format!("{{ name: {name}, type: STATIC, connect_timeout: 1s }}"));
    ["c0", "c1", "c3", "c4", "c5"]
        .map(cluster)
        .into_iter()
        .chain([input::listener(&input::rds_listener("r"))])
        .collect()
}

fn builder(around: &[Any]) -> Builder {
    let environment = Environment { read_file: Box::new(|_| Ok(b"a".to_vec())), ..Environment::process() };
    let mut builder = Builder::new(environment, SecretStore::new());
    around.iter().for_each(|resource| input::set(&mut builder, resource).expect("a valid resource"));
    builder
}

/// What is served, or why it is not.
fn outcome(builder: &mut Builder, resource: &Any) -> Result<Option<Arc<RouteTable>>, String> {
    builder.set_route(resource).map_err(|rejection| rejection.to_string())?;
    Ok(builder.build().routes.get("r").cloned())
}

#[test]
fn a_changed_table_is_as_one_that_came_whole() {
    // Held, so that it loads once.
    let _schema = Schema::acquire();
    let around = around();
    let mut random = Random::new(11);
    let mut made = HashMap::new();
    for _ in 0..20 {
        let (mut kept, mut hosts, mut table) = (builder(&around), vec![(0, 0), (1, 0), (2, 0)], 0);
        for step in 0..30 {
            let at = random.below(hosts.len().max(1));
            match random.below(8) {
                0 => hosts.insert(at.min(hosts.len()), (step + 3, 0)),
                1 if hosts.len() > 1 => _ = hosts.remove(at),
                2 => hosts.reverse(),
                3 => table = random.below(7),
                // A name that another one has.
                4 if step % 5 == 0 => hosts.push((at, 1)),
                _ if !hosts.is_empty() => hosts[at].1 = random.below(9),
                _ => {}
            }
            let yaml = text(&hosts, table);
            let resource = made.entry(yaml.clone()).or_insert_with(|| input::route(&yaml));
            let (kept, whole) = (outcome(&mut kept, resource), outcome(&mut builder(&around), resource));
            assert_eq!(format!("{kept:#?}"), format!("{whole:#?}"), "{yaml}");
            if kept.is_err() {
                (hosts, table) = (vec![(0, 0), (1, 0), (2, 0)], 0);
            }
        }
    }
}

#[test]
fn virtual_hosts_that_have_not_changed_stay() {
    let mut builder = builder(&around());
    let mut set = |hosts: &[(usize, usize)], table: usize| {
        outcome(&mut builder, &input::route(&text(hosts, table))).expect("valid").expect("served")
    };
    let first = set(&[(0, 0), (1, 0), (2, 6), (3, 0)], 0);
    let second = set(&[(3, 0), (0, 0), (1, 1), (2, 6)], 1);
    let is_kept = |old: usize, new: usize| Arc::ptr_eq(&first.virtual_hosts[old], &second.virtual_hosts[new]);
    assert!(is_kept(3, 0) && is_kept(0, 1), "wherever they stand");
    assert!(!is_kept(1, 2));
    assert!(!is_kept(2, 3), "a file is read again");
}
