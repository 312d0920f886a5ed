//! `evenkeel why`: why a request failed or was slow, from the records of the proxies on its way.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use evenkeel_explain::recent::RecordedRequest;
use evenkeel_explain::why::summary::Summary;
use evenkeel_explain::{Caller, Why, World};
use evenkeel_k8s::client::ClusterOptions;

use crate::admin;
use crate::formats::{Output, look};
use crate::manifests::Manifests;
use crate::proxies::{Collected, Proxies, ProxiesChoice};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel why
  evenkeel why 7d1f0c1e-52b6-4a39-9b51-0123456789ab
  evenkeel why --from web.shop --within 1m --slower-than 50ms
  evenkeel why --proxy 127.0.0.1:15000 --proxy 127.0.0.1:15001";

/// Shortest id that names the same request at every proxy: a proxy's own numbers are shorter.
const SHORTEST_SHARED_ID: usize = 16;

#[derive(Debug, Args)]
pub struct WhyArguments {
    /// The request: the beginning of its id (x-request-id) [default: the slowest and the failed ones, by cause].
    #[arg(value_name = "REQUEST-ID")]
    id: Option<String>,

    /// Only requests that the proxies of this workload keep.
    #[arg(long, value_name = "WORKLOAD.NAMESPACE", conflicts_with = "proxies")]
    from: Option<String>,

    /// Ask the proxy with this admin port instead of those of the running `up`; may be repeated.
    #[arg(long = "proxy", value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["kubeconfig", "context"])]
    proxies: Vec<SocketAddr>,

    /// A file with YAML, or a directory, for the places of rules; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose proxies are asked instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// Ask the proxies of this namespace [default: all].
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["proxies", "from"])]
    namespace: Option<String>,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Without an id: how far to look back.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    within: Duration,

    /// Without an id: the least duration of a request that is slow.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    slower_than: Duration,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn duration(text: &str) -> Result<Duration, String> {
    evenkeel_base::duration::parse(text).map_err(|error| error.to_string())
}

/// Asks the proxies and answers. The status is 0, whatever became of the requests.
pub fn run(arguments: &WhyArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let collected = arguments.collect()?;
    // Without the files, only the positions of rules are unknown.
    let world = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref()).ok();
    let world = world.map(Manifests::into_world);
    match &arguments.id {
        Some(id) => one(collected, id, world.as_ref(), arguments.output, out),
        None => arguments.all(collected, world.as_ref(), out),
    }
}

/// The time, in microseconds since 1970.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn one(
    collected: Collected,
    id: &str,
    world: Option<&World>,
    output: Output,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let problems = collected.problems.clone();
    let proxies = collected.proxies;
    let found = by_request(collected).into_values().filter(|records| begins(records, id));
    let latest = found.max_by_key(|records| records.iter().map(|record| record.request.started_us).max());
    let Some(mut why) = latest.and_then(|records| Why::new(world, records)) else {
        let problems: String = problems.iter().map(|problem| format!("; {problem}")).collect();
        bail!("none of {proxies} proxies keeps a request whose id begins with `{id}` (docs/why.md){problems}");
    };
    why.notes.extend(problems.into_iter().map(|problem| format!("not asked: {problem}")));
    match output {
        Output::Json => writeln!(out, "{:#}", why.to_json())?,
        Output::Text => write!(out, "{}", why.to_text(look(), now_us()))?,
    }
    Ok(0)
}

fn begins(records: &[RecordedRequest], id: &str) -> bool {
    records.iter().any(|record| record.request.id.starts_with(id))
}

/// The records of each request. A proxy's own number names a request at that proxy only.
fn by_request(collected: Collected) -> BTreeMap<String, Vec<RecordedRequest>> {
    let mut all: BTreeMap<String, Vec<RecordedRequest>> = BTreeMap::new();
    for (proxy, request) in collected.requests {
        let own = format!("{} {}.{}", request.id, proxy.pod, proxy.namespace);
        let key = if request.id.len() >= SHORTEST_SHARED_ID { request.id.clone() } else { own };
        let now = Err("not asked".to_owned());
        all.entry(key).or_default().push(RecordedRequest { proxy, request, now });
    }
    all
}

impl WhyArguments {
    fn collect(&self) -> anyhow::Result<Collected> {
        let (workload, namespace) = match self.from.as_deref().map(Caller::parse) {
            Some(Caller::Workload { name, namespace }) => (name, namespace),
            _ => (String::new(), None),
        };
        if self.proxies.is_empty() {
            let choice = ProxiesChoice { admin: None, state: self.state.as_ref(), cluster: &self.cluster };
            let namespace = namespace.as_deref().or(self.namespace.as_deref());
            return Proxies::find(&choice)?.collect(&workload, namespace);
        }
        let mut all = Collected::default();
        for address in &self.proxies {
            let one = Proxies::At(*address).collect(&address.to_string(), None)?;
            all.requests.extend(one.requests);
            all.problems.extend(one.problems);
            all.proxies += one.proxies;
        }
        if let (0, Some(problem)) = (all.proxies, all.problems.first()) {
            bail!("no proxy answers; {problem}");
        }
        Ok(all)
    }

    /// The slowest and the failed requests, by cause.
    fn all(&self, collected: Collected, world: Option<&World>, out: &mut dyn Write) -> anyhow::Result<u8> {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let since = now_us().saturating_sub(micros(self.within));
        let (problems, proxies) = (collected.problems.clone(), collected.proxies);
        let mut requests = by_request(collected);
        requests.retain(|_, records| records.iter().any(|record| record.request.started_us >= since));
        let judged = requests.values().filter_map(|records| Why::new(None, records.clone()));
        let mut summary = Summary::new(judged.collect(), micros(self.slower_than));
        // Only one of each group is judged with the files, which takes longer.
        for group in &mut summary.groups {
            let example = requests.values().find(|records| begins(records, &group.latest));
            if let Some(why) = example.and_then(|records| Why::new(world, records.clone())) {
                group.sentence = why.sentence;
            }
        }
        summary.proxies = proxies;
        summary.notes = problems.into_iter().map(|problem| format!("not asked: {problem}")).collect();
        match self.output {
            Output::Json => writeln!(out, "{:#}", summary.to_json())?,
            Output::Text => write!(out, "{}", summary.to_text(look().width))?,
        }
        Ok(0)
    }
}
