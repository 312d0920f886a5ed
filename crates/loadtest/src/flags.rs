//! The flags of a load test: Fortio's, with one dash or two.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Command};

use crate::go_numbers::parse_duration;
use crate::target::IpType;

/// Flags of the request and the connection; `load` and `load curl` have them.
#[derive(Debug, Clone, Args)]
pub struct RequestFlags {
    /// Additional HTTP header, or gRPC metadata; may be repeated.
    #[arg(short = 'H', value_name = "KEY:VALUE", allow_hyphen_values = true)]
    pub headers: Vec<String>,

    /// HTTP method [default: GET, or POST with a payload or a content type].
    #[arg(short = 'X', value_name = "METHOD")]
    pub method: Option<String>,

    /// Payload to send.
    #[arg(short = 'd', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub payload: Option<String>,

    /// File whose contents are the payload.
    #[arg(long, value_name = "FILE", conflicts_with = "payload")]
    pub payload_file: Option<PathBuf>,

    /// Size of a random payload in bytes; replaces the payload.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub payload_size: usize,

    /// Content type of the payload.
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,

    /// Credentials for basic authentication.
    #[arg(long, value_name = "USER:PASSWORD")]
    pub user: Option<String>,

    /// Ask for compressed responses.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub compression: bool,

    /// Use HTTP/1.0.
    #[arg(long = "http1.0", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub http10: bool,

    /// Use HTTP/2: by prior knowledge, or over TLS by ALPN.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub h2: bool,

    /// Keep connections open for further requests.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true", action = ArgAction::Set)]
    pub keepalive: bool,

    /// Do not verify the server's certificate.
    #[arg(short = 'k', long = "https-insecure", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub insecure: bool,

    /// Certificates of the authorities that servers are verified with [default: those of the system].
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// The client's certificate for mutual TLS.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// The key of the client's certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// How long to wait for a connection and a response.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    pub timeout: Duration,

    /// How long to wait for an answer over UDP.
    #[arg(long, value_name = "DURATION", default_value = "750ms", value_parser = parse_duration)]
    pub udp_timeout: Duration,

    /// Connect to this address instead of those of the host's name.
    #[arg(long, value_name = "IP")]
    pub resolve: Option<IpAddr>,

    /// Which addresses of a name to use.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = IpType::Ip4)]
    pub resolve_ip_type: IpType,

    /// Print the result and errors only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub quiet: bool,

    /// Fortio's level of logging: Debug, Verbose, Info, Warning; from Error on the same as -quiet.
    #[arg(long, value_name = "LEVEL", default_value = "Info", ignore_case = true, value_parser = LEVELS)]
    pub loglevel: String,

    /// Accepted for Fortio's sake: a buffer is as large as it has to be.
    #[arg(long, value_name = "KIB", hide = true)]
    pub httpbufferkb: Option<u32>,

    /// Accepted for Fortio's sake: errors are counted by kind and not logged.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set, hide = true)]
    pub log_errors: bool,

    /// Accepted for Fortio's sake: there is one client, which is fast.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set, hide = true)]
    pub stdclient: bool,
}

/// Fortio's levels of logging.
const LEVELS: [&str; 7] = ["Debug", "Verbose", "Info", "Warning", "Error", "Critical", "Fatal"];

impl RequestFlags {
    /// Whether only the result and errors are printed.
    pub fn is_quiet(&self) -> bool {
        let is = |level: &str| self.loglevel.eq_ignore_ascii_case(level);
        self.quiet || LEVELS[4..].iter().any(|level| is(level))
    }

    /// Flags of Fortio's that were used and have no effect here, with the reason.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let all = [
            (self.stdclient, "-stdclient has no effect: there is one client, for HTTP/1.1 and HTTP/2"),
            (self.httpbufferkb.is_some(), "-httpbufferkb has no effect: a buffer is as large as it has to be"),
            (self.log_errors, "-log-errors has no effect: errors are counted by kind and not logged"),
        ];
        all.into_iter().filter(|(is_used, _)| *is_used).map(|(_, reason)| reason).collect()
    }
}

