//! A real Kubernetes API server with its etcd, on loopback: what tests of the Kubernetes sides run against.
//!
//! There is no controller manager and no kubelet (but for [`kubelet`], which forwards ports): nobody deletes what a namespace contains, creates its `default` service
//! account, or starts Pods. [`ApiServer::namespace`] creates a namespace with the account; a test writes the status of its
//! Pods itself.

mod attached;
mod credentials;
pub mod helm;
pub mod kubelet;
mod programs;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::kubernetes::attached::Folder;
use crate::kubernetes::credentials::Credentials;
pub use crate::kubernetes::programs::CustomResources;
use crate::kubernetes::programs::Programs;
use crate::port::free_ports;
use crate::process::Process;
use crate::tls::TlsClient;
use crate::wait;

/// How long the server may take to be ready: some three seconds on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long one call of kubectl may take.
const KUBECTL_LIMIT: &str = "60s";

/// What an API server says about objects that it does not store.
#[derive(Debug)]
pub struct Verdicts {
    /// The names of those that it would store.
    pub accepted: BTreeSet<String>,
    /// Errors and warnings, as kubectl prints them.
    pub messages: String,
}

/// An API server and its etcd, with a directory of their own. Both end with this value, and with the process that started
/// them, however that ends.
pub struct ApiServer {
    // Fields are dropped in this order: the server before its etcd, and the directory last.
    server: Mutex<Process>,
    _etcd: Process,
    folder: Folder,
    credentials: Credentials,
    address: SocketAddr,
    etcd_address: SocketAddr,
    flags: Vec<String>,
    namespaces: AtomicUsize,
}

/// What a service account's token is good for.
#[derive(Debug, Clone)]
pub struct TokenOptions<'a> {
    /// Its audience; `None`: the API server itself.
    pub audience: Option<&'a str>,
    /// The Pod that it is bound to.
    pub pod: Option<&'a str>,
    /// Its lifetime; the API server grants ten minutes at least.
    pub lifetime: Duration,
}

impl Default for TokenOptions<'_> {
    fn default() -> Self {
        Self { audience: None, pod: None, lifetime: Duration::from_secs(600) }
    }
}

/// The folder with `etcd` and `kube-apiserver`, for programs that start them themselves.
///
/// # Panics
/// When they cannot be obtained.
pub fn programs() -> &'static Path {
    Programs::obtained().folder()
}

impl ApiServer {
    /// Starts a server for one test.
    ///
    /// # Panics
    /// When it cannot be obtained, or is not ready in time; the message contains its output.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server for one test, with further flags (`--feature-gates=…`).
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_with(flags: &[&str]) -> Self {
        let folder = Folder::new();
        let credentials = Credentials::create(folder.path());
        let [port, etcd_port, etcd_peer_port] = free_ports();
        let (address, etcd_address) = (loopback(port), loopback(etcd_port));
        let mut etcd = attached::spawn(etcd_command(folder.path(), etcd_address, loopback(etcd_peer_port)));
        etcd.wait_for_port(etcd_address);
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let server = attached::spawn(server_command(folder.path(), address, etcd_address, &flags));
        let started = Self {
            server: Mutex::new(server),
            _etcd: etcd,
            folder,
            credentials,
            address,
            etcd_address,
            flags,
            namespaces: AtomicUsize::new(0),
        };
        started.credentials.write_admin(started.folder.path(), address);
        started.wait_until_ready();
        started
    }

    /// The server that the tests of a test binary share, each with a namespace of its own. It ends with the process. A test
    /// that pauses or kills the server starts one of its own.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ApiServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The kubeconfig file of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The certificate authority of the server's certificate, PEM.
    pub fn root_pem(&self) -> String {
        self.credentials.root_pem()
    }

    /// Creates a namespace with a `default` service account, and returns its name: `prefix` with a number.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn namespace(&self, prefix: &str) -> String {
        let name = format!("{prefix}-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        self.kubectl(&["create", "namespace", &name]);
        self.service_account(&name, "default");
        name
    }

