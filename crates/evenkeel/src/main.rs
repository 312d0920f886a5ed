//! `evenkeel`: the one binary. Each command hands over to the crate that does the work.

mod admin;
mod allocator;
mod analyze;
mod apply;
mod authz;
mod bug_report;
mod ca;
mod capture_probe;
mod cluster;
mod cni;
mod commands;
mod compiled;
mod control_plane;
mod dashboard;
mod describe;
mod effective;
mod explain;
mod formats;
mod get;
mod go_flags;
mod heaps;
mod help;
mod history;
mod in_cluster;
mod inject;
mod istio_iptables;
mod last;
mod logging;
mod logs;
mod manifests;
mod migrate;
mod mtls;
mod overrides;
mod plan;
mod profile;
mod prove;
mod proxies;
mod proxy_config;
mod proxy_status;
mod purge;
mod settle;
mod tap;
mod top;
mod validate;
mod why;
mod workload;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use commands::Cli;

/// The exit status of wrong usage, as clap's.
const USAGE: i32 = 2;

fn main() -> ExitCode {
    evenkeel_proxy::memory::set_collector(|| {
        heaps::collect();
        purge::started();
    });
    if cni::is_plugin() {
        return status(cni::run_plugin());
    }
    let command = help::in_groups(Cli::command());
    let arguments = go_flags::arguments(&command, std::env::args_os().collect());
    let matches = command.try_get_matches_from(&arguments).unwrap_or_else(|error| {
        let arguments: Vec<String> = arguments.iter().map(|text| text.to_string_lossy().into_owned()).collect();
        if let Some(reason) = formats::why_no_output(&error, &arguments) {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {reason}");
            std::process::exit(USAGE);
        }
        error.exit()
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    status(commands::run(cli))
}

/// The exit status; an error is printed.
fn status(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {}", in_one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with all its causes, each printed once: the text of many errors ends with that of their cause.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |mut line, cause| {
        if !line.ends_with(&cause) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&cause);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Repeats(io::Error);

    impl fmt::Display for Repeats {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "--state: {}", self.0)
        }
    }

    impl Error for Repeats {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = || io::Error::other("no room");
        assert_eq!(in_one_line(&Repeats(error()).into()), "--state: no room");
        assert_eq!(in_one_line(&anyhow::Error::from(error()).context("writing")), "writing: no room");
        assert_eq!(in_one_line(&anyhow::Error::from(Repeats(error())).context("start")), "start: --state: no room");
    }
}
