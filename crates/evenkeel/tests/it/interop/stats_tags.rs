//! Tags of the bootstrap (`stats_tags`): Evenkeel's statistics have the same names and labels as Envoy's.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

/// A cluster whose name has tags as Istio's filters write them.
const TAGGED: &str = "version=.=v1;.;zone=.=a;.;b";

#[test]
fn evenkeel_and_envoy_give_statistics_the_same_labels() {
    let backend = Backend::start(|_| Reply::text("backend"));
    let istio = |tag: &str| format!("{{ tag_name: {tag}, regex: '({tag}=\\.=(.*?);\\.;)' }}");
    // A series that has to be there shows that the table compares something.
    for (config, expected) in [
        (
            format!("use_all_default_tags: false, stats_tags: [{}, {}]", istio("version"), istio("zone")),
            "envoy_cluster_b_upstream_rq_total version=v1 zone=a",
        ),
        (
            format!("use_all_default_tags: false, stats_tags: [{}]", istio("version")),
            "envoy_cluster_zone___a___b_upstream_rq_total version=v1",
        ),
        ("stats_tags: [{ tag_name: mesh, fixed_value: 'a \"b\"' }]".to_owned(), "envoy_server_live mesh=a \\\"b\\\""),
        (
            "use_all_default_tags: false, stats_tags: [{ tag_name: envoy.cluster_name }]".to_owned(),
            "envoy_cluster_upstream_rq_200 envoy_cluster_name=a",
        ),
        (
            // Istio's own expressions, under its names.
            "use_all_default_tags: false, stats_tags: [{ tag_name: cluster_name, regex: '^cluster\\.((.+?)\\.)' }, \
             { tag_name: response_code, regex: '_rq(_(\\d{3}))$' }, \
             { tag_name: http_conn_manager_prefix, regex: '^http\\.(((?:[_.[:digit:]]*|[_\\[\\]aAbBcCdDeEfF[:digit:]]*))\\.)' }]"
                .to_owned(),
            "envoy_cluster_upstream_rq cluster_name=a response_code=200",
        ),
        (
            // Two tags of one name: the first that is found counts, and only its part is taken out.
            "stats_tags: [{ tag_name: envoy.cluster_name, regex: '(\\.([ab])\\.)' }, { tag_name: part, regex: '(upstream)' }]"
                .to_owned(),
            "envoy_cluster_rq_total envoy_cluster_name=a part=upstream",
        ),
        (
            "stats_tags: [{ tag_name: part.of, regex: '(upstream|downstream)_(rq)' }]".to_owned(),
            "envoy_cluster__rq_total envoy_cluster_name=a part_of=rq",
        ),
    ] {
        let pages = [Program::Envoy, Program::Evenkeel].map(|program| shown(program, &config, &backend));
        let difference = first_difference(&pages[0], &pages[1]);
        assert!(difference.is_none(), "{config}: - Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
        assert!(pages[0].contains(&format!("{expected}\n")), "{config}: {expected} not in\n{}", pages[0]);
    }
}

/// The series that both programs have, without their values: name and sorted labels.
fn shown(program: Program, config: &str, backend: &Backend) -> String {
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let routes = [
        format!("{{ match: {{ path: /b }}, route: {{ cluster: \"{TAGGED}\" }} }}"),
        "{ match: { prefix: / }, route: { cluster: a } }".to_owned(),
    ];
    // Envoy's own tag takes a cluster's name up to the first dot only, Evenkeel's all of it.
    let names = if config.contains(r"=\.=") { ["a", TAGGED] } else { ["a", "b"] };
    let routes = routes.map(|route| if names[1] == "b" { route.replace(TAGGED, "b") } else { route });
    let clusters = names.map(|name| cluster(&format!("\"{name}\""), &endpoint(backend.address().port(), ""), ""));
    let bootstrap = web::bootstrap(port, admin, &[], &routes, &clusters);
    std::fs::write(&file, format!("{bootstrap}\nstats_config: {{ {config} }}\n")).expect("a writable folder");
    let mut process = web::start(program, &file, admin, port);
    for path in ["/", "/b"] {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut client = Connection::open(address).expect("the listener accepts");
        assert_eq!(client.get("x.test", path, "").expect("an answer").status, 200);
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let page = Connection::open(address).and_then(|mut client| client.get("admin", "/stats/prometheus", ""));
    let page = page.expect("an answer");
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    let lines = page.text().lines().filter(|line| !line.starts_with('#')).filter_map(series).collect::<BTreeSet<_>>();
    lines.into_iter().collect()
}

/// A series that both programs have, as a line; `None` for others.
fn series(line: &str) -> Option<String> {
    const COMMON: [&str; 5] = ["_rq_total", "_rq_completed", "_rq_200", "upstream_rq", "server_live"];
    const NOT: [&str; 4] = ["external", "internal", "_retry", "canary"];
    let (series, _value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let is_common = COMMON.iter().any(|common| name.ends_with(common));
    let is_scene = name.starts_with("envoy_cluster") && !name.contains("manager") || name == "envoy_server_live";
    if !is_common || !is_scene || NOT.iter().any(|part| series.contains(part)) {
        return None;
    }
    let labels = labels.strip_suffix('}')?;
    let mut labels: Vec<String> =
        labels.split("\",").map(|label| label.strip_suffix('"').unwrap_or(label).replacen("=\"", "=", 1)).collect();
    labels.sort();
    Some(format!("{name} {}\n", labels.join(" ").trim()))
}
