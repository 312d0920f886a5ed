//! `evenkeel load serve`: a page that starts runs and shows them while they go on, and Fortio's REST interface.
//!
//! A request goes from [`access`], which refuses what other web pages send, over [`routes`] to [`runs`], which has the runs that go on
//! and the last results, or to [`saved`], the results in files. [`parameters`] makes flags of a request's parameters.

mod access;
mod parameters;
mod routes;
mod runs;
mod saved;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::error::Error;
use routes::Pages;

pub const EXAMPLES: &str = "\
Examples:
  evenkeel load serve -data-dir results
  curl 'http://localhost:8080/fortio/rest/run?url=http://localhost:9080/&qps=100&t=10s&c=4'";

/// Flags of `evenkeel load serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArguments {
    /// Where to listen: a port of 127.0.0.1, or ADDRESS:PORT. Whoever reaches it can send load from this machine.
    #[arg(long, value_name = "PORT", default_value = "8080", value_parser = parse_listener)]
    pub http_port: SocketAddr,

    /// A name by which browsers and programs reach this server, beside localhost and addresses; may be repeated.
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,

    /// Directory of results: those in it are shown, and `save=on` writes there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data_dir: PathBuf,

    /// Maximum number of runs at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub max_runs: usize,

    /// Maximum number of connections of a run.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub max_connections: usize,
}

/// A port of loopback, or an address with a port.
fn parse_listener(text: &str) -> Result<SocketAddr, String> {
    let of_loopback = || text.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let listener = text.parse().ok().or_else(of_loopback);
    listener.ok_or_else(|| "expected a port, or an address with a port such as 127.0.0.1:8080".to_owned())
}

/// Serves until the process ends.
///
/// # Errors
/// The port is not free, or the directory of results cannot be read.
pub fn run(arguments: &ServeArguments, text: &mut dyn Write) -> Result<(), Error> {
    let failed = |action: String| move |source: io::Error| Error::Serve { action, source };
    let folder = arguments.data_dir.display();
    std::fs::read_dir(&arguments.data_dir).map_err(failed(format!("reading {folder}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("starting the server".to_owned()))?;
    runtime.block_on(async {
        let listening = failed(format!("listening on {}", arguments.http_port));
        let listener = TcpListener::bind(arguments.http_port).await.map_err(listening)?;
        let address = listener.local_addr().unwrap_or(arguments.http_port);
        _ = writeln!(text, "Evenkeel {} serves load tests at http://{address}/fortio/", env!("CARGO_PKG_VERSION"));
        if !address.ip().is_loopback() {
            _ = writeln!(text, "warning: whoever reaches {address} can send load from this machine");
        }
        _ = text.flush();
        accept(listener, Arc::new(Pages::new(arguments, address))).await;
        Ok(())
    })
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    loop {
        // Without descriptors accept fails at once: it is tried again when others had their turn.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let pages = pages.clone();
                async move { Ok::<_, std::convert::Infallible>(pages.respond(request).await) }
            });
            // An error is the client's: it sees it, too.
            _ = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_loopback() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse_listener(text).ok().map(|address| address.to_string()).as_deref(), expected, "{text}");
        };
        check("8080", Some("127.0.0.1:8080"));
        check("0.0.0.0:80", Some("0.0.0.0:80"));
        check("[::1]:80", Some("[::1]:80"));
        check("localhost:80", None);
        check("70000", None);
    }
}
