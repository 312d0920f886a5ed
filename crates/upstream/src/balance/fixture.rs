//! Fixtures shared by the load balancers' tests.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::Cluster;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{Endpoint, EndpointSet, LoadBalancer, Transport};

use super::balancer::{Balancer, Pick};
use crate::host::Host;
use crate::random::Random;
use crate::shared::SharedCluster;

/// A host at 10.0.0.1, identified by its port.
pub fn host_with(port: u16, edit: impl FnOnce(&mut Endpoint)) -> Rc<Host> {
    host_of(&SharedCluster::default(), port, edit)
}

/// Hosts of one cluster on ports 1, 2, ….
pub fn hosts(weights: &[u32]) -> Vec<Rc<Host>> {
    let cluster = SharedCluster::default();
    (1..).zip(weights).map(|(port, weight)| host_of(&cluster, port, |endpoint| endpoint.weight = *weight)).collect()
}

fn host_of(cluster: &SharedCluster, port: u16, edit: impl FnOnce(&mut Endpoint)) -> Rc<Host> {
    let mut endpoint = Endpoint::at(EndpointAddress::Socket(SocketAddr::from(([10, 0, 0, 1], port))));
    edit(&mut endpoint);
    let shared = cluster.host(&endpoint.address);
    Host::watched(&Arc::new(endpoint), Transport::Raw, shared)
}

/// A cluster of these hosts.
pub fn cluster(hosts: &[Rc<Host>]) -> Cluster {
    let mut cluster = Cluster::named("c", LoadBalancer::RoundRobin { slow_start: None });
    let hosts = hosts.iter().map(|host| host.endpoint().clone()).collect();
    cluster.endpoints = Arc::new(EndpointSet { hosts, ..EndpointSet::default() });
    cluster
}

/// How often each of the hosts on ports `1..=count` is picked.
pub fn spread(balancer: &dyn Balancer, count: usize, picks: usize, random: &Random) -> Vec<usize> {
    let mut counts = vec![0; count];
    for _ in 0..picks {
        let pick = Pick { hash: random.next(), attempt: 0, random };
        if let Some(address) = balancer.pick(&pick).and_then(|host| host.socket_addr()) {
            counts[usize::from(address.port()) - 1] += 1;
        }
    }
    counts
}
