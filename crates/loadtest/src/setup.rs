//! From flags to a plan: what is sent where, how often, and by which protocol.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use crate::codec::{Codec, Echo, Http1, Http2, Http2Request, Reading};
use crate::flags::{Rate, RequestFlags, RunFlags};
use crate::grpc;
use crate::link::Connector;
use crate::live::{Audience, Progress};
use crate::request::{self, HttpRequest};
use crate::run::Settings;
use crate::schedule::Pace;
use crate::target::{Scheme, Target};
use crate::tls;
use crate::worker::Plan;

/// The least number of calls of each caller, if they are limited; with fewer there are fewer callers.
const LEAST_CALLS: u64 = 2;

/// The protocol of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1.
    Http1(HttpRequest),
    /// HTTP/2.
    Http2(HttpRequest),
    /// gRPC: a ping, or a health check.
    Grpc {
        /// The call.
        request: HttpRequest,
        /// Whether it is a ping.
        is_ping: bool,
    },
    /// Bytes that come back, with this payload.
    Echo(Option<Vec<u8>>),
}

impl Protocol {
    /// Whether responses have a status of HTTP.
    pub fn is_http(&self) -> bool {
        matches!(self, Self::Http1(_) | Self::Http2(_))
    }
}

/// A run, ready to begin.
#[derive(Debug)]
pub struct Setup {
    /// What is sent where.
    pub plan: Arc<Plan>,
    /// The protocol.
    pub protocol: Protocol,
    /// Threads and warm-up.
    pub settings: Settings,
    /// What the user has to know about the flags.
    pub warnings: Vec<String>,
}

impl Setup {
    /// What the flags describe, for somebody who looks at it while it goes on.
    ///
    /// # Errors
    /// A flag's value is wrong; says which.
    pub fn new(target: &Target, request: &RequestFlags, run: &RunFlags, audience: Audience) -> Result<Self, String> {
        let mut warnings: Vec<String> = request.without_effect().into_iter().map(str::to_owned).collect();
        let protocol = protocol(target, request, run)?;
        let connector = connector(target, request, run)?;
        let streams = streams(run, &protocol)?;
        let pace = pace(run)?;
        let callers = callers(run.connections.max(1) * streams, &pace, &mut warnings);
        let datagrams = connector.datagrams;
        let plan = Plan {
            pace,
            callers,
            streams,
            connector,
            timeout: if datagrams { request.udp_timeout } else { request.timeout },
            abort_on: run.abort_on,
            from_sent: run.latency_from_sent,
            stop: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            progress: Progress::new(audience),
        };
        let cores = available_parallelism().map_or(1, usize::from);
        let threads = usize::try_from(run.gomaxprocs).ok().filter(|threads| *threads > 0).unwrap_or(cores);
        let warms_up = run.exactly == 0 && !matches!(protocol, Protocol::Echo(_));
        let settings = Settings { threads, warms_up, allows_initial_errors: run.allow_initial_errors };
        Ok(Self { plan: Arc::new(plan), protocol, settings, warnings })
    }

    /// Makes the protocol's state of a connection.
    pub fn codecs(&self, flags: &RequestFlags) -> Box<dyn Fn() -> Codec + Sync> {
        let http2 = |request: &HttpRequest, reading: Reading| -> Box<dyn Fn() -> Codec + Sync> {
            let request = Arc::new(Http2Request::new(request, self.plan.connector.tls.is_some(), reading));
            Box::new(move || Codec::Http2(Box::new(Http2::new(request.clone()))))
        };
        match &self.protocol {
            Protocol::Http2(request) => http2(request, Reading::Http),
            Protocol::Grpc { request, is_ping } => http2(request, grpc::reading(*is_ping)),
            Protocol::Http1(request) => {
                let request = Arc::new(request.http1(flags));
                Box::new(move || Codec::Http1(Http1::new(request.clone())))
            }
            Protocol::Echo(payload) => {
                let payload: Option<Arc<[u8]>> = payload.clone().map(Arc::from);
                Box::new(move || Codec::Echo(Echo::new(payload.clone())))
            }
        }
    }
}

