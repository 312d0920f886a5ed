//! `make bench`: starts Evenkeel and its peers on one machine, measures them in interleaved rounds, and prints ratios.
//!
//! The method: the load (`wrk`, one thread) and the backend are pinned to core 0, the proxies to core 1; a proxy's cost is its
//! user and system time from `/proc/PID/stat` divided by the requests it carried. Every peer is measured once per round, in
//! an order that rotates; a ratio is formed inside one round and only then the median taken, so that what disturbs the
//! machine disturbs both sides of it.

mod backend;
mod config;
mod epoll;
mod load;
mod machine;
mod measure;
mod peers;
mod process;
mod relay;
mod report;
mod startup;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};

/// Measures Evenkeel's proxy against a byte-copying relay, Envoy, HAProxy and nginx.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the measurements and writes bench-results/.
    Run(RunArgs),
    /// The limit of a hop: copies bytes between two sockets, parses nothing.
    Relay {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Where the bytes go.
        #[arg(long)]
        upstream: SocketAddr,
    },
    /// The cheapest HTTP/1.1 server: one prepared answer per request head.
    Backend {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Size of the answer's body, in bytes.
        #[arg(long, default_value_t = 1024)]
        bytes: usize,
    },
}

/// What `run` measures and how long.
#[derive(clap::Args)]
struct RunArgs {
    /// Rounds; every peer is measured once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of load per peer and round.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Client connections, one table each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32, 256])]
    connections: Vec<usize>,
    /// Only this part.
    #[arg(long)]
    only: Option<Part>,
    /// Only these peers, such as relay,evenkeel,envoy.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// The configuration whose sidecar's start-up is measured.
    #[arg(long, default_value = "examples/capitals")]
    example: PathBuf,
    /// Folder for results.json and results.md.
    #[arg(long, default_value = "bench-results")]
    out: PathBuf,
}

/// The parts of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One plain hop: relay, Evenkeel, Envoy, HAProxy, nginx.
    Hop,
    /// A sidecar pair with mutual TLS and access log: Evenkeel, Envoy.
    Pair,
    /// Time from exec to ready, and resident memory.
    Startup,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Relay { listen, upstream } => relay::run(listen, upstream).context("relay"),
        Command::Backend { listen, bytes } => backend::run(listen, bytes).context("backend"),
    }
}

fn run(args: &RunArgs) -> Result<()> {
    ensure!(args.rounds > 0 && args.seconds > 0, "--rounds and --seconds have to be at least 1");
    let mut out = std::io::stdout().lock();
    let wanted = |part| args.only.is_none_or(|only| only == part);
    let setup = peers::Setup::new(&args.peers)?;
    let mut results = report::Results::new(machine::describe(&setup), args.rounds, args.seconds);
    let plan = measure::Plan {
        rounds: args.rounds,
        time: Duration::from_secs(args.seconds),
        connections: args.connections.clone(),
    };
    if wanted(Part::Startup) {
        writeln!(out, "start-up …")?;
        results.startup = startup::measure(&setup, &args.example, args.rounds)?;
    }
    if wanted(Part::Hop) {
        results.hop = measure::rounds("hop", &plan, &setup.start_hop()?, &mut out)?;
    }
    if wanted(Part::Pair) {
        results.pair = measure::rounds("pair", &plan, &setup.start_pair()?, &mut out)?;
    }
    results.write(&args.out)?;
    write!(out, "\n{}", results.text())?;
    writeln!(out, "written: {0}/results.json, {0}/results.md", args.out.display())?;
    Ok(())
}
