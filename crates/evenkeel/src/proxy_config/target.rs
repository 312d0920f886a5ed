//! Which proxy `evenkeel proxy-config` asks, and how it shows the answer.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use evenkeel_explain::columns::columns_within;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_local::exec::ReplicaInfo;
use serde_json::Value as Json;

use crate::admin;
use crate::formats::width;
use crate::proxies::{Proxies, ProxiesChoice};

/// Spaces between two columns of a table.
const GAP: usize = 5;

/// One proxy.
#[derive(Debug, clap::Args)]
pub struct ProxyChoice {
    /// A workload of the running mesh or of a cluster, or one of its pods: NAME, POD, POD.NAMESPACE, deploy/NAME [default: the proxy
    /// on this machine]. Of several replicas the first is asked.
    pub workload: Option<String>,

    /// The workload's namespace; of a running mesh needed only if several namespaces have a workload of that name [default in a
    /// cluster: that of the context].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// The cluster with the workload, which is asked through its API server [default: the mesh that runs on this machine, or else the
    /// cluster that kubectl would use].
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Admin port of the proxy [default: 127.0.0.1:15000].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["workload", "state", "kubeconfig", "context"])]
    admin: Option<SocketAddr>,
}

/// One proxy, or the file with its answer.
#[derive(Debug, clap::Args)]
pub struct Target {
    #[command(flatten)]
    proxy: ProxyChoice,

    /// Read the page from a file, as `proxy-config page` has printed it, instead of asking a proxy.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["workload", "state", "admin", "kubeconfig", "context"])]
    file: Option<PathBuf>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table.
    #[value(alias = "short")]
    Table,
    /// The resources as JSON.
    Json,
    /// The resources as YAML.
    Yaml,
}

/// How the answer is shown.
#[derive(Debug, clap::Args)]
pub struct Shown {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

impl ProxyChoice {
    /// Which cluster is meant.
    pub fn cluster(&self) -> &ClusterOptions {
        &self.cluster
    }

    /// The answer to a request for a page. `body`: sent with POST.
    pub fn exchange(&self, page: &str, body: Option<&[u8]>) -> anyhow::Result<Vec<u8>> {
        let Some(workload) = &self.workload else {
            anyhow::ensure!(!self.cluster.is_given(), "name a workload or a Pod of the cluster");
            let proxies = Proxies::At(self.admin.unwrap_or_else(admin::default_proxy));
            return proxies.page(&beside(), page, body);
        };
        let choice = ProxiesChoice { admin: None, state: self.state.as_ref(), cluster: &self.cluster };
        let proxies = Proxies::find(&choice)?;
        let replicas = proxies.replicas(name(workload), self.namespace.as_deref())?;
        let first = replicas.first().with_context(|| format!("{workload} has no replica"))?;
        proxies.page(first, page, body)
    }
}

impl Target {
    /// Whether the answer comes from a file.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// A page of JSON.
    pub fn page(&self, page: &str) -> anyhow::Result<Json> {
        if let Some(file) = &self.file {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            return serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()));
        }
        let body = self.proxy.exchange(page, None)?;
        serde_json::from_slice(&body).with_context(|| format!("the proxy's page {page} is not JSON"))
    }

    /// The answer to an empty POST.
    pub fn post(&self, page: &str) -> anyhow::Result<Vec<u8>> {
        if self.is_file() {
            bail!("a file has no settings to change");
        }
        self.proxy.exchange(page, Some(&[]))
    }
}

/// The proxy on this machine, which has no name here.
fn beside() -> ReplicaInfo {
    ReplicaInfo { namespace: String::new(), workload: String::new(), pod: String::new(), failing: Vec::new() }
}

/// The name in kubectl's form KIND/NAME.
fn name(workload: &str) -> &str {
    const KINDS: [&str; 9] =
        ["deploy", "deployment", "deployments", "pod", "pods", "statefulset", "sts", "daemonset", "ds"];
    match workload.split_once('/') {
        Some((kind, name)) if KINDS.contains(&kind) => name,
        _ => workload,
    }
}

/// Prints resources, or else their rows under these heads.
pub fn print<const COLUMNS: usize>(
    shown: &Shown,
    resources: &[&Json],
    heads: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match shown.output {
        Output::Json => writeln!(out, "{:#}", serde_json::json!(resources))?,
        Output::Yaml => writeln!(out, "{}", serde_saphyr::to_string(&resources)?.trim_end())?,
        Output::Table => {
            let heads = heads.map(str::to_owned).to_vec();
            let mut table = vec![heads];
            table.extend(rows.into_iter().map(|row| row.to_vec()));
            out.write_all(columns_within(&table, GAP, width()).as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_in_kubectls_form_are_understood() {
        let check = |text: &str, expected: &str| assert_eq!(name(text), expected);
        check("web", "web");
        check("deploy/web", "web");
        check("pod/web-1", "web-1");
        check("web-1.shop", "web-1.shop");
        check("shop/web", "shop/web");
    }
}
