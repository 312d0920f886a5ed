//! `evenkeel explain`: what happens to a call, and why.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_explain::question::parse_header;
use evenkeel_explain::{Caller, Question, Target, World};

use crate::manifests::Manifests;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel explain -f DIR --from web.shop --url http://reviews:9080/reviews/1 -H 'end-user: jason'
  evenkeel explain -f DIR --from-outside --url https://shop.example.com/ -o json
  evenkeel explain -f DIR --from web.shop --tcp db.data:5432";

#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// A file with YAML (`-`: standard input), or a directory; may be repeated.
    #[arg(short, long = "file", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The workload or Pod that calls.
    #[arg(long, value_name = "WORKLOAD.NAMESPACE", required_unless_present = "from_outside")]
    from: Option<String>,

    /// The call comes from outside the mesh, through the gateway that listens on its port.
    #[arg(long, conflicts_with = "from")]
    from_outside: bool,

    /// The URL that is called. A host name is resolved as the workload's DNS would.
    #[arg(long, value_name = "URL", required_unless_present = "tcp", conflicts_with = "tcp")]
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

    /// The result of random draws: which weighted destination is followed, from 0 to the sum of the weights.
    #[arg(long, value_name = "N", default_value_t = 0)]
    random: u64,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// How to print an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs; docs/explain.md describes the keys.
    Json,
}

/// Reads the files and answers. The status is 0 whatever happens to the call.
pub fn run(arguments: &ExplainArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let question = arguments.question()?;
    let manifests = Manifests::read(&arguments.files);
    manifests.report_errors();
    let world = World::new(manifests.objects, manifests.texts);
    let answer = world.ask(&question)?;
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&answer.to_json())?)?,
        Output::Text => write!(out, "{}", answer.to_text(io::stdout().is_terminal()))?,
    }
    Ok(0)
}

impl ExplainArguments {
    fn question(&self) -> anyhow::Result<Question> {
        let headers = self.headers.iter().map(|text| parse_header(text)).collect::<Result<Vec<_>, _>>()?;
        let target = match (&self.url, &self.tcp) {
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
            (None, None) => anyhow::bail!("say --url or --tcp"),
        };
        let from = match &self.from {
            Some(from) => Caller::parse(from),
            None => Caller::Outside,
        };
        Ok(Question { from, target, random: self.random })
    }
}
