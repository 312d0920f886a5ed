//! Rules as text for `iptables-restore --noflush` and `ip6tables-restore --noflush`.
//!
//! The chains have Istio's names and are entered from the built-in ones, whose other rules stay as they are. A rule of the data that has
//! a list of interfaces or of ports, or several actions, becomes several rules here.
//!
//! TPROXY of iptables drops a packet that it cannot deliver to a transparent socket, where that of nftables lets it pass. Packets of
//! known connections, among them those that the proxy and its application have made, are therefore accepted before, as in Istio.

use crate::ruleset::{
    Action, Address, Chain, ChainName, Hook, Interface, Match, Owner, PortSet, Rule, Ruleset, Transport,
};

/// Maximum number of ports in one condition of the match `multiport`.
const MAX_PORTS: usize = 15;

/// A table of iptables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Raw,
    Mangle,
    Nat,
}

/// The rules as tables for `iptables-restore`, or for `ip6tables-restore` if they are of IPv6.
pub fn render(ruleset: &Ruleset) -> String {
    [Table::Raw, Table::Mangle, Table::Nat].map(|table| render_table(ruleset, table)).concat()
}

/// The chains that a listing (`iptables-save`) lacks, does not enter, or has without rules.
pub fn missing(ruleset: &Ruleset, listed: &str) -> Vec<&'static str> {
    let has = |wanted: &str| listed.lines().any(|line| line == wanted);
    let begins = |wanted: &str| listed.lines().any(|line| line.starts_with(wanted));
    let is_there = |chain: &&Chain| {
        let own = chain_name(chain.name);
        has(&format!("-A {} -j {own}", place(chain.hook).1)) && begins(&format!("-A {own} "))
    };
    let expected = ruleset.chains.iter().filter(|chain| !chain.rules.is_empty());
    expected.filter(|chain| !is_there(chain)).map(|chain| chain_name(chain.name)).collect()
}

/// The chains of one table; nothing if it has none.
fn render_table(ruleset: &Ruleset, table: Table) -> String {
    let chains: Vec<&Chain> = ruleset.chains.iter().filter(|chain| place(chain.hook).0 == table).collect();
    if chains.is_empty() {
        return String::new();
    }
    let name = match table {
        Table::Raw => "raw",
        Table::Mangle => "mangle",
        Table::Nat => "nat",
    };
    let declared = chains.iter().map(|chain| format!(":{} - [0:0]\n", chain_name(chain.name)));
    let entered = chains.iter().map(|chain| format!("-A {} -j {}\n", place(chain.hook).1, chain_name(chain.name)));
    let rules = chains.iter().flat_map(|chain| chain.rules.iter().map(|rule| render_rule(chain.name, rule)));
    let lines: String = declared.chain(entered).chain(rules).collect();
    format!("*{name}\n{lines}COMMIT\n")
}

/// The table and the built-in chain of a hook.
fn place(hook: Hook) -> (Table, &'static str) {
    match hook {
        Hook::NatPrerouting => (Table::Nat, "PREROUTING"),
        Hook::NatOutput => (Table::Nat, "OUTPUT"),
        Hook::ManglePrerouting => (Table::Mangle, "PREROUTING"),
        // This chain chooses the route again if a mark changes.
        Hook::MangleOutput | Hook::RouteOutput => (Table::Mangle, "OUTPUT"),
        Hook::RawPrerouting => (Table::Raw, "PREROUTING"),
        Hook::RawOutput => (Table::Raw, "OUTPUT"),
    }
}

fn chain_name(name: ChainName) -> &'static str {
    match name {
        ChainName::Inbound => "ISTIO_INBOUND",
        ChainName::Virtual => "ISTIO_VIRTUAL",
        ChainName::Outbound => "ISTIO_OUTPUT",
        ChainName::Answers => "ISTIO_ANSWERS",
        ChainName::Origin => "ISTIO_ORIGIN",
        ChainName::DnsZones => "ISTIO_OUTPUT_DNS",
        ChainName::DnsAnswerZones => "ISTIO_INBOUND_DNS",
    }
}

fn render_rule(chain: ChainName, rule: &Rule) -> String {
    let comment = rule.comment.map(|comment| format!("# {comment}\n"));
    let conditions = conditions(&rule.matches);
    let targets = rule.actions.iter().flat_map(|action| targets(*action));
    let lines = targets.flat_map(|target| {
        conditions.iter().map(move |words| {
            let words: Vec<&str> =
                ["-A", chain_name(chain)].into_iter().chain(words.iter().map(String::as_str)).collect();
            format!("{} {target}\n", words.join(" "))
        })
    });
    comment.into_iter().chain(lines).collect()
}

