//! Both proxies of a sidecar pair for one request, with mutual TLS and shared HTTP/2 between them and a policy in the
//! server's.
//!
//! Requests come one after the other, so that each has TLS records of its own, which under load many share.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use evenkeel_load::backend;

use super::Counts;
use super::counted::{Counted, per_request};
use super::hop::{BODY_BYTES, connect_http1, exchange_http1};
use crate::config::{MutualTls, Protocol, Proxy};
use crate::peers::{certificates, free_address};
use crate::scenarios::pair::RULES;

/// Prefix of the names of its counts.
pub(super) const PREFIX: &str = "pair: ";
const CLIENT: &str = "pair: the client's proxy";
const SERVER: &str = "pair: the server's proxy";

/// Counts each of them.
pub fn count(folder: &Path) -> Result<Counts> {
    let upstream = free_address()?;
    std::thread::spawn(move || backend::http1::run(upstream, BODY_BYTES));
    let tls = certificates(folder)?;
    let [client, server] = of_pair(folder, &tls, upstream)?;
    Ok(Counts::from([(CLIENT.to_owned(), client), (SERVER.to_owned(), server)]))
}

fn of_pair(folder: &Path, tls: &MutualTls, upstream: SocketAddr) -> Result<[u64; 2]> {
    let (outer, inner) = (free_address()?, free_address()?);
    let server = Proxy {
        id: "server",
        listen: inner,
        admin: free_address()?,
        upstream,
        protocol: Protocol::Http1,
        downstream_tls: Some(tls),
        upstream_tls: None,
        rules: RULES,
        authorization: None,
        issuer: None,
        log: folder.join("server.log"),
    };
    let client = Proxy {
        id: "client",
        listen: outer,
        admin: free_address()?,
        upstream: inner,
        protocol: Protocol::Mesh,
        downstream_tls: None,
        upstream_tls: Some(tls),
        rules: 0,
        authorization: None,
        issuer: None,
        log: folder.join("client.log"),
    };
    let (server, client) = (Counted::start(folder, &server)?, Counted::start(folder, &client)?);
    let mut connection = connect_http1(outer)?;
    per_request("pair", [client, server], |requests| exchange_http1(&mut connection, requests))
}