/// Flags of a run.
#[derive(Debug, Clone, Args)]
pub struct RunFlags {
    /// Number of connections, each with a caller of its own.
    #[arg(short = 'c', value_name = "N", default_value_t = 4)]
    pub connections: usize,

    /// Make exactly this number of calls instead of calling for some time; 0: as -t says.
    #[arg(short = 'n', value_name = "N", default_value_t = 0)]
    pub exactly: u64,

    /// How long to send; 0: until Ctrl-C.
    #[arg(short = 't', value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub duration: Duration,

    /// Requests a second of all connections; 0 or `max`: as fast as responses come.
    #[arg(long, value_name = "RATE", default_value = "8", value_parser = parse_rate)]
    pub qps: Rate,

    /// Compute the rate from -n and -t.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub calc_qps: bool,

    /// Width of the histogram's smallest ranges, in seconds.
    #[arg(short = 'r', value_name = "SECONDS", default_value_t = 0.001)]
    pub resolution: f64,

    /// Where the histogram's first range begins.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub offset: Duration,

    /// Percentiles to compute.
    #[arg(short = 'p', value_name = "LIST", value_delimiter = ',', default_value = "50,75,90,99,99.9")]
    pub percentiles: Vec<f64>,

    /// Move each request by up to 10 % of the distance to the one before.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub jitter: bool,

    /// Spread the first requests of the connections evenly.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub uniform: bool,

    /// Leave out requests that were due while an earlier one on the connection was not answered.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub nocatchup: bool,

    /// Count latencies from when a request was sent, as Fortio does, and not from when it was due.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub latency_from_sent: bool,

    /// Stop when this HTTP status comes; -1: at the first failure without status.
    #[arg(long, value_name = "CODE", default_value_t = 0, allow_hyphen_values = true)]
    pub abort_on: i32,

    /// Begin although the requests that warm up the connections failed.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub allow_initial_errors: bool,

    /// Replace each connection after a number of requests drawn from this range.
    #[arg(long, value_name = "MIN:MAX")]
    pub connection_reuse: Option<String>,

    /// Call by gRPC: the health check, or with -ping Fortio's ping.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub grpc: bool,

    /// With -grpc: call Fortio's ping instead of the health check.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub ping: bool,

    /// How long the server of a ping waits before it responds.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub grpc_ping_delay: Duration,

    /// The service whose health is checked.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub healthservice: String,

    /// Streams on each connection, each with a caller of its own (gRPC and HTTP/2).
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    pub streams: usize,

    /// Number of threads [default: that of the cores, or of the connections if that is less].
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub gomaxprocs: i32,

    /// Where to write the result as JSON; `-`: standard output.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub json: Option<PathBuf>,

    /// Write the result as JSON to a file named after time and labels.
    #[arg(short = 'a', value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", action = ArgAction::Set)]
    pub auto_save: bool,

    /// Directory of these files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data_dir: PathBuf,

    /// Description of the run [default: the target and the host's name].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub labels: Option<String>,

    /// A number for the run, in the result and the file's name.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub runid: i64,
}

/// How often requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As fast as responses come.
    Max,
    /// So many a second.
    PerSecond(f64),
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "max" {
        return Ok(Rate::Max);
    }
    let rate: f64 = text.parse().map_err(|_| "expected requests a second, or max".to_owned())?;
    if rate.is_nan() || rate.is_infinite() {
        return Err("expected a finite number".to_owned());
    }
    Ok(if rate > 0.0 { Rate::PerSecond(rate) } else { Rate::Max })
}

