//! `evenkeel proxy-config`: what a running proxy says of itself on its admin port.
//!
//! | question | file |
//! |---|---|
//! | which proxy answers, and how is the answer shown? | `target.rs` |
//! | the subcommands | `command.rs`, those with tables `tables.rs` |
//! | where is a kind of resources in `/config_dump`? | `dump.rs` |
//! | what is in a table's row? | `clusters.rs`, `listeners.rs`, `routes.rs`, `endpoints.rs`, `secrets.rs` |

mod clusters;
pub mod command;
mod dump;
mod endpoints;
mod listeners;
pub mod log;
mod routes;
mod secrets;
pub mod tables;
pub mod target;

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use evenkeel_admin::client::Address;
use evenkeel_explain::columns::columns_within;
use evenkeel_local::exec::ReplicaInfo;

use crate::admin;
use crate::formats::width;
use crate::in_cluster::ClusterMesh;

/// How long a proxy may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How much longer than its recording a profile may take: names are looked up in large files.
const PROFILE_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum size of a body that is sent, in bytes.
const MAX_BODY_BYTES: u64 = 1024 * 1024;

/// How long a program may take to answer a request for this page.
pub fn patience(page: &str) -> Duration {
    let Some(page) = page.strip_prefix(evenkeel_profile::PREFIX) else { return PATIENCE };
    let query = page.split_once('?').map_or("", |(_, query)| query);
    // The answer to a query that is not valid comes at once.
    PROFILE_PATIENCE + Duration::from_secs(evenkeel_profile::seconds(query).unwrap_or_default())
}

/// Prints the load of each worker, and how uneven it is.
pub fn workers(address: impl Into<Address>, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let page = if json { "/workers?format=json" } else { "/workers" };
    let body = admin::get(admin::PROXY, address, page)?;
    let text = String::from_utf8_lossy(&body);
    if json || text.lines().all(|line| line.chars().count() <= width()) {
        out.write_all(&body)?
    } else {
        out.write_all(narrow(&text, width()).as_bytes())?
    }
    Ok(())
}

/// Prints the same for the proxies of a cluster that a name means, each under its name.
pub fn workers_of_cluster(mesh: &ClusterMesh, wanted: &str, namespace: Option<&str>, json: bool) -> anyhow::Result<u8> {
    for ReplicaInfo { namespace, pod, .. } in mesh.replicas(wanted, namespace)? {
        if !json {
            writeln!(io::stdout(), "{pod}.{namespace}:")?;
        }
        workers(mesh.proxy(&namespace, &pod)?, json, &mut io::stdout().lock())?;
    }
    Ok(0)
}

/// A page with a table, for a terminal that is too narrow for it.
fn narrow(page: &str, width: usize) -> String {
    let rows: Vec<Vec<String>> =
        page.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    columns_within(&rows, 2, width)
}

/// Prints a page as the proxy sends it. `post`: with what standard input has as the request's body.
pub fn page(address: impl Into<Address>, page: &str, post: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let page = if page.starts_with('/') { page.to_owned() } else { format!("/{page}") };
    let is_plain = page.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(is_plain, "`{}` is not a path: write other characters as %XX", page.escape_debug());
    let body = if post {
        let mut body = Vec::new();
        io::stdin().lock().take(MAX_BODY_BYTES).read_to_end(&mut body).context("reading standard input")?;
        admin::post_within(PATIENCE, admin::PROXY, address, (&page, &body))?
    } else {
        admin::get_within(patience(&page), admin::PROXY, address, &page)?
    };
    out.write_all(&body)?;
    Ok(())
}

/// Prints the same for all proxies of a mesh, each under its name. A process for each proxy enters the proxy's network
/// namespace and asks it.
pub fn of_all(program: &Path, state: &Path, replicas: &[ReplicaInfo], json: bool) -> anyhow::Result<u8> {
    let mut status = 0;
    for ReplicaInfo { namespace, pod, .. } in replicas {
        if !json {
            writeln!(io::stdout(), "{pod}.{namespace}:")?;
        }
        let mut command = Command::new(program);
        command.args(["proxy-config", "workers", pod, "--namespace", namespace, "--state"]).arg(state);
        command.args(json.then_some("--json"));
        let ended = command.status().with_context(|| format!("running {}", program.display()))?;
        status = status.max(u8::from(!ended.success()));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns what is printed for this answer of the admin port.
    fn printed(answer: &'static str) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let admin = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("a request");
                request.extend(byte);
            }
            assert!(request.starts_with(b"GET /workers HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).expect("it reads");
        });
        let mut out = Vec::new();
        let result = workers(admin, false, &mut out);
        server.join().expect("the request was as expected");
        result.map(|()| String::from_utf8(out).expect("text")).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_wide_table_takes_several_lines_on_a_narrow_terminal() {
        let page = "  worker  connections_active  busy_%\n       0                   2     0.1\nmax/mean                1.00       -\n";
        let expected = "worker    connections_active\n    busy_%\n0         2\n    0.1\nmax/mean  1.00\n    -\n";
        assert_eq!(narrow(page, 30), expected);
    }

    #[test]
    fn prints_what_the_proxy_says() {
        assert_eq!(printed("HTTP/1.0 200 OK\r\na: b\r\n\r\nworker 0\n").as_deref(), Ok("worker 0\n"));
        let refused = printed("HTTP/1.0 404 Not Found\r\n\r\nno such page\n").expect_err("refused");
        assert!(refused.ends_with(" answers 404: no such page"), "{refused}");
        assert!(printed("SSH-2.0\r\n\r\n").is_err());
    }
}
