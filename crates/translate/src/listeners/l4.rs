//! Routes of connections as filter chains: the conditions that the proxy tests are filter chain matches; the others
//! (gateways, ports, and labels of the client) hold or not when the chains are generated.

use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{Destination, L4Match, RouteSet, WeightedDestination};

use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch};
use crate::pb::core::CidrRange;
use crate::proto::u32_value;
use crate::routes::action::{RouteContext, cluster_of, port_of};
use crate::traffic::InnerProtocol;
use crate::{http, stat_names};

/// A condition, and where connections go that it holds for.
pub type Target<'a> = (FilterChainMatch, &'a [WeightedDestination]);

/// The TLS routes of route sets, of those with the same condition the first.
pub fn tls<'a>(
    route_sets: impl IntoIterator<Item = &'a RouteSet>,
    applies: impl Fn(&L4Match) -> bool,
) -> Vec<Target<'a>> {
    let routes = route_sets.into_iter().flat_map(|route_set| &route_set.tls);
    let conditions = routes.flat_map(|route| route.matches.iter().map(|of| (of, &*route.destinations)));
    let held = conditions.filter(|((_, condition), _)| applies(condition));
    held.map(|((names, condition), to)| {
        (FilterChainMatch { server_names: server_names(names), ..ranges(condition) }, to)
    })
    .collect()
}

/// The server names of a condition. None stand for all: Envoy has no `*`, and as in Istio connections without a server name
/// go there, too.
fn server_names(names: &[Hostname]) -> Vec<String> {
    if names.iter().any(|name| name.as_str() == "*") {
        Vec::new()
    } else {
        names.iter().map(ToString::to_string).collect()
    }
}

/// The TCP routes of route sets, up to the first for all connections (`FilterChainMatch::default()`).
pub fn tcp<'a>(
    route_sets: impl IntoIterator<Item = &'a RouteSet>,
    applies: impl Fn(&L4Match) -> bool,
) -> Vec<Target<'a>> {
    let mut targets: Vec<Target<'a>> = Vec::new();
    for route in route_sets.into_iter().flat_map(|route_set| &route_set.tcp) {
        let wanted: Vec<FilterChainMatch> = match route.matches.as_slice() {
            [] => vec![FilterChainMatch::default()],
            matches => matches.iter().filter(|m| applies(m)).map(ranges).collect(),
        };
        for wanted in wanted {
            let is_last = wanted == FilterChainMatch::default();
            targets.push((wanted, &route.destinations));
            if is_last {
                return targets;
            }
        }
    }
    targets
}

fn ranges(condition: &L4Match) -> FilterChainMatch {
    FilterChainMatch {
        prefix_ranges: condition.destination_subnets.iter().map(cidr_range).collect(),
        source_prefix_ranges: condition.source_subnet.iter().map(cidr_range).collect(),
        ..Default::default()
    }
}

/// A range of addresses.
pub fn cidr_range(net: &IpNet) -> CidrRange {
    CidrRange { address_prefix: net.network().to_string(), prefix_len: Some(u32_value(u32::from(net.prefix_len()))) }
}

/// A TCP proxy to destinations.
pub fn to_destinations(route_context: RouteContext<'_>, destinations: &[WeightedDestination]) -> Filter {
    let context = route_context.context;
    let shares: Vec<(String, u32)> = destinations
        .iter()
        .map(|d| (cluster_of(route_context, &d.destination, InnerProtocol::Tcp), d.weight))
        .collect();
    // The first destination with a hash decides, because connections can only be hashed by address.
    let policy = destinations.iter().find_map(|d| route_context.policy(&d.destination));
    match shares.as_slice() {
        [(only, _)] => {
            let stat = destinations.first().map(|d| stat_of(route_context, &d.destination)).unwrap_or_default();
            http::tcp_by(context, only, &stat, policy.as_ref())
        }
        all => {
            let stat = all.first().map_or("", |(name, _)| name.as_str()).to_owned();
            let weighted: Vec<_> = all.iter().filter(|(_, weight)| *weight > 0).cloned().collect();
            http::tcp_weighted(context, &stat, &weighted, policy.as_ref())
        }
    }
}

/// The prefix of the statistics of connections to one destination; empty: that of its cluster.
fn stat_of(route_context: RouteContext<'_>, to: &Destination) -> String {
    let context = route_context.context;
    let Some(service) = context.destination(&to.host) else { return String::new() };
    let number = port_of(route_context, to, Some(service));
    let Some(port) = context.port(service, number) else { return String::new() };
    stat_names::outbound(context, service, &port, to.subset.as_deref().unwrap_or_default())
}

