//! Rules as data: chains of rules at the kernel's hooks, independent of the program that loads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_base::cidr::IpNet;

/// The rules for one family of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The family.
    pub family: Family,
    /// The chains; of two chains at the same hook, packets pass the first one first.
    pub chains: Vec<Chain>,
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Rules at a hook. A packet that no rule decides about passes unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: ChainName,
    /// Where packets pass it.
    pub hook: Hook,
    /// Its rules; the first one that decides about a packet counts.
    pub rules: Vec<Rule>,
}

/// The purpose of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainName {
    /// What arrives at the workload.
    Inbound,
    /// What arrives from virtual machines inside the Pod.
    Virtual,
    /// What the workload sends.
    Outbound,
    /// The application's answers to connections that have the client's address.
    Answers,
    /// Says in each packet whether the proxy sends it.
    Origin,
    /// Separates DNS queries of the application from those of its proxy.
    DnsZones,
    /// Does so for the answers of name servers.
    DnsAnswerZones,
}

/// A hook of the kernel (`NF_INET_*`), and what a chain may do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Arriving packets: change the destination.
    NatPrerouting,
    /// Packets of this network's own programs: change the destination.
    NatOutput,
    /// Arriving packets: change marks, deliver by TPROXY.
    ManglePrerouting,
    /// Packets of own programs: change fields.
    MangleOutput,
    /// Packets of own programs: change marks, and choose the route again.
    RouteOutput,
    /// Arriving packets before their connection is known.
    RawPrerouting,
    /// Packets of own programs before their connection is known.
    RawOutput,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Why it exists, for people who list the rules.
    pub comment: Option<&'static str>,
    /// The conditions, which all have to hold.
    pub matches: Vec<Match>,
    /// What happens to the packet, in this order.
    pub actions: Vec<Action>,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// It arrives on this interface.
    In(Interface),
    /// It leaves by this interface.
    Out(Interface),
    /// It comes from this address.
    Source(Address),
    /// It goes to this address.
    Destination(Address),
    /// It goes to another address.
    NotDestination(Address),
    /// It is of TCP.
    Tcp,
    /// It goes to one of these ports.
    Port(Transport, PortSet),
    /// It comes from this port.
    SourcePort(Transport, u16),
    /// It has this mark.
    Mark(u32),
    /// It has another mark, or none.
    NotMark(u32),
    /// Its connection has this mark.
    ConnectionMark(u32),
    /// It has this value of the field DSCP (RFC 2474).
    Dscp(u8),
    /// A process of this user or group sends it.
    Owner(Owner),
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interface {
    /// `lo`.
    Loopback,
    /// One of several. The names have been validated: letters, digits, `_`, `-`, `.` and `@`.
    AnyOf(Vec<String>),
}

/// Addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A single one.
    Host(IpAddr),
    /// A range, written with its prefix length.
    Range(IpNet),
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Ports of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortSet {
    /// This one.
    One(u16),
    /// One of these.
    AnyOf(Vec<u16>),
    /// None of these.
    NoneOf(Vec<u16>),
}

/// Who sends a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A user, by id.
    User(u32),
    /// A group, by id.
    Group(u32),
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The chain's further rules do not apply.
    Return,
    /// Change the destination to this port of this machine.
    Redirect(u16),
    /// Deliver to the socket that listens on this port, with this mark; no further rule applies.
    Tproxy {
        /// The port.
        port: u16,
        /// The packet's mark.
        mark: u32,
    },
    /// Set the packet's mark.
    SetMark(u32),
    /// Set the connection's mark.
    SetConnectionMark(u32),
    /// Set the field DSCP.
    SetDscp(u8),
    /// Look its connection up among those of this zone.
    SetZone(u16),
}

impl Family {
    /// The address by which programs of a Pod reach each other.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// All addresses of loopback.
    pub fn loopback_range(self) -> Address {
        match self {
            Self::V4 => Address::Range(IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8)),
            Self::V6 => Address::Host(self.loopback()),
        }
    }

    /// Source address of connections from a proxy to its own application (Istio's `InboundPassthroughBindIpv4` and `…Ipv6`).
    pub fn inbound_source(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(127, 0, 0, 6).into(),
            Self::V6 => Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
        }
    }

    /// Whether an address is of this family.
    pub fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

impl Rule {
    /// A rule without a comment.
    pub(crate) fn new(matches: Vec<Match>, action: Action) -> Self {
        Self { comment: None, matches, actions: vec![action] }
    }

    /// The same with a comment.
    pub(crate) fn because(self, comment: &'static str) -> Self {
        Self { comment: Some(comment), ..self }
    }
}
