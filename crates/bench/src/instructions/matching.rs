//! The route of a request in tables of few and many virtual hosts: both must cost the same.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::route::v3 as messages;
use evenkeel_xds::pb::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_xds::{Any, ResourceType};
use prost::Message;

use super::Counts;
use crate::control_plane::{cluster_name, resources};

/// Requests that are counted.
pub const ITERATIONS: u64 = 500;
const FEW: usize = 10;
const MANY: usize = 10_000;
const ROUTES: usize = 10;
/// Requests go to every such virtual host.
const STEP: usize = 5;
/// Names of the functions below in the record: few virtual hosts.
pub const OF_FEW: &str = "route: the last of 10 of one of 10 virtual hosts";
/// Many virtual hosts.
pub const OF_MANY: &str = "route: the last of 10 of one of 10000 virtual hosts";
/// Growth from few to many that is allowed.
const GROWTH: f64 = 1.2;

/// Returns complaints about how the counts grow with the number of virtual hosts.
pub fn complaints(counts: &Counts) -> Vec<String> {
    let (Some(&few), Some(&many)) = (counts.get(OF_FEW), counts.get(OF_MANY)) else { return Vec::new() };
    let grows = many as f64 > few as f64 * GROWTH;
    grows.then(|| format!("{OF_MANY}: {many}, more than {GROWTH} times the {few} of {OF_FEW}")).into_iter().collect()
}

/// Tables of few and many.
pub struct Tables {
    few: Arc<RouteTable>,
    many: Arc<RouteTable>,
}

impl Tables {
    /// Compiles them.
    pub fn new() -> Result<Self> {
        Ok(Self { few: table(FEW)?, many: table(MANY)? })
    }
}

/// Matches all requests; what callgrind looks at.
pub fn run(Tables { few, many }: &Tables) -> Result<()> {
    let last = format!("/part-{}/items/42", ROUTES - 1);
    for number in 0..usize::try_from(ITERATIONS)? {
        // The names have equally many digits.
        let request = |hosts: usize| PlainRequest::new("GET", &host(number * STEP % hosts), &last);
        ensure!(of_few(few, black_box(&request(FEW))), "no route among few");
        ensure!(of_many(many, black_box(&request(MANY))), "no route among many");
    }
    Ok(())
}

#[inline(never)]
fn of_few(table: &RouteTable, request: &PlainRequest) -> bool {
    is_last(table, request)
}

#[inline(never)]
fn of_many(table: &RouteTable, request: &PlainRequest) -> bool {
    is_last(table, request)
}

#[inline(always)]
fn is_last(table: &RouteTable, request: &PlainRequest) -> bool {
    matches!(table.select(request, 7), RouteSelection::Route(_, route) if &*route.name == "last")
}

fn host(number: usize) -> String {
    format!("service-{number:05}.shop.svc.cluster.local")
}

/// A route table, compiled as the proxy does.
fn table(hosts: usize) -> Result<Arc<RouteTable>> {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let set = resources(1, nowhere, nowhere)?;
    for resource in set.of(ResourceType::Listener).values() {
        builder.set_listener(&resource.any())?;
    }
    let message = messages::RouteConfiguration {
        name: "main".to_owned(),
        virtual_hosts: (0..hosts).map(virtual_host).collect(),
        ..messages::RouteConfiguration::default()
    };
    builder.set_route(&Any { type_url: ResourceType::Route.type_url().to_owned(), value: message.encode_to_vec() })?;
    let config = builder.build();
    let table = config.routes.get("main").context("the table is built")?;
    ensure!(table.virtual_hosts.len() == hosts, "all virtual hosts are there");
    Ok(Arc::clone(table))
}

fn virtual_host(number: usize) -> messages::VirtualHost {
    let route = |part: usize| messages::Route {
        name: if part == ROUTES - 1 { "last".to_owned() } else { format!("part-{part}") },
        r#match: Some(messages::RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix(format!("/part-{part}/"))),
            ..messages::RouteMatch::default()
        }),
        action: Some(messages::route::Action::Route(messages::RouteAction {
            cluster_specifier: Some(messages::route_action::ClusterSpecifier::Cluster(cluster_name(0))),
            ..messages::RouteAction::default()
        })),
        ..messages::Route::default()
    };
    messages::VirtualHost {
        name: host(number),
        domains: vec![host(number), format!("{}:*", host(number))],
        // Hosts without requests have one route, so that the table is built quickly.
        routes: (0..if number.is_multiple_of(STEP) { ROUTES } else { 1 }).map(route).collect(),
        ..messages::VirtualHost::default()
    }
}
