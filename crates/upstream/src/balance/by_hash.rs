//! Picks hosts by the request's hash: ring hash and Maglev, which differ in their tables.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::HashKey;

use super::balancer::{Balancer, Pick, Pool};
use super::bounded_load;
use super::table_input::{Algorithm, Share, TableInput};
use super::tables::{Shared, SharedTables};
use crate::host::Host;

/// A balancer over a table.
pub(super) fn new(
    pool: Pool,
    key: HashKey,
    balance_factor: u32,
    algorithm: Algorithm,
    tables: &SharedTables,
) -> Box<dyn Balancer> {
    let members = pool.hosts.iter().zip(&pool.shares).map(|(host, share)| (hash_key(host, key), Share(*share)));
    let table = tables.table(TableInput { algorithm, members: members.collect() });
    match balance_factor {
        0 => Box::new(ByTable { hosts: pool.hosts, table }),
        factor => bounded_load::new(pool.hosts, table, factor),
    }
}

/// A host's hash key: `hash_key` of its `envoy.lb` metadata, else its host name if configured so, else its address.
fn hash_key(host: &Host, key: HashKey) -> Arc<str> {
    match (host.endpoint().hash_key.clone(), key) {
        (Some(given), _) => given,
        (None, HashKey::Hostname) if !host.hostname.is_empty() => host.hostname.clone(),
        (None, HashKey::Hostname | HashKey::Address) => host.label.clone(),
    }
}

/// Picks hosts by hash alone.
#[derive(Debug)]
struct ByTable {
    hosts: Vec<Rc<Host>>,
    table: Shared,
}

impl Balancer for ByTable {
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        self.hosts.get(self.table.get(pick.hash, pick.attempt)?)
    }
}
