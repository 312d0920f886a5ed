//! A bootstrap file of the user in place of the agent's: `customConfigFile` of ProxyConfig, or `proxyBootstrapTemplatePath`.
//!
//! The file is Envoy's JSON or YAML. As in Istio, everything in it is the user's, except what the agent itself depends on:
//! the node, the admin interface, and the clusters for the agent and the control plane.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use evenkeel_base::yaml;
use serde_json::Value;

use crate::options::Options;

/// Clusters whose addresses only the agent knows.
const OF_AGENT: [&str; 2] = ["sds-grpc", "xds-grpc"];
/// The start of an action in Go's templates, of which Istio's own bootstrap template is full.
const TEMPLATE_ACTION: &str = "{{";

/// The file, if there is one: `customConfigFile` goes first, as in Istio.
pub(crate) fn file(options: &Options) -> Option<PathBuf> {
    let names = ["customConfigFile", "proxyBootstrapTemplatePath"];
    let mut given = names.iter().filter_map(|name| options.proxy_config.get(*name)?.as_str());
    given.find(|path| !path.is_empty()).map(PathBuf::from)
}

/// The bootstrap from this file; `own` is the agent's.
///
/// # Errors
/// It cannot be read, or is no bootstrap; the message names the place in the file.
pub(crate) fn read(path: &Path, own: &Value) -> anyhow::Result<Value> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("bootstrap file {name} of the proxy's ProxyConfig"))?;
    from_text(&name.to_string().into(), &text, own)
}

fn from_text(name: &Arc<str>, text: &str, own: &Value) -> anyhow::Result<Value> {
    if let Some((number, line)) = text.lines().enumerate().find(|(_, line)| line.contains(TEMPLATE_ACTION)) {
        let column = line.find(TEMPLATE_ACTION).unwrap_or_default() + 1;
        bail!(
            "{name}:{}:{column}: the file is a template of Go; expected a whole bootstrap, in JSON or YAML \
             (the agent adds the node, the admin interface, and the clusters {})",
            number + 1,
            OF_AGENT.join(" and ")
        );
    }
    let (documents, diagnostics) = yaml::parse(name, text);
    if diagnostics.has_errors() {
        bail!("{}", diagnostics.to_string().trim_end());
    }
    let [document] = documents.as_slice() else { bail!("{name}: expected one document, found {}", documents.len()) };
    let mut bootstrap = document.to_json();
    let Some(fields) = bootstrap.as_object_mut() else {
        bail!("{}: expected the fields of a bootstrap, e.g. `static_resources:`", document.span)
    };
    for name in ["node", "admin"] {
        fields.insert(name.to_owned(), own[name].clone());
    }
    add_clusters(&mut bootstrap, own).with_context(|| document.span.to_string())?;
    Ok(bootstrap)
}

/// Puts the agent's own clusters in place of those with their names.
fn add_clusters(bootstrap: &mut Value, own: &Value) -> anyhow::Result<()> {
    let is_own = |cluster: &Value| cluster["name"].as_str().is_some_and(|name| OF_AGENT.contains(&name));
    let resources = bootstrap.as_object_mut().map(|fields| fields.entry("static_resources").or_insert(Value::Null));
    let Some(resources) = resources else { return Ok(()) };
    if resources.is_null() {
        *resources = Value::Object(serde_json::Map::new());
    }
    let clusters =
        resources.as_object_mut().map(|fields| fields.entry("clusters").or_insert_with(|| Value::Array(Vec::new())));
    let Some(clusters) = clusters.and_then(Value::as_array_mut) else {
        bail!("`static_resources.clusters` is no list");
    };
    clusters.retain(|cluster| !is_own(cluster));
    let all = own["static_resources"]["clusters"].as_array();
    clusters.extend(all.into_iter().flatten().filter(|cluster| is_own(cluster)).cloned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own() -> Value {
        json!({
            "node": { "id": "own" },
            "admin": { "address": "own" },
            "static_resources": { "clusters": [{ "name": "xds-grpc" }, { "name": "sds-grpc" }, { "name": "agent" }] },
        })
    }

    #[test]
    fn the_owners_file_keeps_what_the_agent_depends_on() {
        let check = |text: &str, expected: Value| {
            assert_eq!(from_text(&"f.yaml".into(), text, &own()).expect(text), expected, "{text}");
        };
        let ours = json!([{ "name": "xds-grpc" }, { "name": "sds-grpc" }]);
        let (node, admin) = (json!({ "id": "own" }), json!({ "address": "own" }));
        let only = json!({ "node": node, "admin": admin, "static_resources": { "clusters": ours } });
        check("{}", only.clone());
        check("node: {id: other}\nadmin: {}\n", only.clone());
        check("static_resources:\n", only);
        check(
            "static_resources: {clusters: [{name: a}, {name: sds-grpc, type: STATIC}], listeners: []}\nstats_flush_interval: 1s\n",
            json!({
                "node": node,
                "admin": admin,
                "stats_flush_interval": "1s",
                "static_resources": {
                    "clusters": [{ "name": "a" }, { "name": "xds-grpc" }, { "name": "sds-grpc" }],
                    "listeners": [],
                },
            }),
        );
    }

    #[test]
    fn a_file_that_is_no_bootstrap_is_named() {
        let check = |text: &str, expected: &str| {
            let error = from_text(&"f.yaml".into(), text, &own()).expect_err(text);
            assert!(format!("{error:#}").contains(expected), "{text}: {error:#}");
        };
        check("{\n  \"node\": {{ .node }}\n}\n", "f.yaml:2:11: the file is a template of Go");
        check("a: [", "f.yaml:2:1: error[yaml-syntax]");
        check("- a\n", "expected the fields of a bootstrap");
        check("a: 1\n---\nb: 2\n", "expected one document, found 2");
        check("static_resources: {clusters: 1}\n", "`static_resources.clusters` is no list");
    }
}
