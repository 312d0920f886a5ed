//! One check of a workload's health.

use std::fmt;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_process::children::die_with_parent;
use evenkeel_tls::config::{CommonTlsContext, TlsParams, UpstreamTlsContext, Validation};
use evenkeel_tls::{SecretStore, UpstreamTls};
use http::{HeaderName, HeaderValue, Request, header};
use http_body_util::Empty;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

use super::config::{Exec, Grpc, HttpGet, ReadinessProbe, TcpSocket};
use super::{Health, grpc};
use crate::channel::dial;

/// The host of a check unless the probe sets one, as in Istio.
const HOST: &str = "localhost";
/// The user agent of HTTP checks, as in Istio.
const USER_AGENT: &str = "istio-probe/1.0";

/// The check to run.
#[derive(Debug)]
pub struct Prober {
    check: Check,
    /// The mark of its sockets.
    mark: Option<u32>,
}

#[derive(Debug)]
enum Check {
    Http { authority: String, request: Box<Request<Empty<Bytes>>>, tls: Option<Arc<UpstreamTls>> },
    Tcp { authority: String },
    Exec { program: String, arguments: Vec<String> },
    Grpc { authority: String, service: String },
}

impl Prober {
    /// Makes the check of a probe.
    ///
    /// # Errors
    /// What of the probe cannot be used.
    pub fn new(probe: &ReadinessProbe, mark: Option<u32>) -> Result<Self, String> {
        let check = match probe {
            ReadinessProbe { http_get: Some(get), .. } => http(get)?,
            ReadinessProbe { tcp_socket: Some(TcpSocket { host, port }), .. } => {
                Check::Tcp { authority: authority(host, *port) }
            }
            ReadinessProbe { exec: Some(Exec { command }), .. } => match command.split_first() {
                Some((program, arguments)) => Check::Exec { program: program.clone(), arguments: arguments.to_vec() },
                None => return Err("readinessProbe.exec.command is empty".to_owned()),
            },
            ReadinessProbe { grpc: Some(Grpc { port, service }), .. } => {
                Check::Grpc { authority: authority("", *port), service: service.clone() }
            }
            _ => return Err("readinessProbe has no check: expected httpGet, tcpSocket, exec or grpc".to_owned()),
        };
        Ok(Self { check, mark })
    }

    /// Checks once. The caller limits the time; a check that is dropped ends.
    pub async fn ask(&self) -> Health {
        let text = |error: &dyn fmt::Display| format!("{self}: {error}");
        match &self.check {
            Check::Tcp { authority } => dial(authority, self.mark).await.map(drop).map_err(|error| text(&error)),
            Check::Exec { program, arguments } => run(program, arguments).await.map_err(|error| text(&error)),
            Check::Grpc { authority, service } => {
                let stream = dial(authority, self.mark).await.map_err(|error| text(&error))?;
                grpc::check(stream, authority, service).await.map_err(|error| text(&error))
            }
            Check::Http { authority, request, tls } => {
                let stream = dial(authority, self.mark).await.map_err(|error| text(&error))?;
                let request = Request::clone(request);
                let status = match tls {
                    None => get(TokioIo::new(stream), request).await,
                    Some(tls) => {
                        let stream = tls.connect(stream).await.map_err(|error| text(&error))?;
                        get(TokioIo::new(stream), request).await
                    }
                };
                match status.map_err(|error| text(&error))? {
                    200..400 => Ok(()),
                    status => Err(text(&format!("answers {status}"))),
                }
            }
        }
    }
}

/// `GET localhost:8080/healthz`, without anything of an answer.
impl fmt::Display for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.check {
            Check::Http { authority, request, .. } => write!(f, "GET {authority}{}", request.uri()),
            Check::Tcp { authority } => write!(f, "TCP {authority}"),
            Check::Exec { program, .. } => write!(f, "command {program}"),
            Check::Grpc { authority, .. } => write!(f, "gRPC {authority}"),
        }
    }
}

fn authority(host: &str, port: u16) -> String {
    match host {
        "" => format!("{HOST}:{port}"),
        host if host.parse::<std::net::Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

fn http(get: &HttpGet) -> Result<Check, String> {
    let (authority, path) = (authority(&get.host, get.port), if get.path.is_empty() { "/" } else { &get.path });
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request = Request::get(path).body(Empty::new()).map_err(|e| format!("readinessProbe.httpGet.path: {e}"))?;
    let own = HeaderValue::from_str(&authority).map_err(|error| format!("readinessProbe.httpGet.host: {error}"))?;
    let headers = request.headers_mut();
    headers.insert(header::HOST, own);
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    let given = get.http_headers.iter().map(|header| {
        let name = HeaderName::try_from(&header.name).map_err(|error| error.to_string())?;
        Ok((name, HeaderValue::try_from(&header.value).map_err(|error| error.to_string())?))
    });
    let given: Result<Vec<_>, String> = given.collect();
    for (name, value) in given.map_err(|error| format!("readinessProbe.httpGet.httpHeaders: {error}"))? {
        headers.insert(name, value);
    }
    let tls = match get.scheme.to_ascii_uppercase().as_str() {
        "" | "HTTP" => None,
        "HTTPS" => Some(Arc::new(tls(&get.host)?)),
        other => return Err(format!("readinessProbe.httpGet.scheme: `{other}` is neither HTTP nor HTTPS")),
    };
    Ok(Check::Http { authority, request: Box::new(request), tls })
}

/// Encryption without verification, as in Istio and Kubernetes: the workload may have any certificate.
fn tls(host: &str) -> Result<UpstreamTls, String> {
    let sni = match host {
        "" => HOST,
        host if host.parse::<IpAddr>().is_ok() => "",
        host => host,
    };
    let common = CommonTlsContext {
        certificates: Vec::new(),
        validation: Validation::None,
        alpn: vec!["http/1.1".into()],
        params: TlsParams::default(),
    };
    UpstreamTls::new(&UpstreamTlsContext { common, sni: sni.into() }, &SecretStore::new())
        .map_err(|error| error.to_string())
}

/// The status that a GET is answered with; the body is not read.
async fn get(stream: impl Read + Write + Unpin, request: Request<Empty<Bytes>>) -> Result<u16, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let answer = async { sender.send_request(request).await.map(|answer| answer.status().as_u16()) };
    // The connection makes progress only while it is polled; it ends with the answer.
    tokio::select! {
        biased;
        answer = answer => answer,
        Err(error) = connection => Err(error),
    }
}

/// Runs a command; an error unless it ends with status 0. What it prints is not read. If it is dropped, the command and what
/// it has started end.
async fn run(program: &str, arguments: &[String]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true);
    die_with_parent(command.as_std_mut());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let _group = child.id().and_then(|id| i32::try_from(id).ok()).map(ProcessGroup);
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

/// A process group that ends when it is dropped.
struct ProcessGroup(i32);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The group exists as long as one of its processes runs; otherwise there is nothing to end.
        let _ = killpg(Pid::from_raw(self.0), Signal::SIGKILL);
    }
}
