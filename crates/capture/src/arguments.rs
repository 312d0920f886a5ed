//! The command line of Istio's init container (`istio-iptables`), read and written.

use std::net::IpAddr;
use std::str::FromStr;

use evenkeel_api::annotations::{CaptureRules, parse_interfaces, parse_ports, parse_ranges};
use evenkeel_api::istio::InterceptionMode;

use crate::settings::{CLIENT_MARK, Capture, DnsCapture, Ports, ProxyIdentity};

/// The first argument of Istio's init container.
pub const COMMAND: &str = "istio-iptables";

/// Why a command line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// No such flag.
    #[error("`{0}` is not a flag of `istio-iptables`")]
    Unknown(String),
    /// A flag is the last word.
    #[error("{0} needs a value")]
    Missing(String),
    /// The value has another form.
    #[error("{flag}: {problem}")]
    Value {
        /// The flag.
        flag: String,
        /// What is wrong.
        problem: String,
    },
}

/// A flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    OutboundPort,
    InboundPort,
    TunnelPort,
    Users,
    Groups,
    Mode,
    IncludeInboundPorts,
    ExcludeInboundPorts,
    IncludeOutboundRanges,
    ExcludeOutboundRanges,
    IncludeOutboundPorts,
    ExcludeOutboundPorts,
    ExcludeInterfaces,
    VirtualInterfaces,
    ClientMark,
    RedirectDns,
    CaptureAllDns,
    /// Of the program that runs the rules, or of its log.
    Unrelated,
}

/// All flags: short, long, and meaning.
const FLAGS: [(&str, &str, Flag); 18] = [
    ("-p", "--envoy-port", Flag::OutboundPort),
    ("-z", "--inbound-capture-port", Flag::InboundPort),
    ("-e", "--inbound-tunnel-port", Flag::TunnelPort),
    ("-u", "--proxy-uid", Flag::Users),
    ("-g", "--proxy-gid", Flag::Groups),
    ("-m", "--istio-inbound-interception-mode", Flag::Mode),
    ("-b", "--istio-inbound-ports", Flag::IncludeInboundPorts),
    ("-d", "--istio-local-exclude-ports", Flag::ExcludeInboundPorts),
    ("-i", "--istio-service-cidr", Flag::IncludeOutboundRanges),
    ("-x", "--istio-service-exclude-cidr", Flag::ExcludeOutboundRanges),
    ("-q", "--istio-outbound-ports", Flag::IncludeOutboundPorts),
    ("-o", "--istio-local-outbound-ports-exclude", Flag::ExcludeOutboundPorts),
    ("-c", "--istio-exclude-interfaces", Flag::ExcludeInterfaces),
    ("-k", "--kube-virt-interfaces", Flag::VirtualInterfaces),
    ("-t", "--istio-inbound-tproxy-mark", Flag::ClientMark),
    ("", "--redirect-dns", Flag::RedirectDns),
    ("", "--capture-all-dns", Flag::CaptureAllDns),
    ("", "--log_output_level", Flag::Unrelated),
];

/// What a command line says about DNS.
#[derive(Debug, Default)]
struct Dns {
    is_redirected: bool,
    is_all: bool,
}

