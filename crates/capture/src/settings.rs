//! What is captured: the settings of Istio's init container and of its annotations.

use std::net::IpAddr;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;

use crate::ruleset::{Family, Match, Owner};

/// Socket mark of all traffic of the proxy and the agent themselves. Istio also sets this mark on its proxy's traffic.
pub const PROXY_MARK: u32 = 1338;
/// Mark of the connections between a proxy and its application that have the client's address, as in Istio.
pub const CLIENT_MARK: u32 = 1337;
/// User and group of Istio's proxy.
pub const PROXY_USER: u32 = 1337;
/// The field of packets (RFC 2474) by which connections of a proxy can be told from those that a program makes past it, where marks
/// do not leave the workload's network. Programs cannot set it: the rules clear it.
pub const PROXY_DSCP: u8 = 0x2b;
/// Ports served by the proxy itself, which are never captured: HBONE, admin, agent health, readiness, Prometheus.
pub const OWN_PORTS: [u16; 5] = [15008, 15000, 15020, 15021, 15090];
/// Routing table for packets with [`CLIENT_MARK`], as in Istio.
const CLIENT_TABLE: u32 = 133;

/// How a workload's traffic is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// How inbound connections reach the proxy; with `NONE` nothing is captured.
    pub mode: InterceptionMode,
    /// Which connections are captured, by the annotations `traffic.sidecar.istio.io/*`. They apply in the order of Istio's
    /// `istio-iptables`: what is excluded, then the ports that are included, then the ranges.
    pub rules: CaptureRules,
    /// Interfaces of virtual machines inside the Pod, whose connections are outbound ones of the workload.
    pub virtual_interfaces: Vec<String>,
    /// How packets of the proxy are recognized.
    pub proxy: ProxyIdentity,
    /// Which DNS queries are captured.
    pub dns: DnsCapture,
    /// Addresses that the workload always reaches itself.
    pub direct: Vec<IpAddr>,
    /// The value of the field DSCP in all packets of the proxy, and in no others; `None`: the field stays as it is.
    pub proxy_dscp: Option<u8>,
    /// Whether the workload has IPv6 addresses.
    pub ipv6: bool,
    /// The proxy's ports for captured connections.
    pub ports: Ports,
}

/// How packets of the proxy are told from those of its application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyIdentity {
    /// Its sockets have [`PROXY_MARK`]. It needs the capability `CAP_NET_ADMIN` for that.
    Mark,
    /// It runs as one of these users or groups, as in Istio.
    Owner {
        /// Users, by id.
        users: Vec<u32>,
        /// Groups, by id.
        groups: Vec<u32>,
    },
}

/// Which DNS queries the agent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsCapture {
    /// None: the workload asks its name server itself.
    Off,
    /// All.
    All,
    /// Those to these name servers.
    Servers(Vec<IpAddr>),
}

/// Ports of the proxy for captured connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Outbound connections.
    pub outbound: u16,
    /// Inbound connections.
    pub inbound: u16,
    /// HBONE, which is never captured.
    pub tunnel: u16,
    /// DNS queries.
    pub dns: u16,
}

impl Default for Ports {
    /// Istio's.
    fn default() -> Self {
        Self { outbound: 15001, inbound: 15006, tunnel: 15008, dns: 15053 }
    }
}

impl Default for Capture {
    /// Istio's: everything is redirected but DNS, and the proxy runs as user and group 1337.
    fn default() -> Self {
        Self {
            mode: InterceptionMode::Redirect,
            rules: CaptureRules::default(),
            virtual_interfaces: Vec::new(),
            proxy: ProxyIdentity::Owner { users: vec![PROXY_USER], groups: vec![PROXY_USER] },
            dns: DnsCapture::Off,
            direct: Vec::new(),
            proxy_dscp: None,
            ipv6: false,
            ports: Ports::default(),
        }
    }
}

impl Capture {
    /// Addresses and routes that the rules rely on, as a script for `ip -batch` (IPv6: `ip -6 -batch`).
    ///
    /// In the mode TPROXY they keep the traffic with the client's address between the proxy and its application on this machine. Of IPv6,
    /// loopback has only one address, so [`Family::inbound_source`] has to be added.
    pub fn routes(&self, family: Family) -> String {
        let (all, source) = match family {
            Family::V4 => ("0.0.0.0/0", String::new()),
            Family::V6 => ("::/0", format!("addr add {}/128 dev lo\n", family.inbound_source())),
        };
        match self.mode {
            InterceptionMode::None => String::new(),
            InterceptionMode::Redirect => source,
            InterceptionMode::Tproxy => format!(
                "{source}rule add fwmark {CLIENT_MARK} lookup {CLIENT_TABLE}\nroute add local {all} dev lo table {CLIENT_TABLE}\n"
            ),
        }
    }

    /// Conditions of which one holds for every packet of the proxy.
    pub(crate) fn is_of_proxy(&self) -> Vec<Match> {
        match &self.proxy {
            ProxyIdentity::Mark => vec![Match::Mark(PROXY_MARK)],
            ProxyIdentity::Owner { users, groups } => {
                let users = users.iter().map(|user| Owner::User(*user));
                users.chain(groups.iter().map(|group| Owner::Group(*group))).map(Match::Owner).collect()
            }
        }
    }
}
