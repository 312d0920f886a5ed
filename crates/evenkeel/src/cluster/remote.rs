//! `evenkeel create-remote-secret` and `evenkeel remote-clusters`: other clusters of the mesh.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_admin::clusters::{self, RemoteCluster};
use evenkeel_explain::columns::columns_within;
use evenkeel_install::MANAGER;
use evenkeel_k8s::client::{ClusterOptions, ExecPlugins, ServerAddress};
use evenkeel_k8s::cluster::{ApplyOptions, Cluster, ObjectKind, TokenOf};
use evenkeel_k8s::remote::{LABEL, LABEL_VALUE};
use serde_json::{Value, json};

use crate::admin;
use crate::formats::{Output, width};
use crate::in_cluster::ControlPlaneChoice;

pub const EXAMPLES: &str = "\
Examples:
  evenkeel create-remote-secret --context west --name west | kubectl apply --context east -f -";

/// The service account of the control planes of other clusters, as Istio's.
const ACCOUNT: &str = "istio-reader-service-account";
/// How long a controller of the cluster may take to write a token.
const TOKEN_WAIT: Duration = Duration::from_secs(20);
/// How often it is looked for.
const TOKEN_LOOK: Duration = Duration::from_millis(500);

/// What the Secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SecretType {
    /// The endpoints of the cluster.
    Remote,
}

#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    /// Name of the cluster, as its proxies know it (`global.multiCluster.clusterName`) [default: the UID of the namespace kube-system].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// What the Secret is for.
    #[arg(long = "type", value_enum, default_value_t = SecretType::Remote)]
    kind: SecretType,

    /// Namespace of the control planes, in both clusters.
    #[arg(
        short = 'i',
        long = "namespace",
        alias = "istioNamespace",
        short_alias = 'n',
        value_name = "NAME",
        default_value = "istio-system"
    )]
    namespace: String,

    /// Service account of the cluster that may read its endpoints.
    #[arg(long, value_name = "NAME", default_value = ACCOUNT)]
    service_account: String,

    /// Whether to create the service account, with its rights.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    create_service_account: bool,

    /// Address of the API server for other clusters [default: that of the context].
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// Ask for a token that holds this long, in seconds, instead of one that holds until its Secret is deleted.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(600..))]
    token_duration: Option<i64>,

    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Debug, clap::Args)]
pub struct ListArguments {
    /// HTTP port of the control plane; may be repeated [default: those in the cluster that kubectl would use].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["kubeconfig", "context"])]
    control_plane: Vec<SocketAddr>,

    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the Secret by which another cluster reads the endpoints of this one.
pub async fn create(arguments: &CreateArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let SecretType::Remote = arguments.kind;
    let cluster = Cluster::of(&arguments.cluster).await?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => unnamed(&cluster).await?,
    };
    if !evenkeel_api::remote::is_cluster_name(&name) {
        bail!("--name: `{name}` cannot be the name of a cluster: letters, digits, `-`, `_` and `.`");
    }
    let address = arguments.cluster.server(ExecPlugins::Run).await?;
    let url = arguments.server.clone().unwrap_or_else(|| address.url.clone());
    if !url.starts_with("https://") {
        bail!("--server: `{url}` is no address with https://; other clusters would send the token without TLS");
    }
    if arguments.create_service_account {
        let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: false, force: true };
        for object in reader(&arguments.namespace, &arguments.service_account) {
            cluster.apply(&object, &options).await?;
        }
    }
    let token = match arguments.token_duration {
        Some(seconds) => {
            let of =
                TokenOf { namespace: &arguments.namespace, account: &arguments.service_account, audience: "", seconds };
            cluster.token(&of).await?
        }
        None => lasting_token(&cluster, arguments).await?,
    };
    let kubeconfig = kubeconfig(&name, &url, &address, &token);
    let secret = secret(&arguments.namespace, &name, &kubeconfig);
    write!(
        out,
        "# A secret: whoever has it can read the endpoints of the cluster {name}.\n---\n{}",
        serde_saphyr::to_string(&secret)?
    )?;
    Ok(0)
}

/// The name of a cluster without one, as in Istio.
async fn unnamed(cluster: &Cluster) -> anyhow::Result<String> {
    let kind = ObjectKind { api_version: "v1", kind: "Namespace" };
    let found = cluster.get(kind, None, "kube-system").await?;
    let uid = found.as_ref().and_then(|namespace| namespace.pointer("/metadata/uid")).and_then(Value::as_str);
    uid.map(str::to_owned).context("the cluster has no namespace kube-system whose UID would name it: --name NAME")
}

