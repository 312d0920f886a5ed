//! The listener filters, which inspect a connection before a filter chain is chosen.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pb::config::listener::listener_filter::ConfigType;
use crate::pb::config::listener::listener_filter_chain_match_predicate::{MatchSet, Rule};
use crate::pb::config::listener::{Listener, ListenerFilter, ListenerFilterChainMatchPredicate};
use crate::pb::envoy_type::Int32Range;
use crate::pb::google::protobuf::Any;
use crate::pb::http_inspector::HttpInspector;
use crate::pb::original_dst::OriginalDst;
use crate::pb::original_src::OriginalSrc;
use crate::pb::proxy_protocol::ProxyProtocol;
use crate::pb::tls_inspector::TlsInspector;
use crate::proto::{any, duration};

/// Whether a filter is needed, by destination port; 0 stands for all ports that are not named.
pub type Ports = BTreeMap<u16, bool>;

/// The listener filters of a listener.
#[derive(Debug, Clone, Default)]
pub struct Inspectors {
    /// The client's address, from a load balancer in front of this proxy.
    pub proxy_protocol: bool,
    /// The destination before the redirect.
    pub original_dst: bool,
    /// Upstream connections have the client's address.
    pub original_src: bool,
    /// Whether TLS follows, for which name and with which ALPN.
    pub tls: Inspected,
    /// Whether plaintext is HTTP.
    pub http: Inspected,
}

/// The mark of connections with the client's address, as in Istio: capture rules let them pass, and bring the answers back.
const ORIGINAL_SRC_MARK: u32 = 1337;

/// Where a filter inspects.
#[derive(Debug, Clone, Default)]
pub enum Inspected {
    /// Nowhere.
    #[default]
    Nowhere,
    /// On all ports.
    Everywhere,
    /// On these ports.
    On(Vec<u16>),
    /// On all ports but these.
    Except(Vec<u16>),
}

impl From<bool> for Inspected {
    fn from(is_needed: bool) -> Self {
        if is_needed { Self::Everywhere } else { Self::Nowhere }
    }
}

impl Inspected {
    /// The ports where a filter is needed.
    pub fn of(ports: Ports) -> Self {
        let by_default = ports.get(&0).copied().unwrap_or_default();
        let others = || ports.iter().filter(|(port, needed)| **port != 0 && **needed != by_default);
        let others: Vec<u16> = others().map(|(port, _)| *port).collect();
        match (by_default, others.is_empty()) {
            (false, true) => Self::Nowhere,
            (true, true) => Self::Everywhere,
            (false, false) => Self::On(others),
            (true, false) => Self::Except(others),
        }
    }

    /// Whether it inspects any port.
    fn is_needed(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// The connections that are not inspected; `None`: all are.
    fn disabled(&self) -> Option<ListenerFilterChainMatchPredicate> {
        match self {
            Self::Nowhere | Self::Everywhere => None,
            Self::Except(ports) => Some(any_of(ports)),
            Self::On(ports) => Some(predicate(Rule::NotMatch(Box::new(any_of(ports))))),
        }
    }
}

fn predicate(rule: Rule) -> ListenerFilterChainMatchPredicate {
    ListenerFilterChainMatchPredicate { rule: Some(rule) }
}

fn any_of(ports: &[u16]) -> ListenerFilterChainMatchPredicate {
    let one = |port: &u16| {
        let start = i32::from(*port);
        predicate(Rule::DestinationPortRange(Int32Range { start, end: start + 1 }))
    };
    match ports {
        [only] => one(only),
        all => predicate(Rule::OrMatch(MatchSet { rules: all.iter().map(one).collect() })),
    }
}

impl Inspectors {
    /// Sets a listener's filters. After `wait` (zero: no limit) the connection goes on with what is known, as is needed
    /// for protocols in which the server speaks first.
    pub fn apply(self, wait: Duration, listener: &mut Listener) {
        let mut filters = Vec::new();
        if self.proxy_protocol {
            filters.push(listener_filter("envoy.filters.listener.proxy_protocol", any(&ProxyProtocol::default())));
        }
        if self.original_dst {
            filters.push(listener_filter("envoy.filters.listener.original_dst", any(&OriginalDst {})));
        }
        if self.original_src {
            let config = OriginalSrc { mark: ORIGINAL_SRC_MARK, ..Default::default() };
            filters.push(listener_filter("envoy.filters.listener.original_src", any(&config)));
        }
        let inspectors = [
            (&self.tls, "envoy.filters.listener.tls_inspector", any(&TlsInspector::default())),
            (&self.http, "envoy.filters.listener.http_inspector", any(&HttpInspector {})),
        ];
        for (inspected, name, config) in inspectors.into_iter().filter(|(inspected, ..)| inspected.is_needed()) {
            filters.push(ListenerFilter { filter_disabled: inspected.disabled(), ..listener_filter(name, config) });
        }
        listener.listener_filters = filters;
        if self.tls.is_needed() || self.http.is_needed() {
            listener.listener_filters_timeout = Some(duration(wait));
            listener.continue_on_listener_filters_timeout = true;
        }
    }
}

fn listener_filter(name: &str, config: Any) -> ListenerFilter {
    ListenerFilter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)), ..Default::default() }
}
