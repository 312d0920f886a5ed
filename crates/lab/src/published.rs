//! The published provisioning runs as presets: services added every 5 s to a growing mesh, each called through a gateway.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::error::LabError;
use crate::options::{Options, duration};
use crate::output::{json, write_file};
use crate::progress::Progress;
use crate::proxy::Scope;
use crate::scenario::Scenario;
use crate::table;

/// The time between two services in the published runs.
const INTERVAL: Duration = Duration::from_secs(5);

/// Flags of `evenkeel-lab published`.
#[derive(Debug, Clone, Args)]
pub struct PublishedOptions {
    /// The runs [default: all].
    runs: Vec<String>,

    /// List the runs.
    #[arg(long)]
    list: bool,

    /// Time between two services, instead of the published 5s, with which 1,400 services take two hours.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    interval: Option<Duration>,

    /// Divide the number of services by this, for a trial.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    divide: u16,

    /// Simulated sidecars.
    #[arg(long, value_name = "N", default_value_t = 200)]
    proxies: usize,

    /// Directory for the results; runs whose result is there are left out.
    #[arg(long, value_name = "DIR", default_value = "bench-results/published")]
    out: PathBuf,

    /// Binary whose control plane and gateway are measured [default: the one beside this one].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// One run.
struct Run {
    name: &'static str,
    title: &'static str,
    services: usize,
    debounce_ms: u64,
    sotw: bool,
}

const BASE: Run = Run { name: "", title: "", services: 800, debounce_ms: 100, sotw: false };

/// Evenkeel never has more than one push in flight to a proxy, so there is no run without flow control.
const RUNS: &[Run] = &[
    Run { name: "800", title: "800 services, debounce 100 ms, delta, flow control", ..BASE },
    Run { name: "1000", title: "1,000 services", services: 1000, ..BASE },
    Run { name: "1400", title: "1,400 services", services: 1400, ..BASE },
    Run { name: "800-debounce-1s", title: "800 services, debounce 1 s", debounce_ms: 1000, ..BASE },
    Run { name: "800-sotw", title: "800 services, state of the world instead of delta", sotw: true, ..BASE },
];

impl Run {
    fn options(&self, published: &PublishedOptions) -> Options {
        Options {
            services: 1,
            changes: (self.services / usize::from(published.divide)).max(1),
            proxies: published.proxies,
            interval: published.interval.unwrap_or(INTERVAL),
            debounce: Some(Duration::from_millis(self.debounce_ms)),
            sotw: self.sotw,
            // Only an Envoy, which holds everything, may use the state of the world.
            scope: if self.sotw { Scope::Envoy } else { Scope::Full },
            ..Options::default()
        }
    }
}

/// Plays the chosen runs. `program` is the binary to measure unless the options name one.
pub async fn run(options: &PublishedOptions, program: PathBuf, out: &mut dyn Write) -> Result<(), LabError> {
    let mut print =
        |text: String| out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LabError::io("printing"));
    let chosen = chosen(&options.runs)?;
    if options.list {
        return chosen.iter().try_for_each(|run| print(format!("{:18} {}\n", run.name, run.title)));
    }
    let program = options.program.clone().unwrap_or(program);
    std::fs::create_dir_all(&options.out).map_err(LabError::io(format!("creating {}", options.out.display())))?;
    for run in chosen {
        let file = options.out.join(format!("{}.json", run.name));
        if file.exists() {
            print(format!("{}: {} is there; remove it to measure again\n", run.name, file.display()))?;
            continue;
        }
        let progress = Progress::new(run.name);
        let results = Scenario::Provision.run(&run.options(options), program.clone(), progress.clone()).await;
        progress.end();
        let results = results?;
        write_file(&file, &json(&results)?)?;
        print(format!("{}: {}\n{}\n", run.name, run.title, table::render(&results)))?;
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Run>, LabError> {
    let known: Vec<&str> = RUNS.iter().map(|run| run.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(LabError::Usage(format!("no run is called {unknown}: there are {}", known.join(", "))));
    }
    Ok(RUNS.iter().filter(|run| names.is_empty() || names.iter().any(|name| name == run.name)).collect())
}