impl Capture {
    /// Reads the arguments after [`COMMAND`]. `name_servers` are those of the workload's `resolv.conf`, to which queries are captured
    /// with `--redirect-dns`. What has no flag has Istio's default.
    pub fn from_arguments<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
        name_servers: &[IpAddr],
    ) -> Result<Self, ArgumentError> {
        let mut capture = Self { rules: no_rules(), ..Self::default() };
        let (mut dns, mut has_groups) = (Dns::default(), false);
        let mut words = arguments.into_iter();
        while let Some(word) = words.next() {
            let (name, beside) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let flag = flag(name).ok_or_else(|| ArgumentError::Unknown(word.to_owned()))?;
            match flag {
                Flag::RedirectDns => dns.is_redirected = beside != Some("false"),
                Flag::CaptureAllDns => dns.is_all = beside != Some("false"),
                flag => {
                    let value =
                        beside.or_else(|| words.next()).ok_or_else(|| ArgumentError::Missing(name.to_owned()))?;
                    has_groups |= flag == Flag::Groups;
                    let problem = |problem| ArgumentError::Value { flag: name.to_owned(), problem };
                    capture.set(flag, value).map_err(problem)?;
                }
            }
        }
        capture.dns = match dns {
            Dns { is_redirected: false, .. } => DnsCapture::Off,
            Dns { is_all: true, .. } => DnsCapture::All,
            Dns { .. } => DnsCapture::Servers(name_servers.to_vec()),
        };
        if let ProxyIdentity::Owner { users, groups } = &mut capture.proxy
            && !has_groups
        {
            groups.clone_from(users);
        }
        Ok(capture)
    }

    fn set(&mut self, flag: Flag, value: &str) -> Result<(), String> {
        let rules = &mut self.rules;
        match flag {
            Flag::OutboundPort => self.ports.outbound = number(value)?,
            Flag::InboundPort => self.ports.inbound = number(value)?,
            Flag::TunnelPort => self.ports.tunnel = number(value)?,
            Flag::Users | Flag::Groups => self.set_owners(flag, value)?,
            Flag::Mode => self.mode = mode(value)?,
            Flag::IncludeInboundPorts => rules.inbound_ports = parse_ports(value)?,
            Flag::ExcludeInboundPorts => rules.except_inbound_ports = not_all(parse_ports(value)?)?,
            Flag::IncludeOutboundRanges => rules.outbound_ranges = parse_ranges(value)?,
            Flag::ExcludeOutboundRanges => rules.except_outbound_ranges = not_all(parse_ranges(value)?)?,
            Flag::IncludeOutboundPorts => rules.outbound_ports = not_all(parse_ports(value)?)?,
            Flag::ExcludeOutboundPorts => rules.except_outbound_ports = not_all(parse_ports(value)?)?,
            Flag::ExcludeInterfaces => rules.except_interfaces = parse_interfaces(value)?,
            Flag::VirtualInterfaces => self.virtual_interfaces = parse_interfaces(value)?,
            Flag::ClientMark if number::<u32>(value)? == CLIENT_MARK => {}
            Flag::ClientMark => return Err(format!("the mark is {CLIENT_MARK}, which proxies set")),
            Flag::RedirectDns | Flag::CaptureAllDns | Flag::Unrelated => {}
        }
        Ok(())
    }

    fn set_owners(&mut self, flag: Flag, value: &str) -> Result<(), String> {
        let ids = value.split(',').filter(|id| !id.is_empty()).map(number).collect::<Result<Vec<u32>, _>>()?;
        if let ProxyIdentity::Owner { users, groups } = &mut self.proxy {
            *(if flag == Flag::Users { users } else { groups }) = ids;
        }
        Ok(())
    }

    /// The command line of an init container that captures this, without the addresses of name servers.
    pub fn to_arguments(&self) -> Vec<String> {
        let Self { ports, rules, .. } = self;
        let mut words = vec![COMMAND.to_owned()];
        let mut push = |flag: Flag, value: String| words.extend([short(flag).to_owned(), value]);
        push(Flag::OutboundPort, ports.outbound.to_string());
        push(Flag::InboundPort, ports.inbound.to_string());
        if let ProxyIdentity::Owner { users, groups } = &self.proxy {
            push(Flag::Users, joined(users));
            if groups != users {
                push(Flag::Groups, joined(groups));
            }
        }
        push(Flag::Mode, self.mode.as_str().to_owned());
        push(Flag::IncludeOutboundRanges, rules.outbound_ranges.as_deref().map_or("*".to_owned(), joined));
        push(Flag::ExcludeOutboundRanges, joined(&rules.except_outbound_ranges));
        push(Flag::IncludeInboundPorts, rules.inbound_ports.as_deref().map_or("*".to_owned(), joined));
        push(Flag::ExcludeInboundPorts, joined(&rules.except_inbound_ports));
        let optional = [
            (Flag::IncludeOutboundPorts, joined(&rules.outbound_ports)),
            (Flag::ExcludeOutboundPorts, joined(&rules.except_outbound_ports)),
            (Flag::ExcludeInterfaces, joined(&rules.except_interfaces)),
            (Flag::VirtualInterfaces, joined(&self.virtual_interfaces)),
            (Flag::TunnelPort, other_port(ports.tunnel, Ports::default().tunnel)),
        ];
        optional.into_iter().filter(|(_, value)| !value.is_empty()).for_each(|(flag, value)| push(flag, value));
        let dns: &[&str] = match self.dns {
            DnsCapture::Off => &[],
            DnsCapture::Servers(_) => &["--redirect-dns"],
            DnsCapture::All => &["--redirect-dns", "--capture-all-dns"],
        };
        words.extend(dns.iter().map(|word| (*word).to_owned()));
        words
    }
}

/// Without flags `istio-iptables` captures no inbound connection and no outbound one.
fn no_rules() -> CaptureRules {
    CaptureRules { inbound_ports: Some(Vec::new()), outbound_ranges: Some(Vec::new()), ..CaptureRules::default() }
}

fn flag(name: &str) -> Option<Flag> {
    FLAGS.iter().find(|(short, long, _)| *long == name || (*short == name && !short.is_empty())).map(|(.., flag)| *flag)
}

fn short(flag: Flag) -> &'static str {
    FLAGS.iter().find(|(.., known)| *known == flag).map_or("", |(short, ..)| short)
}

fn mode(name: &str) -> Result<InterceptionMode, String> {
    let all = [InterceptionMode::Redirect, InterceptionMode::Tproxy, InterceptionMode::None];
    all.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| format!("`{name}` is no mode"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in range"))
}

fn not_all<T>(list: Option<Vec<T>>) -> Result<Vec<T>, String> {
    list.ok_or_else(|| "`*` is not allowed here".to_owned())
}

fn joined<T: ToString>(list: &[T]) -> String {
    list.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn other_port(port: u16, default: u16) -> String {
    if port == default { String::new() } else { port.to_string() }
}
