//! Rules as text for `nft -f`.

use crate::ruleset::{
    Action, Address, Chain, ChainName, Family, Hook, Interface, Match, Owner, PortSet, Rule, Ruleset, Transport,
};

/// A rule set that only tests whether the kernel can redirect, which is known once it is loaded.
pub const PROBE: &str = "\
table ip evenkeel_probe {
  chain outbound {
    type nat hook output priority -100; policy accept;
    tcp dport 1 redirect to :1
  }
}
delete table ip evenkeel_probe
";

/// The rules as the table `evenkeel`.
pub fn render(ruleset: &Ruleset) -> String {
    let chains: String = ruleset.chains.iter().map(|chain| render_chain(chain, ruleset.family)).collect();
    format!("table {} evenkeel {{\n{chains}}}\n", family(ruleset.family))
}

/// The rules in place of those that are loaded, if any are.
pub fn replace(ruleset: &Ruleset) -> String {
    let table = format!("table {} evenkeel", family(ruleset.family));
    // A table is declared before it is deleted, because there may be none.
    format!("{table}\ndelete {table}\n{}", render(ruleset))
}

/// The arguments of `nft` that list the table of a family.
pub fn list_arguments(of: Family) -> [&'static str; 4] {
    ["list", "table", family(of), "evenkeel"]
}

/// The chains that a listing (`nft list table`) lacks, or has without rules. Single rules are not compared: those of another version of
/// this program are as good.
pub fn missing(ruleset: &Ruleset, listed: &str) -> Vec<&'static str> {
    let is_there = |chain: &&Chain| {
        let head = format!("chain {} {{", name(chain.name));
        let mut lines = listed.lines().map(str::trim).skip_while(|line| *line != head);
        lines.next().is_some() && lines.take_while(|line| *line != "}").any(is_rule)
    };
    let expected = ruleset.chains.iter().filter(|chain| !chain.rules.is_empty());
    expected.filter(|chain| !is_there(chain)).map(|chain| name(chain.name)).collect()
}

/// Whether a line of a chain is a rule, and not its hook.
fn is_rule(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("type ") && !line.starts_with('#')
}

fn family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn render_chain(chain: &Chain, family: Family) -> String {
    let rules: String = chain.rules.iter().map(|rule| render_rule(rule, family)).collect();
    format!("  chain {} {{\n    type {}; policy accept;\n{rules}  }}\n", name(chain.name), hook(chain.hook))
}

fn name(name: ChainName) -> &'static str {
    match name {
        ChainName::Inbound => "inbound",
        ChainName::Virtual => "virtual",
        ChainName::Outbound => "outbound",
        ChainName::Answers => "answers",
        ChainName::Origin => "origin",
        ChainName::DnsZones => "dns_zones",
        ChainName::DnsAnswerZones => "dns_answer_zones",
    }
}

fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::NatPrerouting => "nat hook prerouting priority dstnat",
        Hook::NatOutput => "nat hook output priority -100",
        Hook::ManglePrerouting => "filter hook prerouting priority mangle",
        Hook::MangleOutput => "filter hook output priority mangle",
        Hook::RouteOutput => "route hook output priority mangle",
        Hook::RawPrerouting => "filter hook prerouting priority raw",
        Hook::RawOutput => "filter hook output priority raw",
    }
}

fn render_rule(rule: &Rule, family: Family) -> String {
    let matches = rule.matches.iter().map(|condition| render_match(condition, family));
    let words: Vec<String> = matches.chain(rule.actions.iter().map(|action| render_action(*action, family))).collect();
    let comment = rule.comment.map(|comment| format!("    # {comment}\n")).unwrap_or_default();
    format!("{comment}    {}\n", words.join(" "))
}

fn render_match(condition: &Match, of: Family) -> String {
    let ip = family(of);
    match condition {
        Match::In(interface) => format!("iifname {}", render_interface(interface)),
        Match::Out(interface) => format!("oifname {}", render_interface(interface)),
        Match::Source(address) => format!("{ip} saddr {}", render_address(address)),
        Match::Destination(address) => format!("{ip} daddr {}", render_address(address)),
        Match::NotDestination(address) => format!("{ip} daddr != {}", render_address(address)),
        Match::Tcp => "meta l4proto tcp".to_owned(),
        Match::Port(transport, ports) => format!("{} dport {}", protocol(*transport), render_ports(ports)),
        Match::SourcePort(transport, port) => format!("{} sport {port}", protocol(*transport)),
        Match::Mark(mark) => format!("meta mark {mark}"),
        Match::NotMark(mark) => format!("meta mark != {mark}"),
        Match::ConnectionMark(mark) => format!("ct mark {mark}"),
        Match::Dscp(value) => format!("{ip} dscp {value:#04x}"),
        Match::Owner(Owner::User(id)) => format!("meta skuid {id}"),
        Match::Owner(Owner::Group(id)) => format!("meta skgid {id}"),
    }
}

fn render_action(action: Action, of: Family) -> String {
    match action {
        Action::Return => "return".to_owned(),
        Action::Redirect(port) => format!("redirect to :{port}"),
        Action::Tproxy { port, mark } => format!("tproxy to :{port} meta mark set {mark} accept"),
        Action::SetMark(mark) => format!("meta mark set {mark}"),
        Action::SetConnectionMark(mark) => format!("ct mark set {mark}"),
        Action::SetDscp(value) => format!("{} dscp set {value:#04x}", family(of)),
        Action::SetZone(zone) => format!("ct zone set {zone}"),
    }
}

fn protocol(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}

fn render_interface(interface: &Interface) -> String {
    match interface {
        Interface::Loopback => "lo".to_owned(),
        // The names have been validated: nothing else can be between the quotation marks.
        Interface::AnyOf(names) => {
            format!("{{ {} }}", names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "))
        }
    }
}

fn render_address(address: &Address) -> String {
    match address {
        Address::Host(host) => host.to_string(),
        Address::Range(range) => range.to_string(),
    }
}

fn render_ports(ports: &PortSet) -> String {
    let set = |ports: &[u16]| format!("{{ {} }}", ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", "));
    match ports {
        PortSet::One(port) => port.to_string(),
        PortSet::AnyOf(ports) => set(ports),
        PortSet::NoneOf(ports) => match ports.as_slice() {
            [port] => format!("!= {port}"),
            ports => format!("!= {}", set(ports)),
        },
    }
}
