//! Which connections of a workload are redirected to its proxy, as Istio's `istio-iptables` does it: settings, rules as data, and the
//! rules as text for `nft` and for `iptables-restore`.
//!
//! [`Capture`] has the settings. [`Capture::rulesets`] derives the rules, which [`nftables::render`] and [`iptables::render`] write in
//! the languages of two programs. Nothing here starts one of them.
//!
//! Outbound TCP goes to port 15001, inbound to 15006, DNS to 15053; the original destination stays readable through
//! `SO_ORIGINAL_DST`. With the mode TPROXY inbound connections are not redirected: the kernel delivers them to the proxy with their
//! addresses unchanged, and the proxy connects to its application with the client's address. The application's answers are addressed to
//! the client, so they have to be routed back to the proxy, by [`CLIENT_MARK`]. The control plane sets this mark of such connections in
//! the proxy, as Istio's does (`OriginalSrc.mark`).

#![forbid(unsafe_code)]

mod arguments;
mod derive;
mod inbound;
pub mod iptables;
pub mod nftables;
mod outbound;
pub mod ruleset;
mod settings;
mod zones;

pub use arguments::{ArgumentError, COMMAND};
pub use ruleset::{Family, Ruleset};
pub use settings::{
    CLIENT_MARK, Capture, DnsCapture, OWN_PORTS, PROXY_DSCP, PROXY_MARK, PROXY_USER, Ports, ProxyIdentity,
};
