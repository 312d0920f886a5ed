//! `evenkeel explain`: what happens to a call, and why.

use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::question::parse_header;
use evenkeel_explain::{Answer, Caller, Question, RunningProxies, Target};
use evenkeel_filters::explain::query::{ProxyDecision, QueriedCall};
use evenkeel_k8s::client::ClusterOptions;

use crate::formats::{Output, look};
use crate::manifests::Manifests;
use crate::proxies::{Proxies, ProxiesChoice};
use crate::{admin, last};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel explain -f DIR --from web.shop --url http://reviews:9080/reviews/1 -H 'end-user: jason'
  evenkeel explain -f DIR --from-outside --url https://shop.example.com/ -o json
  evenkeel explain -f DIR --from web.shop --tcp db.data:5432
  evenkeel explain -f DIR --from-outside --udp dns.example.com:53
  evenkeel explain --from web.shop --url http://reviews:9080/ --proxy
  evenkeel explain --last";

#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// The workload or Pod that calls.
    #[arg(long, value_name = "WORKLOAD.NAMESPACE", required_unless_present_any = ["from_outside", "last"])]
    from: Option<String>,

    /// Ask the running proxies on the call's way: what they decide now, with the endpoints' present health.
    #[arg(long)]
    proxy: bool,

    /// Show a recent request instead of a call: the one whose id (x-request-id) begins so, or the latest.
    #[arg(long, value_name = "REQUEST-ID", num_args = 0..=1, conflicts_with_all = ["url", "tcp", "udp", "proxy", "from_outside"])]
    last: Option<Option<String>>,

    /// With --proxy or --last: ask the proxy with this admin port instead of those of the running `up`.
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    admin: Option<SocketAddr>,

    /// The call comes from outside the mesh, through the gateway that listens on its port.
    #[arg(long, conflicts_with = "from")]
    from_outside: bool,

    /// The URL that is called. A host name is resolved as the workload's DNS would.
    #[arg(long, value_name = "URL", required_unless_present_any = ["tcp", "udp", "last"], conflicts_with_all = ["tcp", "udp"])]
    url: Option<String>,

    /// The method.
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    method: String,

    /// A header; may be repeated. `Host` replaces the URL's host in the request.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// The client itself speaks TLS, as with `https://`.
    #[arg(long)]
    tls: bool,

    /// The server name that the client sends with TLS [default: the URL's host].
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,

    /// A TCP connection to this address instead of a request.
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,

    /// Datagrams to this address instead of a request.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["tcp", "tls", "sni", "proxy", "admin", "unix_socket"])]
    udp: Option<String>,

    /// The Unix socket that the workload connects to, instead of the URL's address: a Sidecar's `egress[].bind`.
    #[arg(long, value_name = "PATH|@NAME", requires = "from", conflicts_with_all = ["from_outside", "last"])]
    unix_socket: Option<String>,

    /// The result of random draws: which weighted destination is followed, from 0 to the sum of the weights.
    #[arg(long, value_name = "N", default_value_t = 0)]
    random: u64,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reads the files and answers. The status is 0, whatever the outcome of the call.
pub fn run(arguments: &ExplainArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if let Some(id) = &arguments.last {
        return arguments.recent(id.as_deref(), out);
    }
    let question = arguments.question()?;
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    manifests.report_errors();
    let mut world = manifests.into_world();
    if arguments.proxy || arguments.admin.is_some() {
        world =
            world.with_running(OnTheWay { proxies: Proxies::find(&arguments.proxies())?, has_asked: Cell::new(false) });
    }
    let answer = world.ask(&question)?;
    if let Some(error) = not_asked(&answer) {
        anyhow::bail!("{error}");
    }
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&answer.to_json())?)?,
        Output::Text => write!(out, "{}", answer.to_text(look()))?,
    }
    Ok(0)
}

/// The proxies on a call's way. An admin port is that of the first one.
struct OnTheWay {
    proxies: Proxies,
    has_asked: Cell<bool>,
}

impl RunningProxies for OnTheWay {
    fn decide(&self, proxy: &ProxyName, call: &QueriedCall) -> Result<ProxyDecision, String> {
        match &self.proxies {
            Proxies::At(address) if self.has_asked.replace(true) => {
                Err(format!("only the first proxy, at {address}, is asked"))
            }
            proxies => proxies.decide(proxy, call),
        }
    }
}

/// Why the first proxy on the way could not be asked.
fn not_asked(answer: &Answer) -> Option<String> {
    let first = answer.hops.first()?;
    let error = first.running.as_ref()?.error.as_ref()?;
    Some(format!("asking the proxy of {}.{}: {error}", first.proxy.pod, first.proxy.namespace))
}

impl ExplainArguments {
    fn proxies(&self) -> ProxiesChoice<'_> {
        ProxiesChoice { admin: self.admin, state: self.state.as_ref(), cluster: &self.cluster }
    }

    fn recent(&self, id: Option<&str>, out: &mut dyn Write) -> anyhow::Result<u8> {
        let proxies = Proxies::find(&self.proxies())?;
        // Without the files, only the positions of rules are unknown.
        let world = Manifests::of_cluster_or_files(&self.cluster, &self.files, self.state.as_deref()).ok();
        let world = world.map(Manifests::into_world);
        let from = self.from.as_deref().map(Caller::parse);
        last::run(&proxies, world.as_ref(), (id, from.as_ref()), self.output, out)
    }

    fn question(&self) -> anyhow::Result<Question> {
        let headers = self.headers.iter().map(|text| parse_header(text)).collect::<Result<Vec<_>, _>>()?;
        let target = match (&self.url, &self.tcp) {
            _ if self.udp.is_some() => Target::parse_udp(self.udp.as_deref().unwrap_or_default())?,
            (Some(url), _) => {
                let url = if self.tls { url.replacen("http://", "https://", 1) } else { url.clone() };
                let target = Target::parse_url(&url, &self.method, headers)?;
                match target {
                    Target::Http { tls, host, port, path, method, headers, .. } => {
                        Target::Http { tls, host, port, path, method, headers, sni: self.sni.clone() }
                    }
                    other => other,
                }
            }
            (None, Some(address)) => {
                let default = || address.rsplit_once(':').map(|(host, _)| host.to_owned()).filter(|_| self.tls);
                Target::parse_tcp(address, self.sni.clone().or_else(default))?
            }
            (None, None) => anyhow::bail!("say --url, --tcp or --udp"),
        };
        let from = match &self.from {
            Some(from) => Caller::parse(from),
            None => Caller::Outside,
        };
        // In the form of a Sidecar's `bind`, or of curl's option.
        let socket = self.unix_socket.as_deref().map(|path| path.strip_prefix("unix://").unwrap_or(path).to_owned());
        Ok(Question { from, target, socket, random: self.random })
    }
}
