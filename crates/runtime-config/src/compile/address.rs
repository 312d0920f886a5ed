//! `core.v3.Address`, CIDR ranges, bind configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::google::protobuf::UInt32Value;
use ipnet::IpNet;

use super::Cx;
use crate::address::{EndpointAddress, ListenAddress};
use crate::bind::{BindConfig, SocketOption};
use crate::cluster::TcpKeepalive;

/// The IP address and port of a TCP address.
pub(crate) fn socket_address(cx: &mut Cx<'_>, field: &str, address: &core::SocketAddress) -> Option<SocketAddr> {
    if address.protocol != core::socket_address::Protocol::Tcp as i32 {
        return cx.at(field, |cx| cx.fail_at("protocol", "only TCP is supported"));
    }
    socket_address_of(cx, field, address)
}

/// The IP address and port of an address of any protocol.
fn socket_address_of(cx: &mut Cx<'_>, field: &str, address: &core::SocketAddress) -> Option<SocketAddr> {
    cx.at(field, |cx| {
        let ip = ip(cx, "address", &address.address)?;
        Some(SocketAddr::new(ip, port(cx, address)?))
    })
}

/// The `address` field of a listener, and the permissions of its file, if it is one.
pub(crate) fn listen_address(cx: &mut Cx<'_>, address: Option<&core::Address>) -> Option<(ListenAddress, Option<u32>)> {
    let address = cx.required("address", address)?;
    cx.at("address", |cx| match &address.address {
        Some(core::address::Address::SocketAddress(address)) => {
            let listen = if address.protocol == core::socket_address::Protocol::Udp as i32 {
                ListenAddress::Datagram
            } else {
                ListenAddress::Socket
            };
            Some((listen(socket_address_of(cx, "socket_address", address)?), None))
        }
        Some(core::address::Address::Pipe(pipe)) => cx.at("pipe", |cx| {
            let path = pipe_path(cx, &pipe.path)?;
            let is_abstract = path.starts_with('@');
            if pipe.mode > MAX_FILE_MODE || is_abstract && pipe.mode != 0 {
                return cx.fail_at("mode", "permissions are 0 to 0777, and an abstract socket has none");
            }
            Some((ListenAddress::Pipe(path.into()), Some(pipe.mode).filter(|mode| *mode != 0)))
        }),
        _ => cx.fail("must be a socket_address or a pipe"),
    })
}

/// The address of the admin interface: IP and port.
pub(crate) fn admin_address(cx: &mut Cx<'_>, address: Option<&core::Address>) -> Option<SocketAddr> {
    let (address, _) = listen_address(cx, address)?;
    match address.socket() {
        Some(address) => Some(address),
        None => cx.fail_at("address", "must be a socket_address"),
    }
}

/// The `address` field of an endpoint.
pub(crate) fn endpoint_address(cx: &mut Cx<'_>, address: Option<&core::Address>) -> Option<EndpointAddress> {
    let address = cx.required("address", address)?;
    cx.at("address", |cx| match &address.address {
        Some(core::address::Address::SocketAddress(address)) => {
            socket_address(cx, "socket_address", address).map(EndpointAddress::Socket)
        }
        Some(core::address::Address::Pipe(pipe)) => {
            let path = cx.at("pipe", |cx| pipe_path(cx, &pipe.path))?;
            Some(EndpointAddress::Pipe(PathBuf::from(path)))
        }
        _ => cx.fail("must be a socket_address or a pipe"),
    })
}

/// Maximum length of a Unix socket's path, in bytes: `sun_path` has 108, and the last one terminates the text (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// All permissions for all users.
const MAX_FILE_MODE: u32 = 0o777;

/// The path of a Unix socket, or the name of an abstract one after `@`.
fn pipe_path<'p>(cx: &mut Cx<'_>, path: &'p str) -> Option<&'p str> {
    let path = cx.non_empty("path", path)?;
    if path.len() > MAX_SOCKET_PATH_BYTES || path == "@" {
        let reason = format!("a Unix socket's path has 1 to {MAX_SOCKET_PATH_BYTES} bytes, not {}", path.len());
        return cx.fail_at("path", reason);
    }
    if path.contains('\0') {
        return cx.fail_at("path", "a path has no zero byte; an abstract socket is written `@NAME`");
    }
    Some(path)
}

pub(crate) fn ip(cx: &mut Cx<'_>, field: &str, text: &str) -> Option<IpAddr> {
    match text.parse() {
        Ok(ip) => Some(ip),
        Err(_) => cx.fail_at(field, format!("{text:?} is not an IP address")),
    }
}

