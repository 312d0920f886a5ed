//! The sides that make requests: each brings up what it needs, makes the requests of a row, and waits for their end.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_filters::callouts::{CallOptions, Callouts, HttpCall};
use evenkeel_http::RequestHead;
use evenkeel_proxy::callouts::WorkerCallouts;
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_stats::Registry;
use evenkeel_testkit::{Backend, Connection, Reply, eventually};
use evenkeel_upstream::{HealthManager, SharedClusters, Upstreams};
use tokio::time::{sleep, timeout};

use super::row::Side::{self, Callout, Client, Mirror, Tunnel};
use super::row::{Retry, Row};
use super::server::{BODY, Host, Server};
use crate::callouts::{LIMIT, LOOK, config, run};
use crate::harness::{Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// Makes the requests of a row, and returns how many the server has seen, and all statistics.
pub fn observe(row: &Row, side: Side) -> (usize, String) {
    let server = Server::start(row.host);
    let cluster = cluster_of(server.address, row, side);
    let text = match side {
        Callout => of_callout(row, &cluster),
        Client | Mirror => of_client(row, side, &cluster),
        Tunnel => of_tunnel(row, &cluster),
    };
    (server.requests.load(Ordering::SeqCst), text)
}

/// The cluster of the server.
fn cluster_of(server: SocketAddr, row: &Row, side: Side) -> String {
    let http2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
    let detection = "outlier_detection: {consecutive_5xx: 1, enforcing_consecutive_5xx: 0}";
    let spoken = if row.host.speaks_http2() { format!("{http2}, ") } else { String::new() };
    let cluster = static_cluster("backend", server, &format!("{spoken}{detection}, {}", row.cluster));
    let cluster = match (row.timeout, side) {
        // The response to CONNECT may take as long as connecting.
        (Some(millis), Tunnel) => {
            cluster.replace("connect_timeout: 5s", &format!("connect_timeout: {}", seconds(millis)))
        }
        _ => cluster,
    };
    match row.host {
        Host::Gone => {
            format!("{{name: backend, type: STATIC, load_assignment: {{cluster_name: backend}}, {detection}}}")
        }
        _ => cluster,
    }
}

/// The request is over.
fn is_over(text: &str, row: &Row, side: Side) -> bool {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cluster.backend.{name}: ")));
        line.map_or(0, |value| value.parse::<usize>().expect("a number"))
    };
    value("upstream_rq_active") == 0 && (side == Tunnel || value("upstream_rq_completed") >= row.requests)
}

fn statistics(proxy: &Proxy, row: &Row, side: Side) -> String {
    eventually("the end of the request", || Some(proxy.get("/stats").text()).filter(|text| is_over(text, row, side)))
}

fn of_client(row: &Row, side: Side, cluster: &str) -> String {
    let main = Backend::start(|_| Reply::text("main"));
    let clusters = [static_cluster("main", main.address(), ""), cluster.to_owned()];
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", &routes(row, side), ""), &clusters), 1);
    proxy.wait_live();
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    for number in 0..row.requests {
        let length = if row.under_way { 2 * BODY.len() } else { BODY.len() };
        let head = format!("{} / HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{BODY}", row.method);
        client.send(head).expect("it reads");
        if !(row.under_way && side == Mirror) {
            // It may be cut off.
            _ = client.response();
        }
        eventually("the end of the request", || {
            let completed = stat(&proxy, "cluster.backend.upstream_rq_completed");
            (completed == [number as u64 + 1] && stat(&proxy, "cluster.backend.upstream_rq_active") == [0])
                .then_some(())
        });
    }
    statistics(&proxy, row, side)
}

fn routes(row: &Row, side: Side) -> String {
    let to = match side {
        Mirror => "cluster: main, request_mirror_policies: [{cluster: backend}]",
        _ => "cluster: backend",
    };
    let policy = row.retry.filter(|_| side == Client).map_or_else(String::new, |retry| {
        let Retry { on, times, per_try, idle, back_off } = retry;
        let limit = |name, limit: Option<u64>| {
            limit.map_or_else(String::new, |millis| format!(", {name}: {}", seconds(millis)))
        };
        format!(
            ", retry_policy: {{retry_on: \"{on}\", num_retries: {times}{}{}, retry_back_off: {{base_interval: {2}, \
             max_interval: {2}}}}}",
            limit("per_try_timeout", per_try),
            limit("per_try_idle_timeout", idle),
            seconds(back_off),
        )
    });
    let limit = format!(", timeout: {}", seconds(row.timeout.unwrap_or_default()));
    format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: \
         {{{to}{policy}{limit}}}}}]}}]}}"
    )
}

fn of_tunnel(row: &Row, cluster: &str) -> String {
    let attempts = row.retry.map_or(1, |retry| retry.times + 1);
    let listener = format!(
        r#"
name: tcp
address: {{socket_address: {{address: 127.0.2.9, port_value: 0}}}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: backend
      max_connect_attempts: {attempts}
      tunneling_config: {{hostname: "far.test:443"}}
"#
    );
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[cluster.to_owned()]), 1);
    proxy.wait_live();
    for _ in 0..row.requests {
        let mut client = Connection::open(proxy.listener("tcp")).expect("it accepts");
        // Its first byte, or its end.
        _ = client.read_exact(1);
    }
    statistics(&proxy, row, Tunnel)
}

fn policy(retry: Retry) -> RetryPolicy {
    let longest = Duration::from_millis(retry.back_off);
    let mut policy = RetryPolicy {
        num_retries: retry.times,
        per_try_timeout: retry.per_try.map(Duration::from_millis),
        per_try_idle_timeout: retry.idle.map(Duration::from_millis),
        base_interval: longest,
        max_interval: longest,
        ..RetryPolicy::default()
    };
    policy.on.add(retry.on).expect("conditions");
    policy
}

fn of_callout(row: &Row, cluster: &str) -> String {
    let (registry, mut text) = (Registry::new(), String::new());
    run(async {
        let (shared, config) = (Arc::<SharedClusters>::default(), config(&[cluster.to_owned()]));
        let mut health = HealthManager::new(Arc::clone(&shared), Arc::clone(&registry));
        health.update(&config, &Config::default());
        let upstreams = Rc::new(Upstreams::new(shared, Arc::clone(&registry), true));
        upstreams.apply(&config, &Config::default());
        let callouts = WorkerCallouts::new(upstreams);
        let retry = row.retry.map(|retry| Arc::new(policy(retry)));
        let options = CallOptions { retry, timeout: row.timeout.map(Duration::from_millis), ..CallOptions::default() };
        for _ in 0..row.requests {
            let mut head = RequestHead::default();
            head.set_method(row.method.as_bytes());
            head.set_path(b"/");
            let (cluster, options) = (Arc::<str>::from("backend"), options.clone());
            let over = async {
                if row.under_way {
                    let mut stream = callouts.stream(&cluster, head, options);
                    stream.send(BODY.as_bytes());
                    _ = poll_fn(|cx| stream.poll_head(cx)).await;
                } else {
                    _ = callouts.http(HttpCall { cluster, head, body: BODY.into(), options }).await;
                }
                while callouts.active() > 0 {
                    sleep(LOOK).await;
                }
            };
            timeout(LIMIT, over).await.expect("in time");
        }
        text = registry.text();
    });
    text
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}s", millis / 1000, millis % 1000)
}
