//! What was counted, as results and as text.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::flags::{RequestFlags, RunFlags};
use crate::go_numbers::{duration, shortest, significant};
use crate::histogram::{HistogramData, Ranges, Recorder};
use crate::outcome::Code;
use crate::request::HttpRequest;
use crate::results::{Additions, RunResult, id};
use crate::run::Measured;
use crate::setup::{Protocol, Setup};
use crate::target::{Scheme, Target};
use crate::text;

/// Ranges of sizes, in bytes, as Fortio's.
const SIZES: Ranges = Ranges { resolution: 100.0, offset: 0.0 };
const HEADER_SIZES: Ranges = Ranges { resolution: 5.0, offset: 0.0 };

/// A run, and what it was asked for.
pub struct Report<'r> {
    /// Where requests went.
    pub target: &'r Target,
    /// As the user wrote it.
    pub url: &'r str,
    /// Flags.
    pub request: &'r RequestFlags,
    /// Flags.
    pub run: &'r RunFlags,
    /// The plan.
    pub setup: &'r Setup,
    /// When it began.
    pub started: OffsetDateTime,
}

/// The first lines, before anything is sent.
pub fn announce(out: &mut dyn Write, report: &Report<'_>) -> io::Result<()> {
    let (plan, version) = (&report.setup.plan, env!("CARGO_PKG_VERSION"));
    let (pace, threads) = (&plan.pace, report.setup.settings.threads);
    let rate = pace.rate.map_or_else(|| "0".to_owned(), shortest);
    write!(out, "Evenkeel {version} running at {rate} queries per second, {threads}->{threads} procs, ")?;
    match (pace.exactly, pace.duration) {
        (Some(calls), _) => write!(out, "for {calls} calls")?,
        (None, Some(time)) => write!(out, "for {}", duration(time))?,
        (None, None) => write!(out, "until interrupted")?,
    }
    writeln!(out, ": {}", report.url)?;
    for warning in &report.setup.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// The line before the first request that counts.
pub fn starting(out: &mut dyn Write, setup: &Setup) -> io::Result<()> {
    let (plan, threads) = (&setup.plan, setup.settings.threads);
    let (pace, callers) = (&plan.pace, plan.callers);
    let rate = pace.rate.map_or_else(|| "max".to_owned(), shortest);
    write!(out, "Starting at {rate} qps with {callers} thread(s) [gomax {threads}] ")?;
    // The first caller also makes the calls that are left over.
    let each = plan.calls_of(callers.saturating_sub(1).max(usize::from(callers > 1))).unwrap_or_default();
    let left_over = plan.calls_of(0).unwrap_or_default().saturating_sub(each);
    let total = each * callers as u64;
    match (pace.rate, pace.exactly, pace.duration) {
        (_, None, None) => writeln!(out, "until interrupted")?,
        (Some(_), Some(calls), _) => {
            writeln!(out, ": exactly {calls}, {each} calls each (total {total} + {left_over})")?;
        }
        (None, Some(calls), _) => writeln!(out, "for exactly {calls} calls ({each} per thread + {left_over})")?,
        (Some(_), None, Some(time)) => writeln!(out, "for {} : {each} calls each (total {total})", duration(time))?,
        (None, None, Some(time)) => writeln!(out, "for {}", duration(time))?,
    }
    match (pace.rate, plan.from_sent) {
        (Some(_), false) => {
            writeln!(out, "Open loop: latencies count from when requests are due (-latency-from-sent: as Fortio's)")
        }
        _ => Ok(()),
    }
}

impl Report<'_> {
    /// The result of a run.
    pub fn result(&self, measured: &Measured) -> RunResult {
        let (tally, pace) = (&measured.tally, &self.setup.plan.pace);
        let seconds = measured.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let labels = self.labels();
        let mut requested_duration = match (pace.exactly, pace.duration) {
            (Some(calls), _) => format!("exactly {calls} calls"),
            (None, Some(time)) => duration(time),
            (None, None) => "until stop".to_owned(),
        };
        let count = tally.durations.count();
        if pace.exactly.is_some_and(|calls| calls != count) {
            requested_duration.push_str(&format!(", interrupted after {count}"));
        }
        RunResult {
            run_type: self.run_type(),
            id: self.id(),
            labels,
            start_time: self.started.format(&Rfc3339).unwrap_or_default(),
            requested_qps: pace.rate.map_or_else(|| "max".to_owned(), |rate| significant(rate, 9)),
            requested_duration,
            actual_qps: count as f64 / seconds,
            actual_duration: u64::try_from(measured.elapsed.as_nanos()).unwrap_or(u64::MAX),
            num_threads: self.setup.plan.callers,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            duration_histogram: self.export(&tally.durations),
            errors_duration_histogram: self.export(&tally.error_durations),
            exactly: self.run.exactly,
            jitter: pace.jitter,
            uniform: pace.uniform,
            no_catch_up: pace.no_catch_up,
            run_id: self.run.runid,
            access_logger_info: String::new(),
            ret_codes: self.codes(measured),
            evenkeel: self.additions(measured),
            specific: self.specific(measured),
        }
    }

    fn run_type(&self) -> String {
        match (&self.setup.protocol, self.target.scheme) {
            (Protocol::Grpc { is_ping: true, .. }, _) => "GRPC Ping".to_owned(),
            (Protocol::Grpc { is_ping: false, .. }, _) => format!("GRPC Health for '{}'", self.run.healthservice),
            (_, Scheme::Http | Scheme::Https) => "HTTP".to_owned(),
            (_, Scheme::Tcp) => "TCP".to_owned(),
            (_, Scheme::Udp) => "UDP".to_owned(),
        }
    }

    /// The name of the result.
    pub fn id(&self) -> String {
        id(&time_of_id(self.started), self.run.runid, &self.labels())
    }

    /// The description: the user's, or the target and the host's name.
    pub fn labels(&self) -> String {
        self.run.labels.clone().unwrap_or_else(|| {
            let host = nix::unistd::gethostname().unwrap_or_default();
            let host = host.to_string_lossy().split('.').next().unwrap_or_default().to_owned();
            let url =
                self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://")).unwrap_or(self.url);
            format!("{url} , {host}")
        })
    }

    fn export(&self, recorder: &Recorder) -> HistogramData {
        let ranges = Ranges { resolution: self.run.resolution, offset: self.run.offset.as_secs_f64() };
        recorder.export(&ranges, &self.run.percentiles)
    }

    /// How often each code came. HTTP has -1 for failures without status; other protocols have the kinds of failures.
    fn codes(&self, measured: &Measured) -> BTreeMap<String, u64> {
        let name = |code: Code| match code {
            Code::Http(status) => status.to_string(),
            Code::Named(name) => name.to_owned(),
        };
        let tally = &measured.tally;
        let mut codes: BTreeMap<_, _> = tally.codes().into_iter().map(|(code, count)| (name(code), count)).collect();
        for (fault, count) in &tally.faults {
            let name = match self.setup.protocol {
                Protocol::Http1(_) | Protocol::Http2(_) => "-1",
                Protocol::Grpc { .. } => "ERROR",
                Protocol::Echo(_) => fault.name(),
            };
            *codes.entry(name.to_owned()).or_default() += count;
        }
        codes
    }

    fn additions(&self, measured: &Measured) -> Additions {
        let tally = &measured.tally;
        let from_schedule = self.setup.plan.pace.rate.is_some() && !self.setup.plan.from_sent;
        let (least, most) = (tally.calls.values().min(), tally.calls.values().max());
        Additions {
            latency_from: if from_schedule { "schedule" } else { "sent" }.to_owned(),
            errors: tally.faults.iter().map(|(fault, count)| (fault.name().to_owned(), *count)).collect(),
            skipped: tally.skipped,
            unsent: tally.unsent,
            calls_per_connection: [least.copied().unwrap_or_default(), most.copied().unwrap_or_default()],
        }
    }

    fn specific(&self, measured: &Measured) -> Map<String, Value> {
        let fields = match &self.setup.protocol {
            Protocol::Http1(_) | Protocol::Http2(_) => return self.of_http(measured),
            Protocol::Grpc { request, is_ping } => self.of_grpc(request, *is_ping),
            Protocol::Echo(_) => self.of_echo(measured),
        };
        let Value::Object(fields) = fields else { return Map::new() };
        fields
    }

    fn of_grpc(&self, request: &HttpRequest, is_ping: bool) -> Value {
        let mut metadata = Map::new();
        // The first two are gRPC's own.
        for field in request.fields.iter().skip(2) {
            let values = metadata.entry(field.name.clone()).or_insert_with(|| json!([]));
            if let Value::Array(values) = values {
                values.push(json!(field.value));
            }
        }
        json!({
            "Destination": self.url,
            "Streams": self.setup.plan.streams,
            "Ping": is_ping,
            "Metadata": metadata,
        })
    }

    fn of_echo(&self, measured: &Measured) -> Value {
        let tally = &measured.tally;
        let payload = crate::request::payload(self.request).ok().flatten();
        let mut fields = json!({
            "Destination": self.url,
            "Payload": payload.map(|payload| crate::request::base64(&payload)),
            "ReqTimeout": u64::try_from(self.setup.plan.timeout.as_nanos()).unwrap_or(u64::MAX),
            "SocketCount": self.socket_count(measured),
            "BytesSent": tally.bytes_sent,
            "BytesReceived": tally.bytes_received,
        });
        if self.target.scheme == Scheme::Tcp {
            fields["UnixDomainSocket"] = json!("");
        }
        fields
    }

    fn socket_count(&self, measured: &Measured) -> u64 {
        measured.tally.sockets.values().map(|sockets| sockets.count).sum()
    }

    fn of_http(&self, measured: &Measured) -> Map<String, Value> {
        let (tally, flags) = (&measured.tally, self.request);
        let path = |path: &Option<std::path::PathBuf>| {
            path.as_ref().map_or_else(String::new, |path| path.display().to_string())
        };
        let addresses: BTreeMap<_, _> =
            tally.addresses.iter().map(|(address, count)| (address.to_string(), *count)).collect();
        let sockets: Vec<_> = tally.sockets.values().map(|sockets| sockets.count).collect();
        let reuse = self.setup.plan.connector.reuse.as_ref().map_or([0, 0], |range| [*range.start(), *range.end()]);
        let Value::Object(mut fields) = json!({
            "IPCountMap": addresses,
            "Insecure": flags.insecure,
            "MTLS": flags.cert.is_some(),
            "CACert": path(&flags.cacert),
            "Cert": path(&flags.cert),
            "Key": path(&flags.key),
            "UnixDomainSocket": "",
            "URL": self.url,
            "NumConnections": 1,
            "Compression": flags.compression,
            "DisableFastClient": false,
            "HTTP10": flags.http10,
            "H2": flags.h2,
            "DisableKeepAlive": !flags.keepalive,
            "AllowHalfClose": false,
            "FollowRedirects": false,
            "Resolve": flags.resolve.map_or_else(String::new, |ip| ip.to_string()),
        }) else {
            return Map::new();
        };
        let Value::Object(rest) = json!({
            "HTTPReqTimeOut": u64::try_from(flags.timeout.as_nanos()).unwrap_or(u64::MAX),
            "UserCredentials": flags.user.clone().unwrap_or_default(),
            "ContentType": flags.content_type.clone().unwrap_or_default(),
            "Payload": flags.payload.as_ref().map(|payload| crate::request::base64(payload.as_bytes())).unwrap_or_default(),
            "MethodOverride": flags.method.clone().unwrap_or_default(),
            "LogErrors": false,
            "SequentialWarmup": false,
            "ConnReuseRange": reuse,
            "NoResolveEachConn": true,
            "Offset": u64::try_from(self.run.offset.as_nanos()).unwrap_or(u64::MAX),
            "Resolution": self.run.resolution,
            "Sizes": tally.sizes.export(&SIZES, &[]),
            "HeaderSizes": tally.header_sizes.export(&HEADER_SIZES, &[]),
            "Sockets": sockets,
            "SocketCount": self.socket_count(measured),
            "ConnectionStats": self.export(&tally.connections),
            "AbortOn": self.run.abort_on,
        }) else {
            return fields;
        };
        fields.extend(rest);
        fields
    }

    /// The result as text.
    pub fn write(&self, out: &mut dyn Write, measured: &Measured, result: &RunResult) -> io::Result<()> {
        let (quiet, tally) = (self.request.is_quiet(), &measured.tally);
        let (durations, errors) = (&result.duration_histogram, &result.errors_duration_histogram);
        if quiet {
            text::counter(out, "Aggregated Function Time", durations)?;
            text::percentiles(out, durations)?;
            text::counter(out, "Error cases", errors)?;
        } else {
            let qps = significant(result.actual_qps, 5);
            writeln!(out, "Ended after {} : {} calls. qps={qps}", duration(measured.elapsed), durations.count)?;
            text::histogram(out, "Aggregated Function Time", durations)?;
            text::histogram(out, "Error cases", errors)?;
        }
        if self.setup.protocol.is_http() {
            self.write_http(out, measured, result)?;
        } else if let Protocol::Grpc { is_ping, .. } = self.setup.protocol {
            writeln!(out, "Jitter: {}", result.jitter)?;
            let name = if is_ping { "Ping" } else { "Health" };
            for (code, count) in &result.ret_codes {
                writeln!(out, "{name} {code} : {count}")?;
            }
        } else {
            let callers = self.setup.plan.callers;
            writeln!(
                out,
                "Sockets used: {} (for perfect no error run, would be {callers})",
                self.socket_count(measured)
            )?;
            writeln!(out, "Total Bytes sent: {}, received: {}", tally.bytes_sent, tally.bytes_received)?;
            for (code, count) in &result.ret_codes {
                let share = 100.0 * *count as f64 / durations.count as f64;
                writeln!(out, "{} {code} : {count} ({share:.1} %)", result.run_type.to_lowercase())?;
            }
        }
        self.write_additions(out, result)?;
        let warm_up = if self.setup.settings.warms_up { self.setup.plan.callers } else { 0 };
        let (count, average) = (durations.count, durations.avg * 1e3);
        writeln!(
            out,
            "All done {count} calls (plus {warm_up} warmup) {average:.3} ms avg, {:.1} qps",
            result.actual_qps
        )
    }

    fn write_http(&self, out: &mut dyn Write, measured: &Measured, result: &RunResult) -> io::Result<()> {
        let (quiet, tally, pace) = (self.request.is_quiet(), &measured.tally, &self.setup.plan.pace);
        text::sockets(out, tally)?;
        if !quiet {
            text::histogram(out, "Connection time histogram (s)", &self.export(&tally.connections))?;
        }
        let connections = self.setup.plan.callers.div_ceil(self.setup.plan.streams);
        writeln!(out, "Sockets used: {} (for perfect keepalive, would be {connections})", self.socket_count(measured))?;
        let (uniform, jitter, catch_up) = (pace.uniform, pace.jitter, !pace.no_catch_up);
        writeln!(out, "Uniform: {uniform}, Jitter: {jitter}, Catchup allowed: {catch_up}")?;
        writeln!(out, "IP addresses distribution:")?;
        let mut addresses: Vec<_> = tally.addresses.iter().collect();
        addresses.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (address, count) in addresses {
            writeln!(out, "{address}: {count}")?;
        }
        for (code, count) in &result.ret_codes {
            let share = 100.0 * *count as f64 / result.duration_histogram.count as f64;
            writeln!(out, "Code {code:>3} : {count} ({share:.1} %)")?;
        }
        text::counter(out, "Response Header Sizes", &tally.header_sizes.export(&HEADER_SIZES, &[]))?;
        text::counter(out, "Response Body/Total Sizes", &tally.sizes.export(&SIZES, &[]))
    }

    fn write_additions(&self, out: &mut dyn Write, result: &RunResult) -> io::Result<()> {
        let additions = &result.evenkeel;
        for (kind, count) in &additions.errors {
            writeln!(out, "Error {kind} : {count}")?;
        }
        if additions.skipped > 0 {
            writeln!(out, "Skipped {} requests whose connection was busy when they were due", additions.skipped)?;
        }
        if additions.unsent > 0 {
            writeln!(
                out,
                "WARNING {} requests were due and not sent: responses were too slow for the rate",
                additions.unsent
            )?;
        }
        Ok(())
    }
}

/// `2026-11-30-233038`.
fn time_of_id(time: OffsetDateTime) -> String {
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    format!("{year}-{:02}-{day:02}-{hour:02}{minute:02}{second:02}", u8::from(month))
}
