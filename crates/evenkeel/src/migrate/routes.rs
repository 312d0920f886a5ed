//! `evenkeel migrate routes`: routes of the Gateway API for those of Istio and of Ingresses.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use evenkeel_analyze::routes::{self, GatewayName, RouteOptions, WrittenRoutes};
use evenkeel_base::{Diagnostics, ObjectRef, Sources};
use evenkeel_k8s::client::ClusterOptions;

use crate::formats::Output;
use crate::manifests::Manifests;
use crate::validate::counted;

/// The exit status if an object remains.
const REMAINS: u8 = 2;

#[derive(Debug, Args)]
pub struct RoutesArguments {
    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: the cluster that kubectl would use].
    /// Services, DestinationRules and Pods (or Deployments) have to be among them.
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// Write prefixes of paths as `PathPrefix`, which matches whole parts between slashes: `/a` is none of `/ab`. Otherwise they
    /// become regular expressions, which match the same as before.
    #[arg(long)]
    path_parts: bool,

    /// The Gateway that routes of Ingresses attach to, by a ListenerSet in each namespace [default: a Gateway is written for each
    /// namespace].
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = gateway_name)]
    gateway: Option<GatewayName>,

    /// Output format. As text the routes are YAML on standard output, and the findings are on standard error.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn gateway_name(text: &str) -> Result<GatewayName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(GatewayName { namespace: namespace.into(), name: name.into() })
        }
        _ => Err("expected NAMESPACE/NAME, such as infra/public".to_owned()),
    }
}

/// Reads the objects and prints the routes.
pub fn run(arguments: &RoutesArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let manifests = if arguments.files.is_empty() {
        Manifests::of_cluster(&arguments.cluster)?
    } else {
        Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, None)?
    };
    manifests.report_errors();
    let sources = manifests.sources();
    let options = RouteOptions { by_parts: arguments.path_parts, gateway: arguments.gateway.clone() };
    let world = manifests.into_world();
    let written = routes::write(world.objects(), world.snapshot(), &options);
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", json(&written))?,
        Output::Text => print(&written, &sources, out)?,
    }
    Ok(if written.remaining.is_empty() { 0 } else { REMAINS })
}

fn print(written: &WrittenRoutes, sources: &Sources, out: &mut dyn Write) -> anyhow::Result<()> {
    for document in &written.documents {
        writeln!(out, "---\n{}", serde_saphyr::to_string(document)?.trim_end())?;
    }
    let mut errors = io::stderr().lock();
    let (infos, others): (Diagnostics, Diagnostics) = written.findings.clone().split_infos();
    errors.write_all(others.render(sources, errors.is_terminal()).as_bytes())?;
    errors.write_all(infos.in_short().as_bytes())?;
    let (replaced, remaining) = (written.replaced.len(), written.remaining.len());
    writeln!(
        errors,
        "{} written; {} replaced, {remaining} remaining",
        counted(written.documents.len(), "object"),
        counted(replaced, "object")
    )?;
    for object in &written.replaced {
        writeln!(errors, "  replaced: {}", name(object))?;
    }
    for object in &written.remaining {
        writeln!(errors, "  remains: {}", name(object))?;
    }
    if replaced > 0 {
        writeln!(errors, "Apply what is written before you delete what it replaces: docs/migration.md.")?;
    }
    Ok(())
}

fn name(object: &ObjectRef) -> String {
    format!("{} {}/{}", object.kind, object.namespace, object.name)
}

fn json(written: &WrittenRoutes) -> serde_json::Value {
    let names = |objects: &[ObjectRef]| -> serde_json::Value {
        let one = |object: &ObjectRef| serde_json::json!({"kind": object.kind, "namespace": &*object.namespace, "name": &*object.name});
        objects.iter().map(one).collect()
    };
    let finding = |one: &evenkeel_base::Diagnostic| {
        serde_json::json!({
            "object": one.object.as_ref().map(|object| name(object)), "severity": one.severity.as_str(), "code": one.code,
            "message": one.message, "at": one.span.to_string(), "help": one.help,
        })
    };
    serde_json::json!({
        "documents": written.documents, "replaced": names(&written.replaced), "remaining": names(&written.remaining),
        "findings": written.findings.iter().map(finding).collect::<serde_json::Value>(),
    })
}
