//! The flags of `evenkeel echo`: those of `fortio server`.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use evenkeel_loadtest::go_numbers::parse_duration;

/// The command line of `evenkeel echo`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct EchoArguments {
    /// Port for HTTP/1.1 and HTTP/2.
    #[arg(long, value_name = "PORT", default_value = "8080", value_parser = listener)]
    pub http_port: Listener,

    /// Port for gRPC: Fortio's ping and the health check.
    #[arg(long, value_name = "PORT", default_value = "8079", value_parser = listener)]
    pub grpc_port: Listener,

    /// Port for bytes over TCP.
    #[arg(long, value_name = "PORT", default_value = "8078", value_parser = listener)]
    pub tcp_port: Listener,

    /// Port for datagrams.
    #[arg(long, value_name = "PORT", default_value = "8078", value_parser = listener)]
    pub udp_port: Listener,

    /// Forward the connections to a port: "PORT HOST:PORT"; may be repeated.
    #[arg(short = 'P', value_name = "PORT TARGET", value_parser = forward)]
    pub proxies: Vec<Forward>,

    /// The server's certificate: HTTP and gRPC are then over TLS.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// The key of the certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// Certificates of the authorities that clients are verified with.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Require a client's certificate, signed by -cacert.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub mtls: bool,

    /// Longest delay that a request may ask for.
    #[arg(long, value_name = "DURATION", default_value = "1.5s", value_parser = parse_duration)]
    pub max_echo_delay: Duration,

    /// Largest response that a request may ask for, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 256)]
    pub maxpayloadsizekb: usize,

    /// Path that shows the request; empty: none.
    #[arg(long, value_name = "PATH", default_value = "/debug")]
    pub echo_debug_path: String,

    /// The query of requests without one, such as "status=404&delay=3s".
    #[arg(long, value_name = "QUERY", default_value = "")]
    pub echo_server_default_params: String,
}

const EXAMPLES: &str = "\
Flags may have one dash, as Fortio's: -http-port 8080. A port may be PORT, HOST:PORT or `disabled`.

Requests say in their query how they are answered:
  /echo?status=503:5,404:10        5 % of the responses are 503, 10 % are 404, the others 200
  /echo?delay=100us:90,1s:10       90 % of the responses are late by 100 µs, 10 % by 1 s
  /echo?size=1024&close=true&header=x-a:b";

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// Nowhere.
    Disabled,
    /// At this address.
    At(SocketAddr),
}

/// A port whose connections are forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// The port.
    pub listener: Listener,
    /// Where they go: `HOST:PORT`.
    pub target: String,
}

fn listener(text: &str) -> Result<Listener, String> {
    if text == "disabled" {
        return Ok(Listener::Disabled);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(Listener::At((Ipv6Addr::UNSPECIFIED, port).into()));
    }
    let text = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    text.parse().map(Listener::At).map_err(|_| "expected PORT, IP:PORT or disabled".to_owned())
}

fn forward(text: &str) -> Result<Forward, String> {
    let (port, target) = text.split_once(' ').ok_or("expected \"PORT HOST:PORT\"")?;
    if target.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(format!("{target:?}: expected HOST:PORT"));
    }
    Ok(Forward { listener: listener(port)?, target: target.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_several_forms() {
        let check = |text: &str, expected: Option<&str>| {
            let found = listener(text).ok().map(|listener| match listener {
                Listener::At(address) => address.to_string(),
                Listener::Disabled => "disabled".to_owned(),
            });
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("8080", Some("[::]:8080"));
        check("127.0.0.1:80", Some("127.0.0.1:80"));
        check("localhost:80", Some("127.0.0.1:80"));
        check("disabled", Some("disabled"));
        check("x", None);
        check("70000", None);
        assert_eq!(forward("90 a:80").map(|forward| forward.target), Ok("a:80".to_owned()));
        assert!(forward("90").is_err() && forward("90 a").is_err());
    }
}