/// The conditions of each rule that a rule of the data becomes. The protocol goes first, because conditions on ports need it.
fn conditions(matches: &[Match]) -> Vec<Vec<String>> {
    let protocol = matches.iter().find_map(|condition| match condition {
        Match::Tcp => Some(Transport::Tcp),
        Match::Port(transport, _) | Match::SourcePort(transport, _) => Some(*transport),
        _ => None,
    });
    let protocol = protocol.map(|transport| match transport {
        Transport::Tcp => "-p tcp".to_owned(),
        Transport::Udp => "-p udp".to_owned(),
    });
    let mut all = vec![protocol.into_iter().collect::<Vec<String>>()];
    for condition in matches {
        let choices = alternatives(condition);
        if choices.is_empty() {
            continue;
        }
        let with = |words: &Vec<String>, choice: &String| words.iter().chain([choice]).cloned().collect();
        all = all.iter().flat_map(|words| choices.iter().map(move |choice| with(words, choice))).collect();
    }
    all
}

/// A condition as texts of which one has to hold; none if the protocol says it.
fn alternatives(condition: &Match) -> Vec<String> {
    match condition {
        Match::In(interface) => of_interface("-i", interface),
        Match::Out(interface) => of_interface("-o", interface),
        Match::Source(address) => vec![format!("-s {}", range(address))],
        Match::Destination(address) => vec![format!("-d {}", range(address))],
        Match::NotDestination(address) => vec![format!("! -d {}", range(address))],
        Match::Tcp => Vec::new(),
        Match::Port(_, ports) => of_ports(ports),
        Match::SourcePort(_, port) => vec![format!("--sport {port}")],
        Match::Mark(mark) => vec![format!("-m mark --mark {mark}")],
        Match::NotMark(mark) => vec![format!("-m mark ! --mark {mark}")],
        Match::ConnectionMark(mark) => vec![format!("-m connmark --mark {mark}")],
        Match::Dscp(value) => vec![format!("-m dscp --dscp {value:#04x}")],
        Match::Owner(Owner::User(id)) => vec![format!("-m owner --uid-owner {id}")],
        Match::Owner(Owner::Group(id)) => vec![format!("-m owner --gid-owner {id}")],
    }
}

fn of_interface(flag: &str, interface: &Interface) -> Vec<String> {
    match interface {
        Interface::Loopback => vec![format!("{flag} lo")],
        Interface::AnyOf(names) => names.iter().map(|name| format!("{flag} {name}")).collect(),
    }
}

fn of_ports(ports: &PortSet) -> Vec<String> {
    let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match ports {
        PortSet::One(port) => vec![format!("--dport {port}")],
        PortSet::AnyOf(ports) => {
            let some = ports.chunks(MAX_PORTS);
            some.map(|ports| match ports {
                [port] => format!("--dport {port}"),
                ports => format!("-m multiport --dports {}", list(ports)),
            })
            .collect()
        }
        // The settings never name more than two.
        PortSet::NoneOf(ports) => match ports.as_slice() {
            [port] => vec![format!("! --dport {port}")],
            ports => vec![format!("-m multiport ! --dports {}", list(ports))],
        },
    }
}

fn range(address: &Address) -> String {
    match address {
        Address::Host(host) => format!("{host}/{}", if host.is_ipv4() { 32 } else { 128 }),
        Address::Range(range) => range.to_string(),
    }
}

/// What rules with the same conditions do, one after the other, with further conditions before the target.
fn targets(action: Action) -> Vec<String> {
    const KNOWN: &str = "-m conntrack --ctstate RELATED,ESTABLISHED";
    vec![match action {
        Action::Return => "-j RETURN".to_owned(),
        Action::Redirect(port) => format!("-j REDIRECT --to-ports {port}"),
        Action::Tproxy { port, mark } => {
            return vec![
                format!("{KNOWN} -j MARK --set-mark {mark}"),
                format!("{KNOWN} -j ACCEPT"),
                format!("-j TPROXY --on-port {port} --tproxy-mark {mark}/0xffffffff"),
            ];
        }
        Action::SetMark(mark) => format!("-j MARK --set-mark {mark}"),
        Action::SetConnectionMark(mark) => format!("-j CONNMARK --set-mark {mark}"),
        Action::SetDscp(value) => format!("-j DSCP --set-dscp {value:#04x}"),
        Action::SetZone(zone) => format!("-j CT --zone {zone}"),
    }]
}
