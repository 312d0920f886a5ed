//! `evenkeel workload group create`.

use std::io::Write;

use clap::Args;
use serde_json::{Map, Value, json};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel workload group create --name vm -n shop -l app=vm -p http=8080 -s vm | kubectl apply -f -";

/// Flags of `evenkeel workload group create`, with istioctl's names.
#[derive(Debug, Args)]
pub struct CreateArguments {
    /// The group's name.
    #[arg(long)]
    name: String,

    /// Its namespace.
    #[arg(short, long, value_name = "NAME")]
    namespace: String,

    /// Labels of its workloads: NAME=VALUE; may be repeated, or a list with commas.
    #[arg(short, long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Annotations of its workloads: NAME=VALUE; may be repeated, or a list with commas.
    #[arg(short, long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = pair)]
    annotations: Vec<(String, String)>,

    /// Ports of its workloads: NAME=NUMBER; may be repeated, or a list with commas.
    #[arg(short, long, value_name = "NAME=NUMBER", value_delimiter = ',', value_parser = port)]
    ports: Vec<(String, u16)>,

    /// The service account of its workloads.
    #[arg(short, long = "serviceAccount", alias = "service-account", value_name = "NAME", default_value = "default")]
    service_account: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    if name.is_empty() { Err(format!("`{text}` has no name")) } else { Ok((name.to_owned(), value.to_owned())) }
}

fn port(text: &str) -> Result<(String, u16), String> {
    let (name, number) = pair(text)?;
    match number.parse() {
        Ok(0) | Err(_) => Err(format!("`{number}` is not a port (1 to 65535)")),
        Ok(number) => Ok((name, number)),
    }
}

fn map<T: Clone + Into<Value>>(pairs: &[(String, T)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect()
}

/// Prints the group.
pub fn create(arguments: &CreateArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut template = json!({ "serviceAccount": arguments.service_account });
    if !arguments.ports.is_empty() {
        template["ports"] = map(&arguments.ports).into();
    }
    let mut metadata = Map::new();
    for (field, pairs) in [("labels", &arguments.labels), ("annotations", &arguments.annotations)] {
        if !pairs.is_empty() {
            metadata.insert(field.to_owned(), map(pairs).into());
        }
    }
    let mut spec = Map::new();
    if !metadata.is_empty() {
        spec.insert("metadata".to_owned(), metadata.into());
    }
    spec.insert("template".to_owned(), template);
    let group = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadGroup",
        "metadata": { "name": arguments.name, "namespace": arguments.namespace },
        "spec": spec,
    });
    out.write_all(serde_saphyr::to_string(&group)?.as_bytes())?;
    Ok(())
}
