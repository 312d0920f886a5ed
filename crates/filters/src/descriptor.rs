//! Descriptors of requests, for limits of rates.

use std::borrow::Cow;
use std::net::IpAddr;

use evenkeel_runtime_config::matching::QueryParameterMatcher;
use evenkeel_runtime_config::rate_limit::{Action, Description, HostDescriptions, Matched};
use evenkeel_runtime_config::route::RouteAction;
use percent_encoding::percent_decode;

use crate::format::HeadLookup;
use crate::http::RequestContext;

/// A key and its value.
pub(crate) type Entry<'a> = (&'a str, Cow<'a, str>);

/// Which descriptions of routes a filter takes.
#[derive(Clone, Copy)]
pub(crate) struct OfRoutes {
    /// The stage that they are for.
    pub(crate) stage: u32,
    /// Whether those of the virtual host count beside those of the route.
    pub(crate) of_host: HostDescriptions,
}

/// The descriptors of a request: by the filter's own descriptions if it has any, otherwise by those of the route and its virtual host with
/// this stage; what the filter says of the virtual host's.
pub(crate) fn describe<'a>(
    own: &'a [Description],
    OfRoutes { stage, of_host }: OfRoutes,
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
            Action::Query { name, key, optional } => match parameter(query(context), name) {
                Some(value) if !value.is_empty() => (&**key, Cow::Owned(String::from_utf8_lossy(&value).into_owned())),
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
                    Matched::Query(parameters) => parameters.iter().all(|one| has(query(context), one)),
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

/// The first value of a query parameter. Names and values are decoded, unlike those that routes match, as in Envoy.
fn parameter<'q>(query: &'q [u8], name: &str) -> Option<Cow<'q, [u8]>> {
    query.split(|byte| *byte == b'&').find_map(|pair| {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let is_meant = percent_decode(parts.next()?).eq(name.bytes());
        is_meant.then(|| percent_decode(parts.next().unwrap_or_default()).into())
    })
}

/// Whether there is such a parameter.
fn has(query: &[u8], wanted: &QueryParameterMatcher) -> bool {
    let value = parameter(query, &wanted.name);
    value.is_some_and(|value| wanted.value.as_ref().is_none_or(|matcher| matcher.matches(&value)))
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
    use evenkeel_runtime_config::string_match::StringMatcher;

    use super::*;

    #[test]
    fn names_and_values_of_parameters_are_decoded() {
        for (query, name, expected) in [
            ("a=1&a=2", "a", Some("1")),
            ("%61=1", "a", Some("1")),
            ("%61=1&a=2", "a", Some("1")),
            ("a=x%26y%3dz", "a", Some("x&y=z")),
            ("a=b=c", "a", Some("b=c")),
            ("a%3Db=c", "a=b", Some("c")),
            ("a+b=c+d", "a+b", Some("c+d")),
            ("a=%4", "a", Some("%4")),
            ("a=%zz", "a", Some("%zz")),
            ("%2561=1", "a", None),
            ("b&a", "a", Some("")),
            ("", "a", None),
        ] {
            assert_eq!(parameter(query.as_bytes(), name).as_deref(), expected.map(str::as_bytes), "{query}");
            let wanted = |value| QueryParameterMatcher { name: name.into(), value };
            let exact = |value: &str| StringMatcher::Exact { value: value.as_bytes().into(), ignore_case: false };
            assert_eq!(has(query.as_bytes(), &wanted(None)), expected.is_some(), "{query}");
            assert_eq!(has(query.as_bytes(), &wanted(expected.map(exact))), expected.is_some(), "{query}");
            assert!(!has(query.as_bytes(), &wanted(Some(exact("another")))), "{query}");
        }
    }

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