fn protocol(target: &Target, flags: &RequestFlags, run: &RunFlags) -> Result<Protocol, String> {
    Ok(match target.scheme {
        Scheme::Tcp | Scheme::Udp => Protocol::Echo(request::payload(flags)?),
        Scheme::Http | Scheme::Https if run.grpc => {
            Protocol::Grpc { request: grpc::request(target, flags, run)?, is_ping: run.ping }
        }
        Scheme::Http | Scheme::Https if flags.h2 => Protocol::Http2(HttpRequest::new(target, flags)?),
        Scheme::Http | Scheme::Https => Protocol::Http1(HttpRequest::new(target, flags)?),
    })
}

/// The number of callers on each connection.
fn streams(run: &RunFlags, protocol: &Protocol) -> Result<usize, String> {
    let many = matches!(protocol, Protocol::Http2(_) | Protocol::Grpc { .. });
    if run.streams > 1 && !many {
        return Err("-s needs -grpc or -h2".to_owned());
    }
    Ok(run.streams.max(1))
}

fn connector(target: &Target, request: &RequestFlags, run: &RunFlags) -> Result<Connector, String> {
    let tls = uses_tls(target, request, run)
        .then(|| tls::target(target, request, if run.grpc || request.h2 { &["h2"] } else { &["http/1.1"] }))
        .transpose()?;
    Ok(Connector {
        addresses: target.addresses(request.resolve_ip_type, request.resolve)?.into(),
        tls,
        datagrams: target.scheme == Scheme::Udp,
        reuse: run.connection_reuse.as_deref().map(reuse).transpose()?,
    })
}

/// Fortio's gRPC is over TLS also if the target has no protocol and there are certificates for it.
fn uses_tls(target: &Target, request: &RequestFlags, run: &RunFlags) -> bool {
    target.scheme == Scheme::Https || run.grpc && (request.cacert.is_some() || request.insecure)
}

/// A range of requests on a connection: `10:30`, or `10` for just that.
pub fn reuse(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    let range = min.parse().ok().zip(max.parse().ok()).map(|(min, max)| min..=max);
    let range = range.filter(|range: &RangeInclusive<u32>| *range.start() > 0 && !range.is_empty());
    range.ok_or_else(|| format!("-connection-reuse {text:?}: expected min:max"))
}

fn pace(run: &RunFlags) -> Result<Pace, String> {
    let exactly = Some(run.exactly).filter(|calls| *calls > 0);
    let duration = Some(run.duration).filter(|duration| !duration.is_zero());
    let rate = match (run.calc_qps, exactly, duration) {
        (true, Some(calls), Some(duration)) => Some(calls as f64 / duration.as_secs_f64()),
        (true, _, _) => return Err("-calc-qps needs -n and -t".to_owned()),
        (false, _, _) => match run.qps {
            Rate::PerSecond(rate) => Some(rate),
            Rate::Max => None,
        },
    };
    let (jitter, uniform, no_catch_up) = (run.jitter, run.uniform, run.nocatchup);
    Ok(Pace { rate, exactly, duration, jitter, uniform, no_catch_up })
}

/// The number of callers: fewer than connections were asked for, if there are not two calls for each.
fn callers(asked_for: usize, pace: &Pace, warnings: &mut Vec<String>) -> usize {
    let by_time = || Some((pace.rate? * pace.duration?.as_secs_f64()) as u64);
    let (Some(calls), Some(_)) = (pace.exactly.or_else(by_time), pace.rate) else {
        return match pace.exactly {
            Some(calls) => asked_for.min(usize::try_from(calls).unwrap_or(usize::MAX)),
            None => asked_for,
        };
    };
    let most = usize::try_from(calls / LEAST_CALLS).unwrap_or(usize::MAX).max(1);
    if most < asked_for {
        warnings.push(format!("{calls} calls: lowering the number of callers from {asked_for} to {most}"));
    }
    asked_for.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_requests_is_read() {
        for (text, range) in [("10:30", Some(10..=30)), ("5", Some(5..=5)), ("0:1", None), ("3:2", None), ("a:b", None)]
        {
            assert_eq!(reuse(text).ok(), range, "{text}");
        }
    }
}
