//! `evenkeel workload entry configure`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use evenkeel_api::istio::{ReadinessProbe, WorkloadGroup};
use evenkeel_api::{Object, Resource};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{Cluster, ObjectKind, TokenOf};
use serde_json::Value;

use super::files::{self, Machine};
use crate::cluster::block_on;
use crate::manifests::Manifests;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel workload entry configure -f group.yaml --ip 192.0.2.7 -o vm-1/
  evenkeel workload entry configure --name vm -n shop --ip 192.0.2.7 --ingress-ip 198.51.100.1 -o vm-1/";

/// The audience of tokens for the control plane.
const AUDIENCE: &str = "istio-ca";
/// The ConfigMap with the roots that verify the control plane.
const ROOTS: &str = "istio-ca-root-cert";

/// Flags of `evenkeel workload entry configure`; istioctl's names work, too.
#[derive(Debug, Args)]
pub struct ConfigureArguments {
    /// A file with the WorkloadGroup [default: the one of the cluster with --name and --namespace].
    #[arg(short, long, value_name = "FILE", conflicts_with = "name")]
    file: Option<PathBuf>,

    /// The group's name.
    #[arg(long, required_unless_present = "file")]
    name: Option<String>,

    /// The group's namespace.
    #[arg(short, long, value_name = "NAME", required_unless_present = "file")]
    namespace: Option<String>,

    /// The machine's address.
    #[arg(long, alias = "internalIP", value_name = "IP")]
    ip: IpAddr,

    /// The machine's name [default: the group's name and the address].
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Folder for the files.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Name of the cluster.
    #[arg(long, alias = "clusterID", value_name = "NAME", default_value = "Kubernetes")]
    cluster_id: String,

    /// Address at which the machine reaches the control plane, for its file of hosts [default: its name is resolved].
    #[arg(long, alias = "ingressIP", value_name = "IP")]
    ingress_ip: Option<IpAddr>,

    /// Namespace of the control plane.
    #[arg(long, value_name = "NAME", default_value = "istio-system")]
    control_plane_namespace: String,

    /// Revision of the control plane [default: the default one].
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,

    /// Network of the machine.
    #[arg(long, value_name = "NAME")]
    network: Option<String>,

    /// Do not register the machine: its WorkloadEntry is written by somebody.
    #[arg(long)]
    no_autoregister: bool,

    /// Lifetime of the token, in seconds. The agent needs it until it has a certificate, and again if that has ended.
    #[arg(long, alias = "tokenDuration", value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(i64).range(600..))]
    token_duration: i64,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// Writes the files.
pub fn configure(arguments: &ConfigureArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    block_on(async {
        let cluster = Cluster::of(&arguments.cluster).await?;
        let group = group(arguments, &cluster).await?;
        let Resource::WorkloadGroup(spec) = &group.resource else { bail!("{group} is no WorkloadGroup") };
        let machine = machine(arguments, &group, spec);
        let roots = roots(&cluster, &machine.namespace).await?;
        let token = TokenOf {
            namespace: &machine.namespace,
            account: &machine.service_account,
            audience: AUDIENCE,
            seconds: arguments.token_duration,
        };
        let token = cluster.token(&token).await.with_context(|| {
            format!("no token for the service account {} of {}", machine.service_account, machine.namespace)
        })?;
        write_all(&arguments.output, &machine, &[("root-cert.pem", &roots), ("istio-token", &token)])
    })??;
    let folder = arguments.output.display();
    writeln!(out, "{folder}: copy it to the machine, and run {folder}/{} there as root", files::SCRIPT)?;
    writeln!(out, "The token in it holds for {} s: it is a secret.", arguments.token_duration)?;
    Ok(())
}

async fn group(arguments: &ConfigureArguments, cluster: &Cluster) -> anyhow::Result<Object> {
    let manifests = match &arguments.file {
        Some(file) => Manifests::read(std::slice::from_ref(file)),
        None => {
            let name = arguments.name.as_deref().unwrap_or_default();
            let kind = ObjectKind { api_version: "networking.istio.io/v1", kind: "WorkloadGroup" };
            let found = cluster.get(kind, arguments.namespace.as_deref(), name).await?;
            let found = found.with_context(|| format!("the cluster has no WorkloadGroup {name}"))?;
            Manifests::of_text("WorkloadGroup", &found.to_string())
        }
    };
    manifests.report_errors();
    let mut groups = manifests
        .objects
        .into_iter()
        .filter(|object| matches!(object.resource, Resource::WorkloadGroup(_)) && object.refused.is_none());
    match (groups.next(), groups.next()) {
        (Some(group), None) => Ok(group),
        (None, _) => bail!("there is no WorkloadGroup that can be used"),
        (Some(_), Some(_)) => bail!("the file has several WorkloadGroups: give one"),
    }
}

fn machine(arguments: &ConfigureArguments, group: &Object, spec: &WorkloadGroup) -> Machine {
    let template = &spec.spec.template;
    let revision = arguments.revision.as_deref().filter(|revision| *revision != "default");
    let service = revision.map_or_else(|| "istiod".to_owned(), |revision| format!("istiod-{revision}"));
    let name = arguments
        .machine
        .clone()
        .unwrap_or_else(|| format!("{}-{}", group.name, arguments.ip.to_string().replace(['.', ':'], "-")));
    let labels: BTreeMap<String, String> = spec.spec.labels();
    Machine {
        name,
        namespace: group.namespace.to_string(),
        group: group.name.to_string(),
        service_account: template
            .service_account
            .as_ref()
            .map_or_else(|| "default".to_owned(), |own| own.0.to_string()),
        ip: arguments.ip,
        labels,
        ports: template.ports.values().map(|port| port.0.to_string()).collect(),
        network: arguments.network.clone().or_else(|| template.network.clone()),
        cluster_id: arguments.cluster_id.clone(),
        control_plane: format!("{service}.{}.svc", arguments.control_plane_namespace),
        control_plane_ip: arguments.ingress_ip,
        registers: !arguments.no_autoregister,
        probe: spec.spec.probe.as_ref().map(ReadinessProbe::to_json),
    }
}

async fn roots(cluster: &Cluster, namespace: &str) -> anyhow::Result<String> {
    let kind = ObjectKind { api_version: "v1", kind: "ConfigMap" };
    let found = cluster.get(kind, Some(namespace), ROOTS).await?;
    let roots = found.as_ref().and_then(|map| map.pointer("/data/root-cert.pem")).and_then(Value::as_str);
    roots.map(str::to_owned).with_context(|| {
        format!(
            "the namespace {namespace} has no ConfigMap {ROOTS} with root-cert.pem: is the control plane installed?"
        )
    })
}

fn write_all(folder: &Path, machine: &Machine, more: &[(&str, &str)]) -> anyhow::Result<()> {
    let place = || folder.display().to_string();
    fs::create_dir_all(folder).with_context(place)?;
    let own = machine.files();
    let all = own.iter().map(|(name, text)| (*name, text.as_str())).chain(more.iter().copied());
    for (name, text) in all {
        let mode = match name {
            files::SCRIPT => 0o755,
            "istio-token" => 0o600,
            _ => 0o644,
        };
        files::write(&folder.join(name), text, mode).with_context(place)?;
    }
    Ok(())
}
