//! `RouteConfiguration`, compiled.

use std::sync::Arc;

use crate::domains::DomainIndex;
use crate::growing::Growing;
use crate::header_edits::HeaderEdits;
use crate::route::VirtualHost;
use crate::route_filters::FilterOverrides;

/// A route configuration.
#[derive(Debug, Clone)]
pub struct RouteTable {
    /// Name (`route_config_name`).
    pub name: Arc<str>,
    /// All virtual hosts, in order of definition.
    pub virtual_hosts: Vec<Arc<VirtualHost>>,
    /// Index of virtual hosts by domain.
    pub domains: Arc<DomainIndex>,
    /// Match `Host: name:port` as `name`.
    pub ignore_port_in_host_matching: bool,
    /// Header edits for every route.
    pub headers: Arc<HeaderEdits>,
    /// Per-route filter configuration (`typed_per_filter_config`), which applies where neither virtual host nor route has any.
    pub filters: FilterOverrides,
    /// Virtual hosts received one by one (`vhds`): all of them, including those above.
    pub growing: Option<Growing>,
    /// Header edits are applied from the table to the route (`most_specific_header_mutations_wins`) instead of route first.
    pub most_specific_wins: bool,
}

impl RouteTable {
    /// The clusters its routes may pick or mirror to; may contain duplicates.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.virtual_hosts.iter().flat_map(|host| host.clusters())
    }
}
