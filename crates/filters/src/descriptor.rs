//! Descriptors of requests, for limits of rates.

use std::borrow::Cow;
use std::net::IpAddr;

use evenkeel_runtime_config::matching::query_parameter;
use evenkeel_runtime_config::rate_limit::{Action, Description, HostDescriptions, Matched};
use evenkeel_runtime_config::route::RouteAction;

use crate::format::HeadLookup;
use crate::http::RequestContext;

/// A key and its value.
pub(crate) type Entry<'a> = (&'a str, Cow<'a, str>);

/// The descriptors of a request: by the filter's own descriptions if it has any, otherwise by those of the route and its virtual host with
/// this stage; what the filter says of the virtual host's.
pub(crate) fn describe<'a>(
    own: &'a [Description],
    (stage, of_host): (u32, HostDescriptions),
    context: &'a RequestContext<'_>,
) -> Vec<Vec<Entry<'a>>> {
    if !own.is_empty() {
        return own.iter().filter_map(|one| entries(&one.actions, context)).collect();
    }
    let of_route = context.route.route.and_then(|route| match &route.action {
        RouteAction::Forward(action) => action.rate_limits.as_deref(),
        _ => None,
    });
    let Some(limits) = of_route else { return Vec::new() };
    let host_too = limits.includes_host
        || match of_host {
            HostDescriptions::Include => true,
            HostDescriptions::Override => limits.own.is_empty(),
            HostDescriptions::Ignore => false,
        };
    let of_host = if host_too { &*limits.of_host } else { &[] };
    let all = limits.own.iter().chain(of_host).filter(|one| one.stage == stage);
    all.filter_map(|one| entries(&one.actions, context)).collect()
}

/// The entries that actions make of a request; `None`: one of them makes none.
fn entries<'a>(actions: &'a [Action], context: &'a RequestContext<'_>) -> Option<Vec<Entry<'a>>> {
    let view = context.view();
    let mut entries = Vec::with_capacity(actions.len());
    for action in actions {
        entries.push(match action {
            Action::Generic(key, value) => (&**key, Cow::Borrowed(&**value)),
            Action::Header { name, key, optional } => match view.joined(name) {
                Some(value) if !value.is_empty() => (&**key, Cow::Owned(String::from_utf8_lossy(&value).into_owned())),
                _ if *optional => continue,
                _ => return None,
            },
            Action::Query { name, key, optional } => match query_parameter(query(context), name.as_bytes()) {
                Some(value) if !value.is_empty() => (&**key, String::from_utf8_lossy(value)),
                _ if *optional => continue,
                _ => return None,
            },
            Action::Client => ("remote_address", Cow::Owned(context.remote.to_canonical().to_string())),
            Action::ClientNetwork(v4, v6) => {
                ("masked_remote_address", Cow::Owned(network(context.remote.to_canonical(), *v4, *v6)))
            }
            Action::Cluster => ("destination_cluster", Cow::Borrowed(&**context.route.cluster?)),
            Action::Match { key, value, expected, matched } => {
                let matches = match matched {
                    Matched::Headers(headers) => headers.iter().all(|header| view.matches(header)),
                    Matched::Query(parameters) => parameters.iter().all(|one| one.matches(query(context))),
                };
                if matches != *expected {
                    return None;
                }
                (&**key, Cow::Borrowed(&**value))
            }
        });
    }
    // Only optional entries, and none is there: that describes nothing.
    (!entries.is_empty()).then_some(entries)
}

/// The path's part after the question mark.
fn query<'a>(context: &'a RequestContext<'_>) -> &'a [u8] {
    let path = context.head.path();
    path.iter().position(|byte| *byte == b'?').and_then(|at| path.get(at + 1..)).unwrap_or_default()
}

/// An address's network, as `10.1.0.0/16`.
fn network(address: IpAddr, v4: u8, v6: u8) -> String {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0);
            format!("{}/{v4}", std::net::Ipv4Addr::from(u32::from(address) & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
            format!("{}/{v6}", std::net::Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn a_network_keeps_the_first_bits() {
        for (address, v4, v6, expected) in [
            ("10.1.2.3", 32, 128, "10.1.2.3/32"),
            ("10.1.2.3", 20, 64, "10.1.0.0/20"),
            ("10.1.2.3", 0, 64, "0.0.0.0/0"),
            ("2001:db8::1:2", 20, 64, "2001:db8::/64"),
            ("2001:db8::1:2", 20, 128, "2001:db8::1:2/128"),
            ("2001:db8::1:2", 20, 0, "::/0"),
        ] {
            assert_eq!(network(address.parse().unwrap(), v4, v6), expected, "{address}");
        }
    }
}
