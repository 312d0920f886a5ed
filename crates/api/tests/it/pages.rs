//! `docs/mesh-config.md` is generated from the tables of settings, annotations and labels; run with `BLESS=1` after
//! changing one.

use std::fmt::Write;

use evenkeel_api::annotations::{ANNOTATIONS, Known, LABELS, Verdict};
use evenkeel_api::decode::{Decode, Field, Schema, Status};
use evenkeel_api::istio;
use evenkeel_testkit::{golden, workspace};

#[test]
fn mesh_config_page_is_the_tables() {
    let mut page = String::from(
        "# Settings of the mesh and of proxies, annotations and labels\n\n\
         The mesh's settings are Istio's MeshConfig, in the ConfigMap `istio` of the namespace `istio-system`, under the key `mesh`. \
         A proxy's settings are Istio's ProxyConfig: `defaultConfig` of the mesh, then the objects of the kind ProxyConfig (of the root \
         namespace, of the proxy's namespace, for its workload), then the Pod's annotation `proxy.istio.io/config`; what comes later \
         replaces whole fields. A proxy that sends a ProxyConfig of its own (`PROXY_CONFIG` in its node's metadata, as Istio's agent does) \
         has that one.\n\n\
         The tables list every field: those that work, those that are ignored with a warning (*ignored*), and those that have no effect \
         here (*no effect*, a note). A field that is not listed belongs to a newer version: it gets a warning with file and line, and the \
         other settings apply. It is an error if ignoring it could permit something, as inside `outboundTrafficPolicy`; then [the \
         strictest value](diagnostics.md#what-a-refused-object-closes) applies.\n\n\
         Statistics: a proxy reports all of them, unless `proxyStatsMatcher` or an annotation `sidecar.istio.io/statsInclusion…` selects \
         some. Then it reports those, the ones that Istio's proxies always report (names that begin with `cluster_manager`, \
         `listener_manager`, `server`, `cluster.xds-grpc`, `wasm`, `reporter=`, `component` or `istio`, that end in `rbac.allowed`, \
         `rbac.denied`, `shadow_allowed`, `shadow_denied` or `downstream_cx_active`, and those of routes with `statPrefix`), and \
         Evenkeel's own (`evenkeel…`). \
         `proxyStatsMatcher: {}` leaves only these. `{pod_ip}` stands for the workload's address. `extraStatTags` and the annotation of \
         this name extract tags from names of the form that Istio's filters write, `TAG=.=VALUE;.;`.\n\n\
         With `proxyHeaders.preserveHttp1HeaderCase`, Evenkeel's sidecars call each other over HTTP/1.1 connections, because header \
         names in HTTP/2 are in lower case.\n\n\
         Evenkeel's proxy has the keys of `runtimeValues` that limit connections, requests and resets ([proxy](proxy.md)); the others \
         are for Envoy. `drainDuration`, `extraStatTags`, `runtimeValues`, `fileFlushInterval`, `fileFlushMinSizeKb`, `serviceCluster`, \
         `tracingServiceName`, `proxyAdminPort`, `statusPort` and `caCertificatesPem` are read by the agent when it starts, so a \
         change of them applies to proxies that start later. The roots of `caCertificatesPem` verify peers, never the control plane.\n\n\
         The agent's page, port 15020 or `statusPort`, has `/healthz/ready` and `/stats/prometheus`: the metrics of the proxy, and of \
         the program if the Pod has the annotation `prometheus.io/scrape: \"true\"` (its `prometheus.io/port`, `prometheus.io/path`), \
         unless `enablePrometheusMerge` is false. As in Istio, the page is served in plain text to whoever reaches the port.\n\n\
         `proxyHttpPort` makes an HTTP proxy in every sidecar, for programs that are configured to use one \
         (`http_proxy=http://127.0.0.1:PORT`). It serves the hosts that the workload may call, on ports that no egress listener of its \
         Sidecar names.\n\n\
         This page is generated from the tables in `crates/api` by a test (`make bless` writes it); do not edit it.\n",
    );
    section(&mut page, "MeshConfig", &istio::MeshConfig::schema());
    section(&mut page, "ProxyConfig", &<istio::ProxyConfig as Decode>::schema());
    names(&mut page, "Annotations", ANNOTATIONS);
    names(&mut page, "Labels", LABELS);
    golden::check(workspace::root().join("docs/mesh-config.md"), &page);
}

/// Fields as rows of a table; the fields of a nested kind follow it.
fn section(page: &mut String, title: &str, schema: &Schema) {
    let _ = writeln!(page, "\n## {title}\n\n| field | expects |\n|---|---|");
    let mut others = Vec::new();
    rows("", schema, page, &mut others, 0);
    for (status, label) in [
        (Status::Later, "Ignored"),
        (Status::Refused, "Refused"),
        (Status::Inert, "No effect"),
        (Status::Removed, "No effect any more"),
    ] {
        let of = || others.iter().filter(|(of, ..)| *of == status);
        let plain: Vec<String> =
            of().filter(|(.., note)| note.is_empty()).map(|(_, path, _)| format!("`{path}`")).collect();
        if of().next().is_some() {
            let _ = writeln!(page, "\n{label}{}{}", if plain.is_empty() { "" } else { ": " }, plain.join(", "));
        }
        let reasons: String =
            of().filter(|(.., note)| !note.is_empty()).map(|(_, path, note)| format!("\n- `{path}`: {note}")).collect();
        if !reasons.is_empty() {
            let _ = writeln!(page, "{reasons}");
        }
    }
}

/// A field that does not work, and why.
type Other = (Status, String, &'static str);

/// Deeper than the settings.
const MAX_DEPTH: usize = 12;

fn rows(path: &str, schema: &Schema, page: &mut String, others: &mut Vec<Other>, depth: usize) {
    assert!(depth < MAX_DEPTH, "{path}");
    match schema {
        Schema::Object(fields) => fields.iter().for_each(|field| row(path, field, page, others, depth)),
        Schema::List(item) if matches!(**item, Schema::Object(_)) => {
            rows(&format!("{path}[]"), item, page, others, depth + 1)
        }
        other => {
            let _ = writeln!(page, "| `{path}` | {} |", other.describe());
        }
    }
}

fn row(path: &str, field: &Field, page: &mut String, others: &mut Vec<Other>, depth: usize) {
    let dot = if path.is_empty() { "" } else { "." };
    let path = format!("{path}{dot}{}", field.name);
    match field.schema.filter(|_| field.status == Status::Works) {
        None => others.push((field.status, path, field.note)),
        // It has a section of its own.
        Some(_) if path == "defaultConfig" => {
            let _ = writeln!(page, "| `{path}` | [ProxyConfig](#proxyconfig) |");
        }
        Some(schema) => rows(&path, &schema(), page, others, depth + 1),
    }
}

fn names(page: &mut String, title: &str, table: &[Known]) {
    let _ = writeln!(page, "\n## {title}\n\n| name | on | effect |\n|---|---|---|");
    for known in table {
        let places = if known.places.is_empty() { "any kind".to_owned() } else { known.places.join(", ") };
        let effect = match known.verdict {
            Verdict::Honoured => known.note.to_owned(),
            Verdict::OnlyValues(values) => format!(
                "only {}; {}",
                values.iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", "),
                known.note
            ),
            Verdict::NotYet => format!("*ignored*: {}", known.note),
            Verdict::Inert => format!("*no effect*: {}", known.note),
        };
        let _ = writeln!(page, "| `{}` | {places} | {effect} |", known.name);
    }
    let _ = writeln!(page, "\n`Pod` includes the template of a Deployment, StatefulSet or DaemonSet.");
}