/// `port_value` of an address.
pub(crate) fn port(cx: &mut Cx<'_>, address: &core::SocketAddress) -> Option<u16> {
    match address.port_specifier {
        Some(core::socket_address::PortSpecifier::PortValue(port)) => port_number(cx, "port_value", port),
        _ => cx.fail_at("port_value", "is required"),
    }
}

/// A number that must be a valid port.
pub(crate) fn port_number(cx: &mut Cx<'_>, field: &str, port: u32) -> Option<u16> {
    match u16::try_from(port) {
        Ok(port) => Some(port),
        Err(_) => cx.fail_at(field, format!("{port} is beyond 65535")),
    }
}

/// A CIDR range; host bits are cleared.
pub(crate) fn cidr(cx: &mut Cx<'_>, range: &core::CidrRange) -> Option<IpNet> {
    let address = ip(cx, "address_prefix", &range.address_prefix)?;
    let length = range.prefix_len.as_ref().map_or(0, |length| length.value);
    match u8::try_from(length).map(|length| IpNet::new(address, length)) {
        Ok(Ok(net)) => Some(net.trunc()),
        _ => cx.fail_at("prefix_len", format!("{length} is too long for {address}")),
    }
}

/// Source address and socket options of upstream connections.
pub(crate) fn bind_config(cx: &mut Cx<'_>, bind: &core::BindConfig) -> Option<BindConfig> {
    let source = match &bind.source_address {
        Some(address) => Some(socket_address(cx, "source_address", address)?),
        None => None,
    };
    let socket_options = cx.each("socket_options", &bind.socket_options, socket_option);
    Some(BindConfig {
        source: source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified()),
        source_port: source.map_or(0, |source| source.port()),
        socket_options,
    })
}

fn socket_option(cx: &mut Cx<'_>, option: &core::SocketOption) -> Option<SocketOption> {
    let Some(core::socket_option::Value::IntValue(value)) = option.value else {
        return cx.fail_at("int_value", "is required");
    };
    if option.state != core::socket_option::SocketState::StatePrebind as i32 {
        return cx.fail_at("state", "only STATE_PREBIND is supported");
    }
    let (level, name) = (options_number(cx, "level", option.level), options_number(cx, "name", option.name));
    Some(SocketOption { level: level?, name: name?, value: option_value(cx, value)? })
}

/// The level or the name of an option.
pub(super) fn options_number(cx: &mut Cx<'_>, field: &str, number: i64) -> Option<i32> {
    cx.check(field, i32::try_from(number))
}

/// The value of an option. A mark (`SO_MARK`) is an unsigned 32-bit number to the kernel.
pub(super) fn option_value(cx: &mut Cx<'_>, value: i64) -> Option<i32> {
    let value = i32::try_from(value).ok().or_else(|| u32::try_from(value).ok().map(u32::cast_signed));
    value.or_else(|| cx.fail_at("int_value", "does not fit 32 bits"))
}

/// Keep-alive probes.
pub(crate) fn tcp_keepalive(keepalive: &core::TcpKeepalive) -> TcpKeepalive {
    let seconds = |value: &Option<UInt32Value>| {
        value.as_ref().map(|value| std::time::Duration::from_secs(u64::from(value.value)))
    };
    TcpKeepalive {
        probes: keepalive.keepalive_probes.as_ref().map(|probes| probes.value),
        time: seconds(&keepalive.keepalive_time),
        interval: seconds(&keepalive.keepalive_interval),
    }
}

/// The bytes of a `DataSource`.
pub(crate) fn data_source(cx: &mut Cx<'_>, field: &str, source: Option<&core::DataSource>) -> Option<Vec<u8>> {
    use core::data_source::Specifier;
    let source = cx.required(field, source)?;
    cx.at(field, |cx| match &source.specifier {
        Some(Specifier::InlineString(text)) => Some(text.clone().into_bytes()),
        Some(Specifier::InlineBytes(bytes)) => Some(bytes.clone()),
        Some(Specifier::Filename(path)) => {
            cx.reads_files = true;
            match (cx.env.read_file)(path.as_ref()) {
                Ok(bytes) => Some(bytes),
                Err(error) => cx.fail_at("filename", format!("cannot read {path:?}: {error}")),
            }
        }
        Some(Specifier::EnvironmentVariable(name)) => match (cx.env.variable)(name) {
            Some(value) => Some(value.into_bytes()),
            None => cx.fail_at("environment_variable", format!("{name:?} is not set")),
        },
        None => cx.fail("one of filename, inline_bytes, inline_string, environment_variable is required"),
    })
}