    /// Creates a service account.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn service_account(&self, namespace: &str, name: &str) {
        self.kubectl(&["create", "serviceaccount", name, "--namespace", namespace]);
    }

    /// Returns a token of a service account, by the TokenRequest API.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn token(&self, namespace: &str, account: &str, options: &TokenOptions<'_>) -> String {
        let lifetime = format!("{}s", options.lifetime.as_secs());
        let mut arguments = vec!["create", "token", account, "--namespace", namespace, "--duration", &lifetime];
        if let Some(audience) = options.audience {
            arguments.extend(["--audience", audience]);
        }
        if let Some(pod) = options.pod {
            arguments.extend(["--bound-object-kind", "Pod", "--bound-object-name", pod]);
        }
        self.kubectl(&arguments).trim().to_owned()
    }

    /// Writes a kubeconfig file for a service account, and returns its path.
    ///
    /// # Panics
    /// When the API server issues no token, or the file cannot be written.
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let lifetime = Duration::from_secs(3600);
        let token = self.token(namespace, account, &TokenOptions { lifetime, ..TokenOptions::default() });
        self.credentials.write_token(self.folder.path(), self.address, &format!("{namespace}-{account}"), &token)
    }

    /// Runs kubectl as the administrator, and returns what it prints.
    ///
    /// # Panics
    /// When it fails; the message contains its output.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with_input(arguments, "")
    }

    /// Runs kubectl as the administrator, and returns its error.
    ///
    /// # Panics
    /// When it succeeds.
    pub fn kubectl_error(&self, arguments: &[&str]) -> String {
        let output = self.run_kubectl(arguments, "");
        assert!(!output.status.success(), "kubectl {arguments:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Applies objects in YAML, with server-side apply.
    ///
    /// # Panics
    /// When the API server refuses one.
    pub fn apply(&self, yaml: &str) -> String {
        self.kubectl_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], yaml)
    }

    /// Asks for verdicts about objects in YAML, without storing them. Unknown fields are errors.
    pub fn verdicts(&self, yaml: &str) -> Verdicts {
        let output =
            self.run_kubectl(&["create", "--dry-run=server", "--validate=strict", "-f", "-", "-o", "name"], yaml);
        let [lines, messages] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let accepted = lines.lines().filter_map(|line| line.split_once('/').map(|(_, name)| name.to_owned())).collect();
        Verdicts { accepted, messages }
    }

    /// Installs custom resource definitions, and waits until the API server serves them.
    ///
    /// # Panics
    /// When it refuses one.
    pub fn install(&self, resources: CustomResources) {
        let file = Programs::obtained().custom_resources(resources);
        let file = file.to_str().expect("a path in UTF-8");
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", file]);
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]);
    }

    /// Runs Helm as the administrator, and returns what it prints.
    ///
    /// # Panics
    /// When it fails; the message contains its output.
    pub fn helm(&self, arguments: &[&str]) -> String {
        let kubeconfig = self.kubeconfig();
        let cluster = ["--kubeconfig", kubeconfig.to_str().expect("a path in UTF-8")];
        helm::run(&[&cluster, arguments].concat(), self.folder.path())
            .unwrap_or_else(|error| panic!("helm {arguments:?}: {error}"))
    }

    /// Stops the server from running, as a machine that hangs does. Connections stay open and get no answers.
    pub fn pause(&self) {
        self.server().signal(Signal::SIGSTOP);
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.server().signal(Signal::SIGCONT);
    }

    /// Kills the server; etcd keeps what it has stored.
    ///
    /// # Panics
    /// When it does not end.
    pub fn kill(&self) {
        let mut server = self.server();
        server.signal(Signal::SIGKILL);
        server.wait_for_exit(Duration::from_secs(10));
    }

    /// Kills the server if it runs, and starts it on the same port and the same etcd.
    ///
    /// # Panics
    /// When it is not ready in time.
    pub fn restart(&self) {
        self.kill();
        let command = server_command(self.folder.path(), self.address, self.etcd_address, &self.flags);
        *self.server() = attached::spawn(command);
        self.wait_until_ready();
    }

    /// What the API server has printed since it was started.
    pub fn output(&self) -> String {
        self.server().output()
    }

    fn server(&self) -> MutexGuard<'_, Process> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs kubectl as the administrator with something on standard input, and returns what it prints.
    ///
    /// # Panics
    /// When it fails; the message contains its output.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run_kubectl(arguments, input);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}\n{input}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run_kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(Programs::obtained().kubectl());
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(["--request-timeout", KUBECTL_LIMIT]).args(arguments);
        let mut child = attached::attached(&command)
            // Its cache of discovery is in the home directory of all processes otherwise.
            .env("KUBECACHEDIR", self.folder.path().join("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("its input is a pipe");
        // A command that reads nothing may have closed it.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    fn wait_until_ready(&self) {
        let client = TlsClient {
            server_name: "localhost",
            root_pem: self.root_pem(),
            identity: Some(self.credentials.admin()),
            alpn: &["http/1.1"],
        };
        let readyz = || client.open(self.address).and_then(|mut server| server.get("localhost", "/readyz", "")).ok();
        let is_ready = wait::poll(START_LIMIT, || {
            let ended = self.server().exited();
            assert!(ended.is_none(), "kube-apiserver ended ({ended:?}); it printed:\n{}", self.output());
            readyz().filter(|response| response.status == 200)
        });
        assert!(
            is_ready.is_some(),
            "kube-apiserver is not ready after {START_LIMIT:?}; it printed:\n{}",
            self.output()
        );
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn etcd_command(folder: &Path, address: SocketAddr, peers: SocketAddr) -> Command {
    let mut command = Command::new(Programs::obtained().etcd());
    command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg(format!("--listen-client-urls=http://{address}"))
        .arg(format!("--advertise-client-urls=http://{address}"))
        .arg(format!("--listen-peer-urls=http://{peers}"))
        .arg(format!("--initial-advertise-peer-urls=http://{peers}"))
        .arg(format!("--initial-cluster=default=http://{peers}"))
        .arg("--logger=zap");
    command
}

fn server_command(folder: &Path, address: SocketAddr, etcd: SocketAddr, flags: &[String]) -> Command {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(Programs::obtained().kube_apiserver());
    command
        .arg(format!("--etcd-servers=http://{etcd}"))
        .arg(format!("--bind-address={}", address.ip()))
        .arg(format!("--advertise-address={}", address.ip()))
        .arg(format!("--secure-port={}", address.port()))
        .arg(format!("--tls-cert-file={}", file("server-cert.pem")))
        .arg(format!("--tls-private-key-file={}", file("server-key.pem")))
        .arg(format!("--client-ca-file={}", file("root.pem")))
        .arg(format!("--service-account-signing-key-file={}", file("accounts-key.pem")))
        .arg(format!("--service-account-key-file={}", file("accounts-public-key.pem")))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/16"])
        // It would write its loopback address into the Service `kubernetes`, which is refused.
        .arg("--endpoint-reconciler-type=none")
        .args(flags);
    command
}
