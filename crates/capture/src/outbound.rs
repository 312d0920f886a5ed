//! What the workload sends, which is redirected in either mode.

use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::cidr::IpNet;

use crate::inbound::{of_family, to_ports};
use crate::ruleset::{Action, Address, Chain, ChainName, Family, Hook, Interface, Match, PortSet, Rule, Transport};
use crate::settings::{CLIENT_MARK, Capture, DnsCapture, ProxyIdentity};

/// Port of DNS.
pub(crate) const DNS: u16 = 53;

/// The chain for what the workload sends.
pub(crate) fn chain(capture: &Capture, family: Family) -> Chain {
    let loopback = || Match::Out(Interface::Loopback);
    let mut rules = Vec::new();
    if !capture.rules.except_interfaces.is_empty() {
        // DNS is excluded, too.
        let names = capture.rules.except_interfaces.clone();
        rules.push(Rule::new(vec![Match::Out(Interface::AnyOf(names))], Action::Return));
    }
    let own = vec![loopback(), Match::Source(Address::Host(family.inbound_source()))];
    rules.push(Rule::new(own, Action::Return).because("The sidecar calling its own application."));
    if capture.mode == InterceptionMode::Tproxy && capture.proxy != ProxyIdentity::Mark {
        // It would be taken for a call of the application to itself.
        let as_client = Rule::new(vec![Match::Mark(CLIENT_MARK)], Action::Return);
        rules.push(as_client.because("The sidecar calling its application as the client."));
    }
    rules.extend(to_ports(&capture.rules.except_outbound_ports, Action::Return));
    rules.extend(of_proxy(capture, family));
    let direct = capture.direct.iter().filter(|address| family.has(**address));
    rules.extend(direct.map(|address| Rule::new(vec![Match::Destination(Address::Host(*address))], Action::Return)));
    rules.extend(queries(capture, family));
    let to_itself = Rule::new(vec![loopback()], Action::Return);
    rules.push(to_itself.because("The application talking to itself, by loopback or by its own address."));
    rules.push(Rule::new(vec![Match::Destination(Address::Host(family.loopback()))], Action::Return));
    rules.extend(captured(capture, family));
    Chain { name: ChainName::Outbound, hook: Hook::NatOutput, rules }
}

/// What the proxy sends: it is final, but for calls of the application to itself.
fn of_proxy(capture: &Capture, family: Family) -> Vec<Rule> {
    let elsewhere = Match::NotDestination(Address::Host(family.loopback()));
    let not_captured = match (&capture.proxy, &capture.dns) {
        // A name server may have an address of the Pod; the agent's own queries go there.
        (ProxyIdentity::Owner { .. }, DnsCapture::All | DnsCapture::Servers(_)) => vec![DNS, capture.ports.tunnel],
        _ => vec![capture.ports.tunnel],
    };
    let ports = Match::Port(Transport::Tcp, PortSet::NoneOf(not_captured));
    let to_itself = capture.is_of_proxy().into_iter().map(|is_of_proxy| {
        let matches = vec![Match::Out(Interface::Loopback), elsewhere.clone(), Match::Tcp, ports.clone(), is_of_proxy];
        Rule::new(matches, Action::Redirect(capture.ports.inbound))
    });
    let others = capture.is_of_proxy().into_iter().map(|is_of_proxy| Rule::new(vec![is_of_proxy], Action::Return));
    const TO_ITSELF: &str = "The application called its own service and the sidecar picked this very replica: through the inbound side, as from anywhere.";
    first_because(to_itself, TO_ITSELF)
        .chain(first_because(others, "Everything else the sidecar sends is final."))
        .collect()
}

fn first_because(rules: impl Iterator<Item = Rule>, comment: &'static str) -> impl Iterator<Item = Rule> {
    rules.enumerate().map(move |(index, rule)| if index == 0 { rule.because(comment) } else { rule })
}

/// DNS queries.
fn queries(capture: &Capture, family: Family) -> Vec<Rule> {
    let both = [Transport::Udp, Transport::Tcp].map(|transport| Match::Port(transport, PortSet::One(DNS)));
    let redirect = Action::Redirect(capture.ports.dns);
    match &capture.dns {
        DnsCapture::Off => Vec::new(),
        DnsCapture::All => both.map(|to| Rule::new(vec![to], redirect)).to_vec(),
        DnsCapture::Servers(servers) => {
            let servers = servers.iter().filter(|server| family.has(**server));
            let to = servers.map(|server| Match::Destination(Address::Host(*server)));
            to.flat_map(|server| both.clone().map(|to| Rule::new(vec![server.clone(), to], redirect))).collect()
        }
    }
}

/// Which outbound connections the proxy gets.
fn captured(capture: &Capture, family: Family) -> Vec<Rule> {
    let redirect = Action::Redirect(capture.ports.outbound);
    let to = |ranges: &[IpNet], action: Action| -> Vec<Rule> {
        of_family(ranges, family).map(|range| Rule::new(vec![Match::Destination(range), Match::Tcp], action)).collect()
    };
    let mut rules = to(&capture.rules.except_outbound_ranges, Action::Return);
    rules.extend(to_ports(&capture.rules.outbound_ports, redirect));
    rules.extend(match &capture.rules.outbound_ranges {
        None => vec![Rule::new(vec![Match::Tcp], redirect)],
        Some(only) => to(only, redirect),
    });
    rules
}