/// The service account with its rights, as Istio's.
fn reader(namespace: &str, account: &str) -> Vec<Value> {
    let role = format!("istio-reader-clusterrole-{namespace}");
    let labels = json!({"app": "istio-reader"});
    let read = ["get", "list", "watch"];
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": namespace, "labels": labels},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": role, "labels": labels},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces", "nodes"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
                {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": read},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": role, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }),
    ]
}

/// A token that holds until its Secret is deleted; a controller of the cluster writes it.
async fn lasting_token(cluster: &Cluster, arguments: &CreateArguments) -> anyhow::Result<String> {
    let (namespace, account) = (&arguments.namespace, &arguments.service_account);
    let name = format!("{account}-istio-remote-secret-token");
    let holder = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": name, "namespace": namespace, "annotations": {"kubernetes.io/service-account.name": account},
        },
    });
    let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: false, force: true };
    cluster.apply(&holder, &options).await?;
    let kind = ObjectKind { api_version: "v1", kind: "Secret" };
    let written = async {
        loop {
            let found = cluster.get(kind, Some(namespace), &name).await?;
            let token = found.as_ref().and_then(|secret| secret.pointer("/data/token")).and_then(Value::as_str);
            if let Some(token) = token.and_then(|token| BASE64_STANDARD.decode(token).ok()) {
                return anyhow::Ok(String::from_utf8(token)?);
            }
            tokio::time::sleep(TOKEN_LOOK).await;
        }
    };
    let in_time = tokio::time::timeout(TOKEN_WAIT, written).await;
    in_time.unwrap_or_else(|_| {
        bail!(
            "nobody has written a token into Secret {namespace}/{name} within {} s; --token-duration asks for one that ends",
            TOKEN_WAIT.as_secs()
        )
    })
}

fn kubeconfig(name: &str, url: &str, address: &ServerAddress, token: &str) -> Value {
    let mut server = json!({"server": url});
    if let Some(roots) = &address.roots_pem {
        server["certificate-authority-data"] = BASE64_STANDARD.encode(roots).into();
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": name, "preferences": {},
        "clusters": [{"name": name, "cluster": server}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"token": token}}],
    })
}

fn secret(namespace: &str, name: &str, kubeconfig: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": format!("istio-remote-secret-{}", name.to_ascii_lowercase().replace('_', "-")),
            "namespace": namespace,
            "labels": {LABEL: LABEL_VALUE},
            "annotations": {"networking.istio.io/cluster": name},
        },
        "stringData": {name: kubeconfig.to_string()},
    })
}

/// A replica of the control plane, and what it knows.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    control_plane: String,
    clusters: Vec<RemoteCluster>,
}

/// Prints the remote clusters that each replica of a control plane reads. Returns 1 if one of them needs attention.
pub fn list(arguments: &ListArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let addresses = admin::control_planes(&arguments.control_plane, None, &arguments.in_cluster)?;
    let mut replicas = Vec::new();
    for address in addresses {
        let clusters: Vec<RemoteCluster> = admin::read(address.clone(), clusters::PATH)?;
        replicas.push(Replica { control_plane: address.to_string(), clusters });
    }
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", json!(replicas))?,
        Output::Text => out.write_all(table(&replicas).as_bytes())?,
    }
    let is_alarm = replicas.iter().flat_map(|replica| &replica.clusters).any(|one| one.sync_status.is_alarm());
    Ok(u8::from(is_alarm))
}

fn table(replicas: &[Replica]) -> String {
    let rows = replicas.iter().flat_map(|replica| {
        replica.clusters.iter().map(|one| {
            let reason = one.reason.clone().unwrap_or_default();
            let status = one.sync_status.as_str().to_owned();
            let control_plane = replica.control_plane.clone();
            vec![one.id.clone(), one.secret_name.clone(), status, one.since.clone(), control_plane, reason]
        })
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return format!("No Secret with the label {LABEL}={LABEL_VALUE} names a remote cluster.\n");
    }
    let head = ["NAME", "SECRET", "STATUS", "SINCE", "CONTROL PLANE", "REASON"].map(str::to_owned).to_vec();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    columns_within(&all, 3, width())
}
