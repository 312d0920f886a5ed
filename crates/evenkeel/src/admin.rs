//! Fetches a page of a running program over HTTP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use evenkeel_admin::client::{self, Address, ClientError};
use evenkeel_agent::options::ADMIN_PORT;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::{exec, pages};
use serde::de::DeserializeOwned;

use crate::in_cluster::ControlPlaneChoice;

/// Time limit of a connection, and of an answer, unless the request is known to take long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection to the own machine may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The kind of program that is asked.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    name: &'static str,
    flag: &'static str,
}

/// A control plane, on its HTTP port.
pub const CONTROL_PLANE: Program = Program { name: "the control plane's HTTP port", flag: "--control-plane" };
/// A proxy, on its admin port.
pub const PROXY: Program = Program { name: "the proxy's admin port", flag: "--admin" };

/// The default address of a proxy's admin port: beside a proxy of `up` that has another, that one.
pub fn default_proxy() -> SocketAddr {
    let of_replica = std::env::var(exec::ADMIN_VARIABLE).ok().and_then(|address| address.parse().ok());
    of_replica.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, ADMIN_PORT).into())
}

/// `HOST:PORT`, or the address of a page.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let plain = text.strip_prefix("http://").unwrap_or(text);
    let plain = plain.split('/').next().unwrap_or_default();
    let found = plain.to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => format!("`{text}` is not HOST:PORT"),
        _ => format!("`{text}`: {error}"),
    })?;
    // `localhost` may resolve to ::1 first, but these ports are on 127.0.0.1 by default.
    found.min_by_key(|address| !address.is_ipv4()).ok_or_else(|| format!("`{text}` has no address"))
}

/// Which control planes to ask: the given ones; those of the cluster that flags name; that of the mesh with this state directory; that
/// of the mesh that runs on this machine, or one that runs here on its own; or else those of the cluster that kubectl would use.
pub fn control_planes(
    given: &[SocketAddr],
    state: Option<&Path>,
    in_cluster: &ControlPlaneChoice,
) -> anyhow::Result<Vec<Address>> {
    if !given.is_empty() {
        return Ok(given.iter().copied().map(Address::Tcp).collect());
    }
    if in_cluster.cluster.is_given() {
        return in_cluster.addresses();
    }
    let of_machine = control_plane_of_machine(state)?;
    if state.is_none() && in_cluster.cluster.is_named() && !accepts(of_machine) {
        return in_cluster.addresses();
    }
    Ok(vec![of_machine.into()])
}

/// Like [`control_planes`], but one of them.
pub fn control_plane(
    given: Option<SocketAddr>,
    state: Option<&Path>,
    in_cluster: &ControlPlaneChoice,
) -> anyhow::Result<Address> {
    let all = control_planes(given.as_slice(), state, in_cluster)?;
    all.into_iter().next().context("there is no control plane")
}

/// The control plane of the mesh with this state directory, that of the mesh that runs on this machine, or the usual address.
pub fn control_plane_of_machine(state: Option<&Path>) -> anyhow::Result<SocketAddr> {
    match state {
        Some(state) => pages::of_run(state)
            .with_context(|| format!("no mesh is running with the state directory {}", state.display())),
        None => {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, pages::USUAL_PORT));
            Ok(pages::of_run(&StateDir::default_path()).unwrap_or(usual))
        }
    }
}

/// Whether somebody listens at this address of the own machine.
fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, PROBE_TIMEOUT).is_ok()
}

/// The body of a page; any status but 200 is an error.
pub fn get(program: Program, address: impl Into<Address>, page: &str) -> anyhow::Result<Vec<u8>> {
    get_within(TIMEOUT, program, address, page)
}

/// Like [`get`], for a page that may take longer to make.
pub fn get_within(
    patience: Duration,
    program: Program,
    address: impl Into<Address>,
    page: &str,
) -> anyhow::Result<Vec<u8>> {
    exchange(patience, program, &address.into(), (page, None))
}

/// The body of the answer to a body.
pub fn post_within(
    patience: Duration,
    program: Program,
    address: impl Into<Address>,
    (page, body): (&str, &[u8]),
) -> anyhow::Result<Vec<u8>> {
    exchange(patience, program, &address.into(), (page, Some(body)))
}

fn exchange(
    patience: Duration,
    program: Program,
    address: &Address,
    (page, body): (&str, Option<&[u8]>),
) -> anyhow::Result<Vec<u8>> {
    let Program { name, flag } = program;
    let response = client::blocking_page(address, page, body.map(Bytes::copy_from_slice), patience)
        .map_err(|error| match error {
            ClientError::TimedOut(patience) => anyhow!("no answer within {} s", patience.as_secs()),
            ClientError::Http(_) => anyhow::Error::new(error).context("it does not speak HTTP"),
            error => error.into(),
        })
        .with_context(|| match address {
            Address::Dialed(_) => format!("asking {name} {address} through the API server"),
            _ => format!("asking {name} {address} (another: {flag} HOST:PORT)"),
        })?;
    let body = response.body();
    if client::is_page(&response) {
        return Ok(body.to_vec());
    }
    bail!("{name} {address} answers {}: {}", response.status().as_u16(), String::from_utf8_lossy(body).trim_end())
}

/// A page of a control plane.
pub fn read<T: DeserializeOwned>(control_plane: impl Into<Address>, page: &str) -> anyhow::Result<T> {
    let control_plane = control_plane.into();
    let body = get(CONTROL_PLANE, control_plane.clone(), page)?;
    serde_json::from_slice(&body).map_err(|_| {
        anyhow!("{control_plane} is not the HTTP port of Evenkeel's control plane; for Istio's there is istioctl")
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn reads_addresses_as_they_are_copied() {
        let check = |text: &str, expected: Option<&str>| {
            let found = address(text).ok().map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("127.0.0.1:15014", Some("127.0.0.1:15014"));
        check("[::1]:80", Some("[::1]:80"));
        check("http://127.0.0.1:15014/debug/proxies", Some("127.0.0.1:15014"));
        assert!(address("localhost:15014").is_ok_and(|address| address.port() == 15014));
        check("15014", None);
        check("127.0.0.1", None);
        check("", None);
    }

    #[test]
    fn who_is_not_there_or_silent_is_named_with_the_way_out() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let said = |patience: Duration| {
            let result = get_within(patience, CONTROL_PLANE, address, "/ready");
            result.err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        let silent = said(Duration::from_millis(20));
        let asked = format!("asking the control plane's HTTP port {address} (another: --control-plane HOST:PORT): ");
        assert_eq!(silent, format!("{asked}no answer within 0 s"));
        drop(listener);
        let absent = said(TIMEOUT);
        assert!(absent.starts_with(&asked) && absent.contains("refused"), "{absent}");
        Ok(())
    }
}
