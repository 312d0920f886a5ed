//! Compiles a route table of which some virtual hosts have changed. A control plane sends a table completely, but the cost
//! here should depend on the difference. So virtual hosts whose bytes have not changed are reused as compiled.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use evenkeel_xds::Any;
use evenkeel_xds::pb::envoy::config::route::v3 as route;
use prost::{Message, Name};

use super::Cx;
use super::route::{Hosts, Inline, domains, max_direct_response_body_bytes, shared_host, table_of};
use crate::FastMap;
use crate::domains::DomainIndex;
use crate::route::VirtualHost;
use crate::route_table::RouteTable;
use crate::support::{field, is_supported};

/// `RouteConfiguration.name`.
const NAME: u32 = 1;
/// `RouteConfiguration.virtual_hosts`.
const VIRTUAL_HOSTS: u32 = 2;

/// Compiles `resource`, which replaces `before`, from which `table` was compiled. `None`: it has to be compiled whole, because virtual hosts
/// depend on something else that may have changed, or because it is invalid.
pub(crate) fn changed_table(
    cx: &mut Cx<'_>,
    (before, table): (&Any, &RouteTable),
    resource: &Any,
) -> Option<RouteTable> {
    if table.growing.is_some() || before.type_url != resource.type_url {
        return None;
    }
    let (old, new) = (Split::of(&before.value)?, Split::of(&resource.value)?);
    let (old_outline, outline) = (old.outline()?, new.outline()?);
    if old.hosts.len() != table.virtual_hosts.len() || inherited(&old_outline) != inherited(&outline) {
        return None;
    }
    // Which clusters exist may have changed.
    if outline.validate_clusters.is_some_and(|validate| validate.value) {
        return None;
    }
    let known = Known { hosts: &table.virtual_hosts, bytes: &old.hosts, by_bytes: OnceCell::new() };
    let table = table_of(cx, &outline, Inline::No, |cx, inherited| {
        let compile = |(at, bytes): (usize, &&[u8])| match known.unchanged(at, bytes) {
            Some(host) => Some(Arc::clone(host)),
            None => {
                let supported = is_supported(&route::VirtualHost::full_name(), bytes, 1);
                let message = route::VirtualHost::decode(*bytes).ok().filter(|_| supported)?;
                shared_host(cx, &message, inherited)
            }
        };
        let hosts: Option<Vec<_>> = new.hosts.iter().enumerate().map(compile).collect();
        let hosts = hosts?;
        let domains = known.domains(cx, &hosts, &table.domains);
        Some(Hosts { hosts, domains })
    })?;
    cx.problems.is_empty().then_some(table)
}

/// The settings that virtual hosts inherit from their table, besides `validate_clusters`: the limit on direct responses, and
/// mirrors.
fn inherited(table: &route::RouteConfiguration) -> (u32, &[route::route_action::RequestMirrorPolicy]) {
    (max_direct_response_body_bytes(table), &table.request_mirror_policies)
}

/// The name of a table that may be valid.
pub(crate) fn name_of_table(resource: &Any) -> Cow<'_, str> {
    let mut bytes = &*resource.value;
    let mut name: &[u8] = &[];
    while !bytes.is_empty() {
        match field(&mut bytes) {
            // Of several, the last one applies.
            Some((NAME, Some(found))) => name = found,
            Some(_) => {}
            None => break,
        }
    }
    String::from_utf8_lossy(name)
}

/// The fields of a table.
struct Split<'b> {
    /// Each virtual host's message.
    hosts: Vec<&'b [u8]>,
    /// All other fields, with their keys.
    others: Vec<&'b [u8]>,
}

impl<'b> Split<'b> {
    /// `None`: it does not decode.
    fn of(mut bytes: &'b [u8]) -> Option<Self> {
        let mut split = Self { hosts: Vec::new(), others: Vec::new() };
        while !bytes.is_empty() {
            let before = bytes;
            match field(&mut bytes)? {
                (VIRTUAL_HOSTS, Some(host)) => split.hosts.push(host),
                _ => split.others.push(before.get(..before.len() - bytes.len())?),
            }
        }
        Some(split)
    }

    /// The table without its virtual hosts. `None`: it is invalid.
    fn outline(&self) -> Option<route::RouteConfiguration> {
        let bytes = self.others.concat();
        let supported = is_supported(&route::RouteConfiguration::full_name(), &bytes, 0);
        route::RouteConfiguration::decode(&*bytes).ok().filter(|_| supported)
    }
}

/// The virtual hosts of the table before.
struct Known<'k> {
    hosts: &'k [Arc<VirtualHost>],
    bytes: &'k [&'k [u8]],
    /// Built once a virtual host does not stand where it stood.
    by_bytes: OnceCell<FastMap<&'k [u8], usize>>,
}

impl Known<'_> {
    /// Returns the virtual host with these bytes, which is now at position `at`.
    fn unchanged(&self, at: usize, bytes: &[u8]) -> Option<&Arc<VirtualHost>> {
        let at = match self.bytes.get(at) {
            Some(known) if *known == bytes => at,
            _ => {
                let by_bytes = || self.bytes.iter().enumerate().map(|(at, bytes)| (*bytes, at)).collect();
                *self.by_bytes.get_or_init(by_bytes).get(bytes)?
            }
        };
        // A file may have another content by now.
        self.hosts.get(at).filter(|host| !host.reads_files)
    }

    /// The index of these virtual hosts, which is the one before if they answer for the same domains.
    fn domains(&self, cx: &mut Cx<'_>, hosts: &[Arc<VirtualHost>], before: &Arc<DomainIndex>) -> Arc<DomainIndex> {
        let alike = |(old, new): (&Arc<VirtualHost>, &Arc<VirtualHost>)| {
            Arc::ptr_eq(old, new) || (old.name == new.name && old.domains == new.domains)
        };
        if self.hosts.len() == hosts.len() && self.hosts.iter().zip(hosts).all(alike) {
            return Arc::clone(before);
        }
        domains(cx, hosts.iter().map(|host| (&*host.name, host.domains.iter().map(|domain| &**domain))))
    }
}
