//! What arrives at the workload.

use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::cidr::IpNet;

use crate::ruleset::{Action, Address, Chain, ChainName, Family, Hook, Interface, Match, PortSet, Rule, Transport};
use crate::settings::{CLIENT_MARK, Capture, OWN_PORTS, PROXY_MARK, ProxyIdentity};

/// The chains for what arrives, and for the application's answers to it.
pub(crate) fn chains(capture: &Capture, family: Family) -> Vec<Chain> {
    match capture.mode {
        InterceptionMode::Tproxy => transparent(capture, family),
        InterceptionMode::Redirect | InterceptionMode::None => {
            let mut rules = excluded_interfaces(capture);
            rules.extend(of_virtual_machines(capture, family));
            rules.push(own_ports(capture));
            rules.extend(captured(capture, Action::Redirect(capture.ports.inbound)));
            vec![Chain { name: ChainName::Inbound, hook: Hook::NatPrerouting, rules }]
        }
    }
}

/// Inbound connections that the kernel gives to the proxy as they are.
fn transparent(capture: &Capture, family: Family) -> Vec<Chain> {
    let mut rules = excluded_interfaces(capture);
    rules.extend(on_virtual_interfaces(capture).map(|on| Rule::new(vec![on], Action::Return)));
    let loopback = || Match::In(Interface::Loopback);
    rules.push(Rule {
        comment: Some("The sidecar calling its application as the client, and the answers. The connection is remembered by its mark."),
        matches: vec![Match::Tcp, Match::Mark(CLIENT_MARK)],
        actions: vec![Action::SetConnectionMark(CLIENT_MARK), Action::Return],
    });
    let source = Address::Host(family.inbound_source());
    let as_itself = Rule::new(vec![loopback(), Match::Source(source)], Action::Return);
    rules.push(as_itself.because("The sidecar calling its application as itself."));
    let to_itself = Rule::new(vec![loopback(), Match::NotMark(PROXY_MARK)], Action::Return);
    rules.push(to_itself.because("The application talking to itself."));
    rules.push(Rule::new(vec![Match::Destination(family.loopback_range())], Action::Return));
    rules.push(own_ports(capture));
    rules.extend(captured(capture, Action::Tproxy { port: capture.ports.inbound, mark: CLIENT_MARK }));
    let inbound = Chain { name: ChainName::Inbound, hook: Hook::ManglePrerouting, rules };
    let virtual_machines = of_virtual_machines(capture, family);
    let redirected = (!virtual_machines.is_empty()).then_some(Chain {
        name: ChainName::Virtual,
        hook: Hook::NatPrerouting,
        rules: virtual_machines,
    });
    [Some(inbound), redirected, Some(answers(capture, family))].into_iter().flatten().collect()
}

/// Brings the application's answers back to the proxy. Where the proxy does not mark its sockets itself, the rules do.
fn answers(capture: &Capture, family: Family) -> Chain {
    let mut rules = Vec::new();
    if capture.proxy != ProxyIdentity::Mark {
        let loopback = || Match::Out(Interface::Loopback);
        let as_client = Rule::new(vec![loopback(), Match::Tcp, Match::Mark(CLIENT_MARK)], Action::Return);
        rules.push(as_client.because("The sidecar calling its application as the client."));
        let elsewhere = Match::NotDestination(Address::Host(family.loopback()));
        let marked = capture.is_of_proxy().into_iter();
        rules.extend(marked.map(|is_of_proxy| {
            Rule::new(vec![loopback(), elsewhere.clone(), Match::Tcp, is_of_proxy], Action::SetMark(PROXY_MARK))
        }));
    }
    let answer = Rule::new(vec![Match::Tcp, Match::ConnectionMark(CLIENT_MARK)], Action::SetMark(CLIENT_MARK));
    rules.push(answer.because("The application's answers are addressed to the client, and belong to the sidecar."));
    Chain { name: ChainName::Answers, hook: Hook::RouteOutput, rules }
}

/// A rule that leaves what arrives on excluded interfaces as it is.
fn excluded_interfaces(capture: &Capture) -> Vec<Rule> {
    let names = &capture.rules.except_interfaces;
    let excluded = (!names.is_empty()).then(|| Match::In(Interface::AnyOf(names.clone())));
    excluded.map(|on| Rule::new(vec![on], Action::Return)).into_iter().collect()
}

fn on_virtual_interfaces(capture: &Capture) -> Option<Match> {
    let names = &capture.virtual_interfaces;
    (!names.is_empty()).then(|| Match::In(Interface::AnyOf(names.clone())))
}

/// Connections of virtual machines: they are outbound ones of the workload, and nothing else of theirs is captured.
fn of_virtual_machines(capture: &Capture, family: Family) -> Vec<Rule> {
    let Some(on) = on_virtual_interfaces(capture) else { return Vec::new() };
    let redirect = Action::Redirect(capture.ports.outbound);
    let mut rules: Vec<Rule> = match &capture.rules.outbound_ranges {
        None => vec![Rule::new(vec![on.clone(), Match::Tcp], redirect)],
        Some(ranges) => {
            let to = of_family(ranges, family).map(|range| vec![on.clone(), Match::Destination(range), Match::Tcp]);
            to.map(|matches| Rule::new(matches, redirect)).collect()
        }
    };
    rules.push(Rule::new(vec![on], Action::Return));
    rules
}

fn own_ports(capture: &Capture) -> Rule {
    let mut ports = OWN_PORTS.to_vec();
    if !ports.contains(&capture.ports.tunnel) {
        ports.push(capture.ports.tunnel);
    }
    Rule::new(vec![Match::Port(Transport::Tcp, PortSet::AnyOf(ports))], Action::Return)
}

/// Which inbound connections the proxy gets, and how.
fn captured(capture: &Capture, action: Action) -> Vec<Rule> {
    match &capture.rules.inbound_ports {
        None => {
            let excluded = to_ports(&capture.rules.except_inbound_ports, Action::Return);
            excluded.into_iter().chain([Rule::new(vec![Match::Tcp], action)]).collect()
        }
        Some(only) => to_ports(only, action).into_iter().collect(),
    }
}

/// A rule for TCP to these ports; none without ports.
pub(crate) fn to_ports(ports: &[u16], action: Action) -> Option<Rule> {
    let matches = || vec![Match::Port(Transport::Tcp, PortSet::AnyOf(ports.to_vec()))];
    (!ports.is_empty()).then(|| Rule::new(matches(), action))
}

/// The ranges of one family.
pub(crate) fn of_family(ranges: &[IpNet], family: Family) -> impl Iterator<Item = Address> {
    ranges.iter().filter(move |range| family.has(range.addr())).map(|range| Address::Range(*range))
}
