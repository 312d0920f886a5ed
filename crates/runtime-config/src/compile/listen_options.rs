//! Options of listening sockets: `socket_options` of listeners, and the fields that stand for one.

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::core::v3::socket_option::{SocketState as WireState, Value};
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;

use super::Cx;
use super::address::{option_value, options_number};
use crate::address::ListenAddress;
use crate::bind::{ListenOption, SocketState};

// Linux's numbers.
const IPPROTO_IP: i32 = 0;
const IP_FREEBIND: i32 = 15;
const IPPROTO_IPV6: i32 = 41;
const IPV6_FREEBIND: i32 = 78;
const IPPROTO_TCP: i32 = 6;
const TCP_FASTOPEN: i32 = 23;

/// All options of a listener's sockets, in the order in which they are set.
/// `own`: `socket_options` of this address.
pub(super) fn listen_options(
    cx: &mut Cx<'_>,
    listener: &Listener,
    address: &ListenAddress,
    own: &[core::SocketOption],
) -> Vec<ListenOption> {
    if let ListenAddress::Pipe(_) = address {
        refuse_all(cx, listener);
        return Vec::new();
    }
    let mut options = Vec::new();
    if listener.freebind.as_ref().is_some_and(|freebind| freebind.value) {
        let (level, name) = match address {
            ListenAddress::Socket(at) | ListenAddress::Datagram(at) if at.is_ipv6() => (IPPROTO_IPV6, IPV6_FREEBIND),
            _ => (IPPROTO_IP, IP_FREEBIND),
        };
        options.push(ListenOption { level, name, value: number(1), state: SocketState::Prebind });
    }
    if let Some(length) = &listener.tcp_fast_open_queue_length {
        match (address, i32::try_from(length.value)) {
            (ListenAddress::Socket(_), Ok(length)) => {
                let (level, name) = (IPPROTO_TCP, TCP_FASTOPEN);
                options.push(ListenOption { level, name, value: number(length), state: SocketState::Listening });
            }
            (_, Ok(_)) => _ = cx.fail_at::<()>("tcp_fast_open_queue_length", "needs an address of TCP"),
            (_, Err(_)) => _ = cx.fail_at::<()>("tcp_fast_open_queue_length", "does not fit 31 bits"),
        }
    }
    let is_udp = matches!(address, ListenAddress::Datagram(_));
    options.extend(cx.each("socket_options", own, |cx, option| listen_option(cx, option, is_udp)));
    options
}

fn refuse_all(cx: &mut Cx<'_>, listener: &Listener) {
    let set = [
        ("freebind", listener.freebind.is_some()),
        ("tcp_fast_open_queue_length", listener.tcp_fast_open_queue_length.is_some()),
        ("socket_options", !listener.socket_options.is_empty()),
    ];
    for (field, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
        cx.fail_at::<()>(field, "is not supported on a Unix socket");
    }
}

fn listen_option(cx: &mut Cx<'_>, option: &core::SocketOption, is_udp: bool) -> Option<ListenOption> {
    let state = match WireState::try_from(option.state) {
        Ok(WireState::StatePrebind) => SocketState::Prebind,
        Ok(WireState::StateBound) => SocketState::Bound,
        Ok(WireState::StateListening) if is_udp => return cx.fail_at("state", "a socket of UDP does not listen"),
        Ok(WireState::StateListening) => SocketState::Listening,
        Err(_) => return cx.fail_at("state", format!("unknown value {}", option.state)),
    };
    let value = match &option.value {
        Some(Value::IntValue(value)) => number(option_value(cx, *value)?),
        Some(Value::BufValue(bytes)) => bytes.as_slice().into(),
        None => return cx.fail("one of int_value, buf_value is required"),
    };
    let (level, name) = (options_number(cx, "level", option.level), options_number(cx, "name", option.name));
    Some(ListenOption { level: level?, name: name?, value, state })
}

/// An integer as the kernel reads it.
fn number(value: i32) -> Box<[u8]> {
    Box::new(value.to_ne_bytes())
}
