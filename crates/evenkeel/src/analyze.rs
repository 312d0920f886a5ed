//! `evenkeel analyze`: every mistake of a configuration at once, with Istio's message codes.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_analyze::codes::{self, FoundAs};
use evenkeel_analyze::{Finding, Suppression, analyze, report};
use evenkeel_base::{Diagnostics, Severity};
use evenkeel_k8s::client::ClusterOptions;

use crate::compiled;
use crate::manifests::Manifests;
use crate::validate::counted;

/// The exit status with findings at the threshold, as istioctl's.
const FOUND: u8 = 79;
/// The exit status if a file cannot be read, as istioctl's.
const DATA_ERROR: u8 = 65;
/// Findings that a file cannot be read.
const UNREADABLE: [&str; 8] = [
    "unreadable-file",
    "yaml-syntax",
    "yaml-key",
    "yaml-tag",
    "yaml-alias",
    "yaml-merge",
    "file-too-large",
    "not-an-object",
];

#[derive(Debug, Args)]
pub struct AnalyzeArguments {
    /// A file (`-`: standard input), or a directory; all are analysed together [default: the running mesh's, or else those of the
    /// cluster that kubectl would use].
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,

    /// The same as a flag.
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,

    /// Exit with 79 if a finding has this level or a higher one.
    #[arg(long, value_enum, value_name = "LEVEL", ignore_case = true, default_value_t = Level::Error)]
    failure_threshold: Level,

    /// Show only findings with this level or a higher one.
    #[arg(long, value_enum, value_name = "LEVEL", ignore_case = true, default_value_t = Level::Info)]
    output_threshold: Level,

    /// Do not report these findings: CODE, or "CODE=KIND NAME.NAMESPACE", where `*` stands for any text; may be repeated.
    #[arg(short = 'S', long = "suppress", value_name = "CODE[=RESOURCE]")]
    suppress: Vec<Suppression>,

    /// List Istio's codes, and the findings that they are here.
    #[arg(short = 'L', long)]
    list_analyzers: bool,

    /// The cluster whose objects are analysed.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// Of a cluster: report findings about objects of this namespace [default: that of the context].
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["paths", "files"])]
    namespace: Option<String>,

    /// Of a cluster: report findings about objects of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["paths", "files", "namespace"])]
    all_namespaces: bool,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// How to print findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// As istioctl's.
    Json,
    /// SARIF 2.1.0.
    Sarif,
}

/// A level, as istioctl writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Good to know.
    #[value(name = "Info")]
    Info,
    /// Part of it has no effect.
    #[value(name = "Warning")]
    Warning,
    /// It is wrong.
    #[value(name = "Error")]
    Error,
}

impl Level {
    fn severity(self) -> Severity {
        match self {
            Self::Info => Severity::Info,
            Self::Warning => Severity::Warning,
            Self::Error => Severity::Error,
        }
    }
}

impl AnalyzeArguments {
    /// Whether the objects are those of a cluster: it is named, or there is nothing else.
    fn is_of_cluster(&self, paths: &[PathBuf]) -> bool {
        let is_named = self.cluster.is_given() || self.namespace.is_some() || self.all_namespaces;
        let is_other = || self.state.is_some() || Manifests::is_running(None);
        paths.is_empty() && (is_named || (!is_other() && self.cluster.is_found()))
    }

    /// The namespace whose objects are reported; `None`: all.
    fn reported_namespace(&self) -> anyhow::Result<Option<String>> {
        if self.all_namespaces {
            return Ok(None);
        }
        if let Some(namespace) = &self.namespace {
            return Ok(Some(namespace.clone()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Some(runtime.block_on(self.cluster.namespace())?))
    }
}

/// Whether a finding is about an object of a namespace, or of none.
fn is_about(finding: &Finding, namespace: &str) -> bool {
    let object = finding.diagnostic.object.as_ref();
    object.is_none_or(|object| object.namespace.is_empty() || *object.namespace == *namespace)
}

/// Analyses, prints the findings, and returns the exit status.
pub fn run(arguments: &AnalyzeArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if arguments.list_analyzers {
        list(out)?;
        return Ok(0);
    }
    let paths = [arguments.paths.clone(), arguments.files.clone()].concat();
    let is_of_cluster = arguments.is_of_cluster(&paths);
    let manifests = if is_of_cluster {
        Manifests::of_cluster(&arguments.cluster)?
    } else {
        Manifests::of_cluster_or_files(&arguments.cluster, &paths, arguments.state.as_deref())?
    };
    let mut read = manifests.diagnostics.clone();
    read.extend(compiled::refusals(&manifests.objects));
    let mut findings = analyze(&manifests.objects, &manifests.mesh, read, &arguments.suppress);
    if is_of_cluster && let Some(namespace) = arguments.reported_namespace()? {
        findings.retain(|finding| is_about(finding, &namespace));
    }
    let least = arguments.output_threshold.severity();
    let shown: Vec<Finding> = findings.iter().filter(|finding| finding.diagnostic.severity >= least).cloned().collect();
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", report::json(&shown))?,
        Output::Sarif => writeln!(out, "{:#}", report::sarif(&shown))?,
        Output::Text => print(&shown, &manifests, out)?,
    }
    let is_unreadable = findings.iter().any(|finding| UNREADABLE.contains(&finding.diagnostic.code));
    let threshold = arguments.failure_threshold.severity();
    Ok(match findings.iter().any(|finding| finding.diagnostic.severity >= threshold) {
        _ if is_unreadable => DATA_ERROR,
        true => FOUND,
        false => 0,
    })
}

fn print(findings: &[Finding], manifests: &Manifests, out: &mut dyn Write) -> io::Result<()> {
    let all: Diagnostics = findings.iter().map(Finding::to_diagnostic).collect();
    let (infos, others) = all.split_infos();
    out.write_all(others.render(&manifests.sources(), io::stdout().is_terminal()).as_bytes())?;
    out.write_all(infos.in_short().as_bytes())?;
    let (errors, warnings) = (others.count(Severity::Error), others.count(Severity::Warning));
    match (errors, warnings, infos.len()) {
        (0, 0, 0) => writeln!(out, "✔ No validation issues found in {}.", counted(manifests.objects.len(), "object")),
        (errors, warnings, infos) => {
            let objects = counted(manifests.objects.len(), "object");
            let (errors, warnings, infos) =
                (counted(errors, "error"), counted(warnings, "warning"), counted(infos, "info"));
            writeln!(out, "{objects}: {errors}, {warnings}, {infos}")
        }
    }
}

/// The codes, one per line.
fn list(out: &mut dyn Write) -> io::Result<()> {
    for code in codes::ALL {
        let found = match &code.found_as {
            FoundAs::Codes(list) => list.iter().map(|(code, _)| *code).collect::<Vec<_>>().join(", "),
            FoundAs::Refusals => "other errors of reading".to_owned(),
            FoundAs::Reservations => "other warnings of reading".to_owned(),
            FoundAs::NotApplicable(reason) => format!("not applicable: {reason}"),
        };
        writeln!(out, "{}  {:<7}  {:<50}  {found}", code.code, codes::level(code.level), code.name)?;
    }
    Ok(())
}
