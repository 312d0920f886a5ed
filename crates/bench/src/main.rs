//! `make bench`: starts Evenkeel and its peers on one machine, measures them in interleaved rounds, and prints ratios.
//!
//! The method: the load and the backend are pinned to core 0, the proxies to core 1; a proxy's cost is its user and system time
//! divided by the requests it carried. Every peer is measured once per round, in an order that rotates; a ratio is formed inside
//! one round and only then the median taken, so that what disturbs the machine disturbs both sides of it.

#![forbid(unsafe_code)]

mod bars;
mod config;
mod control_plane;
mod instructions;
mod load;
mod machine;
mod peers;
mod process;
mod relay;
mod report;
mod scenarios;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use evenkeel_load::backend;
use evenkeel_measure::rounds::{Findings, Plan};
use evenkeel_process::resources::raise_open_files;

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
    /// Counts instructions per operation and compares them with the recorded counts.
    Instructions {
        /// File with the recorded counts; without it, the counts are only printed.
        #[arg(long)]
        file: Option<PathBuf>,
        /// Write the file instead of comparing with it.
        #[arg(long, requires = "file")]
        bless: bool,
    },
    /// The program to count: the CPU-bound parts of a request.
    #[command(hide = true)]
    CountedCases,
    /// The program to count: the proxy.
    #[command(hide = true)]
    Proxy(evenkeel_proxy::Options),
    /// The minimum cost of a hop: copies bytes between two sockets, parses nothing.
    Relay {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Address to copy the bytes to.
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
    /// The cheapest HTTP/2 server, by prior knowledge: HTTP answers, and gRPC's to requests with a body.
    BackendHttp2 {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Size of the answer's body, in bytes.
        #[arg(long, default_value_t = 1024)]
        bytes: usize,
        /// Begin responses and never end them.
        #[arg(long)]
        hold: bool,
    },
    /// Sends bytes on every connection as fast as they are taken.
    Source {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
    },
}

/// The scenarios and the duration of `run`.
#[derive(clap::Args)]
struct RunArgs {
    /// Rounds; every peer is measured once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of load per peer and round.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Numbers of client connections for the hop and the pair, one table each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32, 256])]
    connections: Vec<usize>,
    /// Only these scenarios, such as hop,pair; see --list.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these peers, such as relay,evenkeel,"envoy h2".
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Skip the scenarios that an interrupted run of the same programs has finished.
    #[arg(long)]
    resume: bool,
    /// List the scenarios and exit.
    #[arg(long)]
    list: bool,
    /// The configuration whose sidecar's start-up is measured.
    #[arg(long, default_value = "examples/capitals")]
    example: PathBuf,
    /// Directory for results.json and results.md.
    #[arg(long, default_value = "bench-results")]
    out: PathBuf,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Instructions { file, bless } => count_instructions(file.as_deref(), bless),
        Command::CountedCases => instructions::cases::run(),
        Command::Proxy(options) => Ok(evenkeel_proxy::run(&options, &mut std::io::stdout())?),
        Command::Relay { listen, upstream } => relay::run(listen, upstream).context("relay"),
        Command::Backend { listen, bytes } => backend::http1::run(listen, bytes).context("backend"),
        Command::BackendHttp2 { listen, bytes, hold } => {
            backend::http2::run(listen, bytes, hold).context("HTTP/2 backend")
        }
        Command::Source { listen } => backend::source::run(listen).context("source"),
    }
}

fn run(args: &RunArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.list {
        for scenario in scenarios::ALL {
            writeln!(out, "{:12} {}", scenario.name, scenario.title)?;
        }
        return Ok(());
    }
    ensure!(args.rounds > 0 && args.seconds > 0, "--rounds and --seconds have to be at least 1");
    let names: Vec<&str> = scenarios::ALL.iter().map(|scenario| scenario.name).collect();
    if let Some(unknown) = args.only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("no scenario is called {unknown}: there are {}", names.join(", "));
    }
    raise_open_files().context("the limit on open files")?;
    let setup = peers::Setup::new(&args.peers)?;
    let mut results = report::Results {
        facts: machine::describe(&setup),
        rounds: args.rounds,
        seconds: args.seconds,
        complete: Vec::new(),
        findings: Findings::default(),
    };
    if args.resume {
        results = results.resume(&args.out)?;
    }
    let plan =
        Plan { rounds: args.rounds, time: Duration::from_secs(args.seconds), connections: args.connections.clone() };
    process::pin_self(process::LOAD_CORE)?;
    let mut failed = Vec::new();
    for scenario in scenarios::ALL {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == scenario.name) {
            continue;
        }
        if results.complete.iter().any(|name| name == scenario.name) {
            writeln!(out, "{}: completed by an earlier run", scenario.name)?;
            continue;
        }
        let start = Instant::now();
        let mut findings = Findings::default();
        let example = args.example.clone();
        let mut context = scenarios::Context { setup: &setup, plan: &plan, example, progress: &mut out };
        // A scenario that fails does not lose the results of the others.
        match (scenario.run)(&mut context, &mut findings) {
            Ok(()) => results.complete.push(scenario.name.to_owned()),
            Err(error) => {
                writeln!(out, "{} failed: {error:#}", scenario.name)?;
                failed.push(scenario.name);
            }
        }
        results.findings.samples.append(&mut findings.samples);
        results.findings.absent.append(&mut findings.absent);
        results.write(&args.out)?;
        writeln!(out, "{}: {:.0} s", scenario.name, start.elapsed().as_secs_f64())?;
    }
    write!(out, "\n{}", results.markdown())?;
    writeln!(out, "\nwritten: {0}/results.json, {0}/results.md", args.out.display())?;
    ensure!(failed.is_empty(), "failed: {}; --resume repeats only what is missing", failed.join(", "));
    Ok(())
}

fn count_instructions(file: Option<&Path>, bless: bool) -> Result<()> {
    let now = instructions::Recorded::new(instructions::count()?)?;
    write!(std::io::stdout(), "{}", now.text())?;
    let Some(file) = file else { return Ok(()) };
    if bless {
        return std::fs::write(file, now.text()).with_context(|| format!("{}", file.display()));
    }
    let complaints = instructions::Recorded::read(file)?.complaints(&now);
    ensure!(
        complaints.is_empty(),
        "instruction counts differ from {}:\n  {}\nIf that is meant, record them: BLESS=1 cargo test -p evenkeel-bench --test it",
        file.display(),
        complaints.join("\n  ")
    );
    Ok(())
}
