//! `evenkeel prove`: whether any request gets from one party to another.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_explain::columns::filled;
use evenkeel_explain::prove::Reachability;
use evenkeel_explain::{Claim, Party};
use evenkeel_k8s::client::ClusterOptions;

use crate::formats::{Output, width};
use crate::manifests::Manifests;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel prove -f DIR --from outside --to db.data
  evenkeel prove -f DIR --from 'shop/*' --to reviews-v1.shop --path /admin --method DELETE
  evenkeel prove -f DIR --from '*' --to 'data/*' --without-jwt --expect unreachable

The exit status is 0 if it is proven that no request gets through, 1 if one does, 3 if that is not decided.
With --expect it is 0 if that holds, 1 if not, 3 if that is not decided. 2: the question has mistakes.";

/// Exit status if the answer differs from the expected one, or if a request gets through.
const OTHERWISE: u8 = 1;
/// Status if the question cannot be answered.
const MISTAKE: u8 = 2;
/// Exit status if the question is undecided.
const UNDECIDED: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Expected {
    Reachable,
    Unreachable,
}

#[derive(Debug, Args)]
pub struct ProveArguments {
    /// Who calls: WORKLOAD[.NAMESPACE], NAMESPACE/* (all its workloads), outside, or *.
    #[arg(long, value_name = "PARTY")]
    from: String,

    /// Who is called, in the same words.
    #[arg(long, value_name = "PARTY")]
    to: String,

    /// Only requests with this path [default: any].
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Only requests with this method [default: any].
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Only calls of this port, that of the service or gateway [default: any].
    #[arg(long, value_name = "N")]
    port: Option<u16>,

    /// Only calls of this host [default: any].
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Only requests without a token (JWT).
    #[arg(long)]
    without_jwt: bool,

    /// Fail unless this is proven.
    #[arg(long, value_enum, value_name = "ANSWER")]
    expect: Option<Expected>,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Decides, and prints the answer.
pub fn run(arguments: &ProveArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    match prove(arguments, out) {
        Ok(status) => Ok(status),
        Err(error) => {
            // 1 is an answer of this command.
            // Nothing can be done if standard error is gone.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            Ok(MISTAKE)
        }
    }
}

fn prove(arguments: &ProveArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if let Some(path) = arguments.path.as_ref().filter(|path| !path.starts_with('/')) {
        anyhow::bail!("`{path}` is not a path: it begins with a slash");
    }
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    manifests.report_errors();
    let world = manifests.into_world();
    let claim = Claim {
        from: Party::parse(&arguments.from),
        to: Party::parse(&arguments.to),
        path: arguments.path.clone(),
        method: arguments.method.clone(),
        port: arguments.port,
        host: arguments.host.clone(),
        without_jwt: arguments.without_jwt,
    };
    let proof = world.prove(&claim)?;
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&proof)?)?,
        Output::Text => write!(out, "{}", filled(&proof.to_text(), width()))?,
    }
    let wanted = match arguments.expect {
        Some(Expected::Reachable) => Reachability::Reachable,
        Some(Expected::Unreachable) | None => Reachability::Unreachable,
    };
    Ok(match proof.verdict {
        verdict if verdict == wanted => 0,
        Reachability::Undecided => UNDECIDED,
        _ => OTHERWISE,
    })
}