/// Adds a chain without what earlier chains match. Envoy refuses a listener in which two chains match the same name and
/// range, so the first one keeps it, and a chain with nothing left is dropped.
pub fn push_distinct(chains: &mut Vec<FilterChain>, new: FilterChain) {
    let Some(wanted) = new.filter_chain_match.clone() else {
        if chains.iter().all(|chain| chain.filter_chain_match.is_some()) {
            chains.push(new);
        }
        return;
    };
    for (server_names, prefix_ranges) in remaining(chains, &wanted) {
        let wanted = FilterChainMatch { server_names, prefix_ranges, ..wanted.clone() };
        chains.push(FilterChain { filter_chain_match: Some(wanted), ..new.clone() });
    }
}

/// Names with the ranges that no chain matches for them yet. No name or range at all is a name or range of its own.
fn remaining(chains: &[FilterChain], wanted: &FilterChainMatch) -> Vec<(Vec<String>, Vec<CidrRange>)> {
    let rest = |of: &FilterChainMatch| FilterChainMatch { server_names: vec![], prefix_ranges: vec![], ..of.clone() };
    let others = chains.iter().filter_map(|chain| chain.filter_chain_match.as_ref());
    let others: Vec<_> = others.filter(|other| rest(other) == rest(wanted)).collect();
    let has = |other: &FilterChainMatch, name: Option<&String>, range: Option<&CidrRange>| {
        name.map_or(other.server_names.is_empty(), |name| other.server_names.contains(name))
            && range.map_or(other.prefix_ranges.is_empty(), |range| other.prefix_ranges.contains(range))
    };
    let is_free =
        |name: Option<&String>, range: Option<&CidrRange>| !others.iter().any(|other| has(other, name, range));
    let left = |name: Option<&String>| -> Option<Vec<CidrRange>> {
        let free: Vec<_> = wanted.prefix_ranges.iter().filter(|range| is_free(name, Some(range))).cloned().collect();
        let is_left = if wanted.prefix_ranges.is_empty() { is_free(name, None) } else { !free.is_empty() };
        is_left.then_some(free)
    };
    let mut all: Vec<(Vec<String>, Vec<CidrRange>)> = Vec::new();
    if wanted.server_names.is_empty() {
        all.extend(left(None).map(|ranges| (Vec::new(), ranges)));
    }
    for name in &wanted.server_names {
        let Some(ranges) = left(Some(name)) else { continue };
        match all.iter_mut().find(|(_, others)| *others == ranges) {
            Some((names, _)) if !names.contains(name) => names.push(name.clone()),
            Some(_) => {}
            None => all.push((vec![name.clone()], ranges)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chain_keeps_what_several_match() {
        let range = |text: &str| CidrRange { address_prefix: text.to_owned(), ..Default::default() };
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let check = |given: &[(&str, &str)], expected: &[(&str, &str)]| {
            let mut chains = Vec::new();
            for (names, ranges) in given {
                let wanted = FilterChainMatch {
                    server_names: list(names),
                    prefix_ranges: list(ranges).iter().map(|text| range(text)).collect(),
                    ..Default::default()
                };
                let chain = FilterChain { filter_chain_match: Some(wanted), ..Default::default() };
                push_distinct(&mut chains, chain);
            }
            let got = chains.iter().filter_map(|chain| chain.filter_chain_match.as_ref()).map(|m| {
                let ranges: Vec<_> = m.prefix_ranges.iter().map(|range| &*range.address_prefix).collect();
                (m.server_names.join(" "), ranges.join(" "))
            });
            let expected = expected.iter().map(|(names, ranges)| ((*names).to_owned(), (*ranges).to_owned()));
            assert_eq!(got.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{given:?}");
        };
        check(&[("a b", ""), ("b c", ""), ("a", "")], &[("a b", ""), ("c", "")]);
        check(&[("a", "10."), ("a", "11."), ("a", "")], &[("a", "10."), ("a", "11."), ("a", "")]);
        check(&[("a", "10."), ("a b", "10. 11.")], &[("a", "10."), ("a", "11."), ("b", "10. 11.")]);
        check(&[("", "10."), ("", "10. 11."), ("", "11.")], &[("", "10."), ("", "11.")]);
        check(&[("a a", "")], &[("a", "")]);
    }
}
