//! `evenkeel tap`: the requests of a workload's proxies as they end.
//!
//! | question | file |
//! |---|---|
//! | which requests are shown? | `filter.rs` |
//! | how is a line printed, as text or as JSON? | `line.rs` |
//! | how is one proxy read? | `proxy.rs` |
//! | how are the proxies of a workload read together? | `replicas.rs`; in a cluster `cluster.rs` |

mod cluster;
mod filter;
mod line;
mod proxy;
mod replicas;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use evenkeel_k8s::client::ClusterOptions;

use crate::admin;
use crate::formats::Output;
use crate::proxies::ProxiesChoice;
use filter::Filter;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel tap web.shop
  evenkeel tap web --status 5xx --for 1m
  evenkeel tap web --method POST --path /orders --header x-tenant=blue -o json
  evenkeel tap --admin 127.0.0.1:15000 --limit 10";

#[derive(Debug, Args)]
pub struct TapArguments {
    /// A workload of the running mesh or of a cluster, or one of its pods [default: the proxy on this machine].
    #[arg(value_name = "WORKLOAD[.NAMESPACE]")]
    workload: Option<String>,

    /// The workload's namespace; of a running mesh needed only if several namespaces have a workload of that name [default in a
    /// cluster: that of the context].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Admin port of the proxy [default: 127.0.0.1:15000].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["workload", "state", "kubeconfig", "context"])]
    admin: Option<SocketAddr>,

    #[command(flatten)]
    filter: Filter,

    /// Also show the query of the path; values of secret parameters are redacted.
    #[arg(long)]
    query: bool,

    /// End after this number of requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// End after this time [default: Ctrl-C ends it].
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,

    /// Output format; `json` is one object for each line.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,

    /// Print an empty line from time to time, so that the process ends when nobody reads its output any more.
    #[arg(long, hide = true)]
    heartbeat: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    evenkeel_base::duration::parse(text).map_err(|error| error.to_string())
}

/// Prints requests as they end.
pub fn run(arguments: &TapArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let choice = ProxiesChoice { admin: None, state: arguments.state.as_ref(), cluster: &arguments.cluster };
    match &arguments.workload {
        Some(workload) => match choice.cluster_mesh()? {
            Some(mesh) => cluster::read(arguments, &mesh, workload, out),
            None => replicas::read(arguments, workload, out),
        },
        None if arguments.cluster.is_given() => anyhow::bail!("name a workload or a Pod of the cluster"),
        None => proxy::read(arguments, arguments.admin.unwrap_or_else(admin::default_proxy), out),
    }
}
