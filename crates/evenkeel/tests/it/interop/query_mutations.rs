//! Edits of queries by the header mutation filter: Evenkeel and Envoy forward the same paths.

use std::net::Ipv4Addr;

use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

const FILTER: &str = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";

/// Edits in the order they are applied.
const EDITS: [&str; 9] = [
    "{ remove: a }",
    "{ append: { record: { key: a, value: new } } }",
    "{ append: { record: { key: a, value: new }, action: ADD_IF_ABSENT } }",
    "{ append: { record: { key: a, value: new }, action: OVERWRITE_IF_EXISTS } }",
    "{ append: { record: { key: a, value: new }, action: OVERWRITE_IF_EXISTS_OR_ADD } }",
    "{ append: { record: { key: user, value: \"%REQ(x-user)%\" } } }",
    "{ append: { record: { key: \"k-y\", value: \"a&b=c/~\" } } }",
    "{ append: { record: { key: from, value: \"%REQ(:path)%\" } } }, { remove: b }",
    "{ append: { record: { key: a, value: 1 }, action: OVERWRITE_IF_EXISTS_OR_ADD } }, { append: { record: { key: a, value: \"2\" } } }",
];

const QUERIES: [&str; 13] = [
    "",
    "?",
    "?a=1",
    "?a",
    "?a=",
    "?b=2&a=1&a=3",
    "?z=1&b=2",
    "?%61=1",
    "?A=1",
    "?a=1&&b=2",
    "?=1",
    "?a=b=c",
    "?a=%zz%2",
];

#[test]
fn evenkeel_and_envoy_edit_queries_alike() {
    let backend = Backend::start(|request| Reply::text(request.target.clone()));
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let filters = [format!("{{ name: edits, typed_config: {{ \"@type\": {FILTER} }} }}")];
    // A value has to be a string.
    let route = |(number, edits): (usize, &&str)| {
        let edits = edits.replace("value: 1 }", "value: \"1\" }");
        format!(
            "{{ match: {{ prefix: /{number}/ }}, route: {{ cluster: c }}, typed_per_filter_config: {{ edits: {{ \"@type\": {FILTER}PerRoute, \
             mutations: {{ query_parameter_mutations: [ {edits} ] }} }} }} }}"
        )
    };
    let routes: Vec<String> = EDITS.iter().enumerate().map(route).collect();
    let clusters = [web::cluster("c", &endpoint(backend.address().port(), ""), "")];
    std::fs::write(&file, web::bootstrap(port, admin, &filters, &routes, &clusters)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
        let mut seen = Vec::new();
        for number in 0..EDITS.len() {
            for query in QUERIES {
                let path = format!("/{number}/{query}");
                let forwarded = client.get("a.test", &path, "x-user: j d\r\n").expect("an answer").text();
                seen.push(format!("{path} → {forwarded}"));
            }
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    assert!(envoy.contains(&"/0/?b=2&a=1&a=3 → /0/?b=2".to_owned()), "{envoy:?}");
    assert_eq!(run(Program::Evenkeel), envoy);
    // Envoy decodes what the client has written, and does not encode it again.
    let mut process = web::start(Program::Evenkeel, &file, admin, port);
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
    let forwarded = client.get("a.test", "/1/?a=%31%20+x", "").expect("an answer").text();
    assert_eq!(forwarded, "/1/?a=%31%20+x&a=new");
    assert!(process.exited().is_none(), "it printed:\n{}", process.output());
}
