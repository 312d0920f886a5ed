//! Node metadata that an agent is given and that has no effect: it is named at the start.

use crate::bootstrap;
use crate::options::Options;

/// Names that the agent or Evenkeel's control plane reads.
const READ: [&str; 8] = [
    "AUTO_REGISTER_GROUP",
    "DNS_AUTO_ALLOCATE",
    "DNS_CAPTURE",
    "ENABLE_SELF_DISCOVERY",
    "GENERATOR",
    "INTERCEPTION_MODE",
    "NETWORK",
    "SELF_DISCOVERY_GROUPING_LABEL_NAMES",
];
/// Names that the control plane reads from the `proxyMetadata` of the node's ProxyConfig alone.
const OF_PROXY_METADATA: [&str; 2] = ["INBOUND_LISTENER_EXACT_BALANCE", "OUTBOUND_LISTENER_EXACT_BALANCE"];
/// Names that the agent itself gives values to, and what these come from.
const OF_OPTIONS: [(&str, &str); 10] = [
    ("CLUSTER_ID", "--cluster-id"),
    ("EVENKEEL", "--scope"),
    ("INSTANCE_IPS", "--ip"),
    ("LABELS", "--labels"),
    ("MESH_ID", "meshId of --proxy-config"),
    ("NAME", "--id"),
    ("NAMESPACE", "--namespace"),
    ("PROXY_CONFIG", "--proxy-config"),
    ("SERVICE_ACCOUNT", "--service-account"),
    ("WORKLOAD_NAME", "--workload-name"),
];
/// Maximum number of names that are reported.
const MAX_NAMED: usize = 50;

/// A sentence for each entry without an effect.
pub fn unread_metadata(options: &Options) -> Vec<String> {
    let node = bootstrap::node(options).unwrap_or_default();
    let unread = options.node_metadata().into_iter().filter_map(|(name, value)| {
        if let Some((_, option)) = OF_OPTIONS.iter().find(|(known, _)| *known == name) {
            let is_same = node["metadata"][&name].as_str() == Some(value.as_str());
            return (!is_same).then(|| format!("node metadata `{name}` has no effect: {option} sets it"));
        }
        if OF_PROXY_METADATA.contains(&name.as_str()) {
            let variable = format!("ISTIO_META_{name}");
            let is_set = node["metadata"]["PROXY_CONFIG"]["proxyMetadata"][&variable].is_string();
            return (!is_set)
                .then(|| format!("node metadata `{name}` has no effect: set `{variable}` in proxyMetadata instead"));
        }
        let is_read = READ.contains(&name.as_str());
        (!is_read).then(|| {
            format!(
                "node metadata `{name}` has no effect: neither the agent nor Evenkeel's control plane reads it; another \
                 control plane gets it"
            )
        })
    });
    unread.take(MAX_NAMED).collect()
}

/// Reports them in the log.
pub(crate) fn report(options: &Options) {
    unread_metadata(options).iter().for_each(|sentence| tracing::info!("{sentence}"));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(metadata: &[&str]) -> Options {
        let words = "agent sidecar --id web.shop --namespace shop --ip 10.0.0.1 --token t --root-cert r --discovery-address a:1 --state s";
        let metadata = metadata.iter().flat_map(|entry| ["--metadata", entry]);
        Cli::parse_from(words.split(' ').chain(metadata)).options
    }

    #[test]
    fn metadata_without_an_effect_are_named() {
        let check = |metadata: &[&str], expected: &[&str]| {
            let found = unread_metadata(&options(metadata));
            let said: Vec<&str> = found.iter().filter_map(|sentence| sentence.split('`').nth(1)).collect();
            assert_eq!(said, expected, "{metadata:?}: {found:?}");
        };
        check(&[], &[]);
        check(&["OWNER=kubernetes://x", "NETWORK=vm", "A=b"], &["A", "OWNER"]);
        // What says the same as the options need not be named, and what they override has to be.
        check(&["CLUSTER_ID=Kubernetes", "NAMESPACE=shop"], &[]);
        check(&["CLUSTER_ID=other", "LABELS=x"], &["CLUSTER_ID", "LABELS"]);
        // Only the ProxyConfig of the node counts.
        check(&["INBOUND_LISTENER_EXACT_BALANCE=true"], &["INBOUND_LISTENER_EXACT_BALANCE"]);
        let mut exact = options(&[]);
        let variables = json!({"ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE": "true"});
        exact.proxy_config.insert("proxyMetadata".to_owned(), variables);
        assert_eq!(unread_metadata(&exact), Vec::<String>::new());
        let read: Vec<String> = READ.iter().map(|name| format!("{name}=true")).collect();
        check(&read.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    }

    /// Each name that is called read is in the source of its reader.
    #[test]
    fn what_is_called_read_is_read() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
        let folders = ["agent/src", "translate/src", "control/src/registration"];
        let sources = folders.iter().flat_map(|folder| evenkeel_testkit::workspace::sources(&crates.join(folder)));
        let sources = sources.filter(|path| !path.ends_with("unread.rs"));
        let text: String = sources.map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
        for name in READ {
            assert!(text.contains(&format!("\"{name}\"")), "nothing reads {name}");
        }
        let node = bootstrap::node(&options(&[])).expect("a node");
        for (name, _) in OF_OPTIONS.iter().filter(|(name, _)| *name != "PROXY_CONFIG") {
            assert_ne!(node["metadata"][name], Value::Null, "the agent does not set {name}");
        }
    }
}
