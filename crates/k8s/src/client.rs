//! Finds the API server of a cluster as kubectl does, and makes clients of it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

pub use kube::Client;
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Which cluster to use: flags of the same names as kubectl's.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClusterOptions {
    /// File that says where the cluster is and who asks [default: $KUBECONFIG, ~/.kube/config, or the cluster that this process
    /// runs in].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of that file to use [default: its current context].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Flags of `evenkeel control-plane` about the cluster whose objects it reads.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KubernetesOptions {
    /// Read the objects of a Kubernetes cluster from its API server, beside `--config`; so do `--kubeconfig` and `--context`.
    #[arg(long)]
    pub kubernetes: bool,

    /// Keep the state, the authority's key among it, in Secrets and ConfigMaps of the control plane's namespace, so that all replicas
    /// share it; only the history and the ledger of certificates stay in the directory `--state`.
    #[arg(long)]
    pub state_in_cluster: bool,

    /// Have this signer of the cluster sign workloads' certificates (CertificateSigningRequests, which the control plane creates and
    /// approves) [default: $K8S_SIGNER, if EXTERNAL_CA is ISTIOD_RA_KUBERNETES_API].
    #[arg(long, value_name = "DOMAIN/NAME", conflicts_with = "external_signer")]
    pub kubernetes_signer: Option<String>,

    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterOptions,
}

/// Istio's variable that says who signs, and its value for a signer of the cluster.
const EXTERNAL_CA: (&str, &str) = ("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API");
/// Istio's variable with the name of that signer.
const K8S_SIGNER: &str = "K8S_SIGNER";

/// The variables about the signer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Who signs is another one.
    #[error(
        "EXTERNAL_CA is `{0}`; here ISTIOD_RA_KUBERNETES_API has an effect, and another signer is named by --external-signer"
    )]
    Unknown(String),
    /// The name is missing.
    #[error("EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API needs K8S_SIGNER, the name of the signer")]
    Unnamed,
    /// The name is none.
    #[error("`{0}` is not the name of a signer: DOMAIN/NAME, such as clusterissuers.cert-manager.io/mesh")]
    Name(String),
}

impl KubernetesOptions {
    /// The signer of the cluster that signs workloads' certificates, if one does.
    ///
    /// # Errors
    /// If it has no name, or variables name another one.
    pub fn signer(&self, lookup: impl Fn(&str) -> Option<String>) -> Result<Option<String>, SignerError> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let name = match (&self.kubernetes_signer, set(EXTERNAL_CA.0)) {
            (Some(name), _) => name.clone(),
            (None, None) => return Ok(None),
            (None, Some(value)) if value == EXTERNAL_CA.1 => set(K8S_SIGNER).ok_or(SignerError::Unnamed)?,
            (None, Some(value)) => return Err(SignerError::Unknown(value)),
        };
        // Kubernetes' own signers sign for clients and kubelets, not for workloads.
        match name.split_once('/') {
            Some((domain, path)) if domain.contains('.') && !path.is_empty() && domain != "kubernetes.io" => {
                Ok(Some(name))
            }
            _ => Err(SignerError::Name(name)),
        }
    }

    /// Whether there is a cluster to read.
    pub fn is_used(&self) -> bool {
        self.kubernetes || self.cluster.is_given()
    }
}

/// Whether programs that a kubeconfig names (`exec`) may be run to get credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecPlugins {
    /// They are run: the user's own file, in a command of the user.
    Run,
    /// A file that needs one is refused.
    Refuse,
}

/// Why there is no client for a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// The files of a Pod.
    #[error("no kubeconfig, and this process runs in no cluster: {0}")]
    InCluster(#[from] InClusterError),
    /// The credentials come from a program.
    #[error(
        "kubeconfig: the user of the context gets credentials from a program (`{0}`), which is not run here; use a token or a certificate"
    )]
    Exec(String),
    /// TLS, or the credentials.
    #[error("no client for the cluster: {0}")]
    Client(#[from] kube::Error),
}

/// Where an API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Its URL.
    pub url: String,
    /// The roots of its certificate, PEM; `None`: those of the system.
    pub roots_pem: Option<String>,
}

/// A certificate as PEM (RFC 7468).
fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}

impl ClusterOptions {
    /// Makes a client. The API server is not asked yet.
    pub async fn client(&self, plugins: ExecPlugins) -> Result<Client, ClientError> {
        let config = self.config(plugins).await?;
        tracing::debug!(server = %config.cluster_url, "API server");
        Ok(Client::try_from(config)?)
    }

    /// Whether one of the flags is given.
    pub fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Whether a flag or a file names a cluster. A Pod's own cluster is not meant: beside a proxy, commands ask that proxy.
    pub fn is_named(&self) -> bool {
        self.is_given() || self.file().is_ok_and(|file| file.is_some_and(|file| !file.contexts.is_empty()))
    }

