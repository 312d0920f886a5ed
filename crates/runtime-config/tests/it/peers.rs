//! Resources of real control planes: ours must be accepted completely; of istiod's, rejected fields are reported by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_base::yaml::{self, Node};
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_testkit::{TestCa, workspace};
use evenkeel_tls::SecretStore;
use serde_json::{Value, json};

use crate::input;

/// The order the resources of a file are set in.
const KINDS: [&str; 4] = ["CDS", "EDS", "LDS", "RDS"];

fn parse(path: &Path) -> Node {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut documents, diagnostics) = yaml::parse(&path.display().to_string().as_str().into(), &text);
    assert!(!diagnostics.has_errors(), "{}: {diagnostics:?}", path.display());
    documents.swap_remove(0)
}

fn files(folder: &Path, extension: &str, out: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.expect("a readable folder").path()) {
        match path.is_dir() {
            true => files(&path, extension, out),
            false if path.extension().is_some_and(|found| found == extension) => out.push(path),
            false => {}
        }
    }
    out.sort();
}

#[test]
fn all_our_control_plane_sends_is_accepted() {
    let mut golden = Vec::new();
    files(&workspace::root().join("crates/translate/tests/it/golden"), "json", &mut golden);
    // What programs get that are gRPC clients themselves is not for proxies.
    golden.retain(|path| !path.to_string_lossy().ends_with(".grpc.json"));
    let mut resources = 0;
    for path in &golden {
        let document = parse(path);
        let mapping = document.as_mapping().expect("a mapping by kind");
        let mut builder = Builder::new(with_files(), SecretStore::new());
        for kind in KINDS {
            for node in mapping.get(kind).and_then(Node::as_sequence).unwrap_or_default() {
                let any = input::node_any(&path.display().to_string(), node);
                input::set(&mut builder, &any).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                resources += 1;
            }
        }
        warm(&mut builder, path);
    }
    // Two whole proxies. The resources of all scenarios go through the proxy in translate's `own_proxy`.
    assert!(resources > 20, "{resources}");
}

/// Every file a resource names is there: keys, certificates and roots by the end of their name.
fn with_files() -> Environment {
    let ca = TestCa::new();
    let (identity, root) = (ca.for_dns(&["edge.example"]), ca.root_pem());
    let read_file = move |path: &Path| {
        let name = path.to_string_lossy();
        let text = match () {
            () if name.ends_with("key") || name.ends_with("key.pem") => &identity.key_pem,
            () if name.contains("ca") && name.ends_with(".pem") || name.contains("root") => &root,
            () => &identity.cert_pem,
        };
        Ok(text.clone().into_bytes())
    };
    Environment { read_file: Box::new(read_file), ..Environment::process() }
}

/// Gives up on secrets; everything else must be there, so that all of it serves.
fn warm(builder: &mut Builder, path: &Path) {
    let missing = builder.missing();
    for reference in &missing.secrets {
        builder.give_up_secret(reference);
    }
    // Names of DNS clusters: any answer will do.
    for cluster in builder.dns_clusters() {
        for target in &cluster.targets {
            builder.set_dns_endpoints(&cluster.cluster, &target.host, &["192.0.2.1".parse().expect("an address")]);
        }
    }
    assert_eq!(missing.routes, [], "{}: routes nobody sent", path.display());
    assert_eq!(missing.endpoints, [], "{}: endpoints nobody sent", path.display());
    let config = builder.build();
    assert_eq!(config.listeners.len(), builder.listeners().count(), "{}", path.display());
    assert_eq!(config.clusters.len(), builder.clusters().count(), "{}", path.display());
}

/// What istiod sends for extensions that users have asked for, and that this proxy does not have.
const ABSENT: [&str; 3] = ["DatadogConfig", "lua.v3.Lua", "RedisProxy"];

/// `EVENKEEL_ISTIOD_CAPTURES=DIR cargo test -p evenkeel-runtime-config istiod`, where DIR holds folders of `CDS.json`, `EDS.json`,
/// `LDS.json`, `RDS.json` as istiod sent them.
#[test]
fn istiod_is_accepted_or_refused_by_name() {
    let Some(folder) = std::env::var_os("EVENKEEL_ISTIOD_CAPTURES") else {
        return eprintln!("skipped: EVENKEEL_ISTIOD_CAPTURES names no folder with captures of a real istiod");
    };
    let mut captures = Vec::new();
    files(Path::new(&folder), "json", &mut captures);
    let (mut accepted, mut refused) = (0, 0);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for path in captures.iter().filter(|path| KINDS.iter().any(|kind| path.ends_with(format!("{kind}.json")))) {
        let document = parse(path);
        let mut builder = input::builder();
        for node in document.as_sequence().expect("a list") {
            let mut value = node.to_json();
            hide_unknown_types(&mut value);
            let (nodes, _) = yaml::parse(&"rewritten".into(), &value.to_string());
            match input::set(&mut builder, &input::node_any(&path.display().to_string(), &nodes[0])) {
                Ok(()) => accepted += 1,
                Err(rejection) => {
                    refused += 1;
                    for problem in rejection.problems {
                        assert!(!problem.path.is_empty(), "{problem}");
                        *reasons.entry(without_indices(&problem.to_string())).or_default() += 1;
                    }
                }
            }
        }
        builder.build();
    }
    let mut report = format!("{accepted} accepted, {refused} refused\n");
    for (reason, count) in &reasons {
        report += &format!("{count:6}  {reason}\n");
    }
    let out = std::env::temp_dir().join("istiod-captures.txt");
    std::fs::write(&out, report).expect("a writable folder");
    assert!(accepted > 0, "see {}", out.display());
    let unknown: Vec<_> = reasons.keys().filter(|reason| !ABSENT.iter().any(|name| reason.contains(name))).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// An `Any` of a type our schema lacks cannot be written from JSON: it becomes a `TypedStruct` of the same type.
fn hide_unknown_types(value: &mut Value) {
    let schema = evenkeel_xds::Schema::acquire();
    let url = value.get("@type").and_then(Value::as_str).map(str::to_owned);
    let known = |url: &String| schema.message(evenkeel_xds::type_url::message_name(url)).is_some();
    if let Some(url) = url.filter(|url| !known(url)) {
        *value = json!({ "@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": url });
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(hide_unknown_types),
        Value::Object(fields) => fields.values_mut().for_each(hide_unknown_types),
        _ => {}
    }
}

fn without_indices(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in text.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        out.push(c);
    }
    out
}
