//! `evenkeel inject`: adds sidecars to manifests, as the webhook adds them to Pods.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use evenkeel_api::STANDARD_INPUT;
use evenkeel_base::{Diagnostics, Severity, Sources, Span, yaml};
use evenkeel_control::source::files;
use evenkeel_control::webhooks::InjectionOptions;
use evenkeel_inject::Mesh;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use serde_json::Value;

use crate::formats;
use crate::manifests::Manifests;

pub const EXAMPLES: &str = "\
Examples:
  evenkeel inject -f app.yaml | kubectl apply -f -
  evenkeel inject -f app.yaml --mesh istio-config/ --proxy-image registry.example/evenkeel:1";

/// Flags of `evenkeel inject`.
#[derive(Debug, clap::Args)]
pub struct InjectArguments {
    /// Manifest with Pods, Deployments and others; - for standard input; may be repeated.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    filenames: Vec<PathBuf>,

    /// File or directory with the mesh's configuration: the ConfigMap `istio`, ProxyConfigs, Namespaces; may be repeated.
    #[arg(long, value_name = "FILE|DIR")]
    mesh: Vec<PathBuf>,

    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,

    #[command(flatten)]
    injection: InjectionOptions,
}

/// Prints the manifests with their sidecars as YAML. What has no Pods is printed as it is.
pub fn run(arguments: &InjectArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let snapshot = mesh(arguments)?;
    let template = arguments.injection.template(&snapshot.mesh);
    let mesh = Mesh {
        template: &template,
        namespace: &arguments.namespace,
        namespace_labels: &|namespace| snapshot.namespaces.get(namespace).cloned().unwrap_or_default(),
        config: &|namespace, labels| snapshot.proxy_config(namespace, labels),
    };
    let mut injected = 0;
    for path in &arguments.filenames {
        for mut document in documents(path)? {
            let found = mesh.inject(&mut document.json, &document.span);
            injected += found.map_err(|found| refused(&found, &document.file, &document.text))?;
            writeln!(out, "---\n{}", serde_saphyr::to_string(&document.json)?.trim_end())?;
        }
    }
    if injected == 0 {
        eprint_note(
            "no Pod of these files gets a sidecar: they have none, or its annotations or its namespace exclude it",
        );
    }
    Ok(0)
}

/// A manifest, and where it is.
struct Document {
    json: Value,
    span: Span,
    file: Arc<str>,
    text: Arc<str>,
}

fn documents(path: &Path) -> anyhow::Result<Vec<Document>> {
    let (file, text): (Arc<str>, _) = if path == Path::new("-") {
        (STANDARD_INPUT.into(), files::read_all(io::stdin()))
    } else {
        (path.to_string_lossy().into(), files::read_text(path))
    };
    let text: Arc<str> = text.with_context(|| format!("cannot read {file}"))?.into();
    let (nodes, found) = yaml::parse(&file, &text);
    if found.has_errors() {
        return Err(refused(&found, &file, &text));
    }
    let nodes = nodes.into_iter().filter(|node| !node.is_null());
    let document = |node: yaml::Node| Document {
        json: node.to_json(),
        span: node.span.clone(),
        file: file.clone(),
        text: text.clone(),
    };
    Ok(nodes.map(document).collect())
}

/// The mesh's configuration.
fn mesh(arguments: &InjectArguments) -> anyhow::Result<Snapshot> {
    let manifests = Manifests::read(&arguments.mesh);
    if manifests.diagnostics.has_errors() {
        bail!("the mesh's configuration has errors:\n{}", manifests.diagnostics);
    }
    Ok(evenkeel_model::build(&manifests.objects, &MeshConfig::default(), &mut AddressBook::default()).0)
}

fn refused(found: &Diagnostics, file: &Arc<str>, text: &Arc<str>) -> anyhow::Error {
    let errors: Diagnostics = found.iter().filter(|finding| finding.severity == Severity::Error).cloned().collect();
    let mut sources = Sources::default();
    sources.insert(file.clone(), text.clone());
    anyhow::anyhow!("{}", errors.render(&sources, formats::look().colour).trim_end())
}

fn eprint_note(text: &str) {
    // Standard output has the manifests.
    let _ = writeln!(io::stderr().lock(), "note: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_as_it_was() {
        let check = |text: &str| {
            let json = serde_json::json!({"a": text, "list": [text, {"b": text}], text: 1});
            let printed = serde_saphyr::to_string(&json).expect("YAML");
            let (nodes, found) = yaml::parse(&"printed".into(), &printed);
            assert!(!found.has_errors(), "{printed}: {found}");
            assert_eq!(nodes.first().map(yaml::Node::to_json), Some(json), "{printed}");
        };
        let texts = [
            "plain",
            "",
            " ",
            "true",
            "Yes",
            "off",
            "null",
            "~",
            "12",
            "0x1f",
            "0o7",
            "010",
            "1e3",
            ".inf",
            "1_000",
            "12:30:45",
            "2026-01-02",
            "a: b",
            "- a",
            "#x",
            "a #b",
            "*",
            "&a",
            "!b",
            "%c",
            "@d",
            "`e",
            "{",
            "[",
            "'",
            "\"",
            "a\nb",
            "a\nb\n",
            "\n",
            "tab\tx",
            "é",
            "\u{1}",
            "---",
            "=",
        ];
        texts.iter().for_each(|text| check(text));
    }
}
