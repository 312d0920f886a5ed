//! Connection tracking of captured DNS over UDP.
//!
//! An application's query to a name server and the agent's own query to it may have the same addresses and ports. As in Istio, the two are
//! tracked in zones of their own; otherwise the kernel would take one for the other and lose answers. A proxy that marks its sockets has
//! a name server that no application asks, so it needs no zones.

use std::net::IpAddr;

use crate::outbound::DNS;
use crate::ruleset::{Action, Address, Chain, ChainName, Family, Hook, Match, PortSet, Rule, Transport};
use crate::settings::{Capture, DnsCapture, ProxyIdentity};

/// Zone of the proxy's traffic with name servers.
const PROXY_ZONE: u16 = 1;
/// Zone of the application's traffic with the agent.
const APPLICATION_ZONE: u16 = 2;

/// The chains, if DNS is captured.
pub(crate) fn chains(capture: &Capture, family: Family) -> Vec<Chain> {
    let ProxyIdentity::Owner { .. } = capture.proxy else { return Vec::new() };
    let servers: Vec<Option<&IpAddr>> = match &capture.dns {
        DnsCapture::Off => return Vec::new(),
        DnsCapture::All => vec![None],
        DnsCapture::Servers(servers) => servers.iter().filter(|server| family.has(**server)).map(Some).collect(),
    };
    let queries = || Match::Port(Transport::Udp, PortSet::One(DNS));
    let mut rules: Vec<Rule> = capture
        .is_of_proxy()
        .into_iter()
        .flat_map(|is_of_proxy| {
            let answers = Match::SourcePort(Transport::Udp, capture.ports.dns);
            [
                Rule::new(vec![queries(), is_of_proxy.clone()], Action::SetZone(PROXY_ZONE)),
                Rule::new(vec![answers, is_of_proxy], Action::SetZone(APPLICATION_ZONE)),
            ]
        })
        .collect();
    let to = servers.iter().map(|server| server.map(|server| Match::Destination(Address::Host(*server))));
    rules
        .extend(to.map(|to| Rule::new(to.into_iter().chain([queries()]).collect(), Action::SetZone(APPLICATION_ZONE))));
    let from = servers.iter().map(|server| server.map(|server| Match::Source(Address::Host(*server))));
    let answers = from.map(|from| {
        let matches = from.into_iter().chain([Match::SourcePort(Transport::Udp, DNS)]).collect();
        Rule::new(matches, Action::SetZone(PROXY_ZONE))
    });
    vec![
        Chain { name: ChainName::DnsZones, hook: Hook::RawOutput, rules },
        Chain { name: ChainName::DnsAnswerZones, hook: Hook::RawPrerouting, rules: answers.collect() },
    ]
}