    /// Whether there is a file that names a cluster, or this process runs in one.
    pub fn is_found(&self) -> bool {
        match self.file() {
            Ok(Some(file)) => !file.contexts.is_empty(),
            Ok(None) => Config::incluster().is_ok(),
            // Its mistake is to be reported.
            Err(_) => true,
        }
    }

    /// The namespace of the context, `default` if it names none.
    pub async fn namespace(&self) -> Result<String, ClientError> {
        Ok(self.config(ExecPlugins::Run).await?.default_namespace)
    }

    /// Says where the cluster is, and who asks.
    pub async fn config(&self, plugins: ExecPlugins) -> Result<Config, ClientError> {
        let Some(file) = self.file()? else { return Ok(Config::incluster()?) };
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(file, &options).await?;
        match &config.auth_info.exec {
            Some(exec) if plugins == ExecPlugins::Refuse => {
                Err(ClientError::Exec(exec.command.clone().unwrap_or_default()))
            }
            _ => Ok(config),
        }
    }

    /// Says where the API server is, and how it is verified.
    pub async fn server(&self, plugins: ExecPlugins) -> Result<ServerAddress, ClientError> {
        let config = self.config(plugins).await?;
        let roots = config.root_cert.map(|roots| roots.iter().map(|der| pem(der)).collect());
        Ok(ServerAddress { url: config.cluster_url.to_string().trim_end_matches('/').to_owned(), roots_pem: roots })
    }

    /// Reads the file; `None`: there is none, and the cluster is that of this process.
    fn file(&self) -> Result<Option<Kubeconfig>, ClientError> {
        if let Some(path) = &self.kubeconfig {
            return Ok(Some(Kubeconfig::read_from(path)?));
        }
        match Kubeconfig::read() {
            Ok(file) => Ok(Some(file)),
            Err(error) if self.context.is_some() => Err(error.into()),
            Err(KubeconfigError::FindPath) => Ok(None),
            Err(KubeconfigError::ReadConfig(reason, _)) if reason.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signer_is_named_by_the_flag_or_by_istios_variables() {
        let check = |flag: Option<&str>, variables: &[(&str, &str)], expected: Result<Option<&str>, &str>| {
            let options =
                KubernetesOptions { kubernetes_signer: flag.map(str::to_owned), ..KubernetesOptions::default() };
            let lookup =
                |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
            match (options.signer(lookup), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{variables:?}"),
                (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        let (ra, name) = (("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API"), "clusterissuers.cert-manager.io/mesh");
        check(None, &[], Ok(None));
        check(None, &[("K8S_SIGNER", name)], Ok(None));
        check(None, &[("EXTERNAL_CA", "")], Ok(None));
        check(Some(name), &[], Ok(Some(name)));
        check(None, &[ra, ("K8S_SIGNER", name)], Ok(Some(name)));
        check(None, &[ra], Err("needs K8S_SIGNER"));
        check(None, &[("EXTERNAL_CA", "ISTIOD_RA_ISTIO_API")], Err("--external-signer"));
        for wrong in ["mesh", "a.b/", "/x", "kubernetes.io/kube-apiserver-client"] {
            check(Some(wrong), &[], Err("DOMAIN/NAME"));
        }
    }

    fn file(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:1'}}}}, {{name: b, cluster: {{server: 'http://127.0.0.1:2'}}}}]\n\
             users: [{{name: a, user: {user}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}, {{name: b, context: {{cluster: b, user: a}}}}]\n"
        )
    }

    #[tokio::test]
    async fn finds_the_cluster_as_kubectl_does() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("config");
        let check = async |user: &str, context: Option<&str>, plugins, expected: Result<&str, &str>| {
            std::fs::write(&path, file(user)).expect("a file");
            let options = ClusterOptions { kubeconfig: Some(path.clone()), context: context.map(str::to_owned) };
            let found = options.config(plugins).await;
            let found = found.map(|config| config.cluster_url.to_string()).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        let (token, exec) = ("{token: x}", "{exec: {apiVersion: client.authentication.k8s.io/v1, command: login}}");
        check(token, None, ExecPlugins::Refuse, Ok("http://127.0.0.1:1/")).await;
        check(token, Some("b"), ExecPlugins::Refuse, Ok("http://127.0.0.1:2/")).await;
        check(token, Some("c"), ExecPlugins::Refuse, Err("c")).await;
        check(exec, None, ExecPlugins::Refuse, Err("(`login`), which is not run here")).await;
        check(exec, None, ExecPlugins::Run, Ok("http://127.0.0.1:1/")).await;
        std::fs::remove_file(&path).expect("the file");
        let options = ClusterOptions { kubeconfig: Some(path.clone()), context: None };
        assert!(options.config(ExecPlugins::Run).await.is_err(), "a file that is named must be there");
    }
}