/// Gives the second dash to flags that are written as Go's, `-qps`, so that clap knows them. Values of flags stay as they are.
pub fn with_two_dashes(command: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let (mut result, mut is_value) = (Vec::with_capacity(arguments.len()), false);
    for argument in arguments {
        let text = argument.to_str().unwrap_or_default();
        if is_value || text == "--" {
            is_value = false;
            result.push(argument);
            continue;
        }
        let name = text.trim_start_matches('-').split('=').next().unwrap_or_default();
        let dashes = text.len() - text.trim_start_matches('-').len();
        let flag = if matches!(dashes, 1 | 2) { find(command, name) } else { None };
        let Some(flag) = flag else {
            result.push(argument);
            continue;
        };
        let optional = flag.get_num_args().is_some_and(|range| range.min_values() == 0);
        is_value = flag.get_action().takes_values() && !optional && !text.contains('=');
        let long = name.chars().count() > 1;
        result.push(if long && dashes == 1 { format!("-{text}").into() } else { argument });
    }
    result
}

fn find<'c>(command: &'c Command, name: &str) -> Option<&'c clap::Arg> {
    let is_it = |flag: &&clap::Arg| {
        flag.get_long() == Some(name) || flag.get_short().is_some_and(|short| name.chars().eq([short]))
    };
    let subcommands = command.get_subcommands().flat_map(Command::get_arguments);
    command.get_arguments().chain(subcommands).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Test {
        #[command(flatten)]
        request: RequestFlags,
        #[command(flatten)]
        run: RunFlags,
        url: String,
    }

    fn parse(line: &str) -> Result<Test, clap::Error> {
        let arguments = line.split(' ').map(OsString::from).collect();
        let command = <Test as clap::CommandFactory>::command();
        Test::try_parse_from([OsString::from("load")].into_iter().chain(with_two_dashes(&command, arguments)))
    }

    #[test]
    fn flags_may_have_one_dash_or_two() {
        for line in [
            "-c 8 -qps 100 -t 1m30s -jitter -keepalive=false -abort-on -1 -H -qps:1 -json - -p 50,99 http://a/",
            "-c=8 --qps=100 -t=90s --jitter=true --keepalive=false --abort-on=-1 -H=-qps:1 --json=- -p=50,99 http://a/",
        ] {
            let Test { request, run, url } = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((run.connections, run.qps, run.jitter), (8, Rate::PerSecond(100.0), true));
            assert_eq!((run.duration, run.abort_on, request.keepalive), (Duration::from_secs(90), -1, false));
            assert_eq!((request.headers, run.percentiles), (vec!["-qps:1".to_owned()], vec![50.0, 99.0]));
            assert_eq!((run.json, url.as_str()), (Some("-".into()), "http://a/"));
        }
    }

    #[test]
    fn fortios_other_flags_are_accepted_and_named() {
        let check = |line: &str, is_quiet: bool, named: &[&str]| {
            let Test { request, .. } =
                parse(&format!("{line} http://a")).unwrap_or_else(|error| panic!("{line}: {error}"));
            let found = request.without_effect();
            let found: Vec<_> = found.iter().filter_map(|reason| reason.split(' ').next()).collect();
            assert_eq!((request.is_quiet(), found.as_slice()), (is_quiet, named), "{line}");
        };
        check("-loglevel Warning -log-errors=false", false, &[]);
        check("-loglevel error", true, &[]);
        check("-quiet -stdclient -httpbufferkb 64 -log-errors", true, &["-stdclient", "-httpbufferkb", "-log-errors"]);
        assert!(parse("-loglevel loud http://a").is_err());
    }

    #[test]
    fn the_rate_may_be_without_limit() {
        for (text, rate) in [("0", Rate::Max), ("max", Rate::Max), ("-1", Rate::Max), ("0.5", Rate::PerSecond(0.5))] {
            assert_eq!(parse(&format!("-qps={text} http://a")).unwrap().run.qps, rate, "{text}");
        }
        for line in ["-qps=x http://a", "-qps=NaN http://a", "-nosuchflag http://a", "-t 5 http://a", "-key k http://a"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
