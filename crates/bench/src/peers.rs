//! The peers that are measured, and how each is started.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_measure::rounds::Findings;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};

use crate::config::jwt::Issuer;
use crate::config::policy::CLIENT_IDENTITY;
use crate::config::{Asks, MutualTls, Protocol, Proxy, SERVER_NAME};
use crate::load::idle::Idle;
use crate::process::{LOAD_CORE, PROXY_CORE, Pinned, find, get};

/// The name under which the backend without any proxy is measured.
pub const DIRECT: &str = "no proxy";
/// The byte-copying relay.
pub const RELAY: &str = "relay";
/// This project's proxy.
pub const EVENKEEL: &str = "evenkeel";
/// Stock Envoy.
pub const ENVOY: &str = "envoy";
/// HAProxy.
pub const HAPROXY: &str = "haproxy";
/// nginx.
pub const NGINX: &str = "nginx";

/// Programs and a folder for configurations, logs and certificates, which vanishes at the end.
pub struct Setup {
    /// The `evenkeel` binary that was built with this one.
    pub evenkeel: PathBuf,
    /// Envoy, from its package.
    pub envoy: PathBuf,
    authz_server: PathBuf,
    fortio: PathBuf,
    bench: PathBuf,
    folder: tempfile::TempDir,
    wanted: Vec<String>,
}

/// One line of a table: a chain of processes whose CPU is added up.
pub struct Peer {
    /// Its name in the table; the first word is the program's.
    pub name: &'static str,
    /// The address that the load goes to.
    pub entry: SocketAddr,
    /// Its processes, the one next to the backend first; none for [`DIRECT`].
    pub processes: Vec<Pinned>,
}

impl Peer {
    /// User and system time of all its processes.
    pub fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(Pinned::cpu).sum()
    }
}

/// The server behind the proxies.
#[derive(Debug, Clone, Copy)]
pub enum Backend {
    /// HTTP/1.1 answers of 1 KiB.
    Http1,
    /// HTTP/2 answers of 1 KiB, by prior knowledge.
    Http2,
    /// HTTP/2 responses that begin and never end.
    HeldHttp2,
    /// Bytes as fast as they are taken.
    Source,
}

/// The setup of a proxy, or of both proxies of a pair.
#[derive(Clone, Copy)]
pub struct Role<'a> {
    /// The protocol between a pair, or from a single proxy to the backend.
    pub protocol: Protocol,
    /// The protocol from a pair's inner proxy to the backend.
    pub to_backend: Protocol,
    /// TLS of a single proxy's listener, or between a pair.
    pub tls: Option<&'a MutualTls>,
    /// Rules of the authorization policy in the proxy that terminates TLS.
    pub rules: usize,
    /// The protocol and address of the authorization server.
    pub authorization: Option<(Asks, SocketAddr)>,
    /// The issuer whose tokens a single proxy checks; `None`: it checks none.
    pub issuer: Option<&'a Issuer>,
}

/// The program of a peer: the first word of its name.
fn program(name: &str) -> &str {
    name.split([' ', ',']).next().unwrap_or_default()
}

impl Role<'_> {
    /// Plain, the same protocol everywhere, no policy.
    pub fn plain(protocol: Protocol) -> Self {
        Self { protocol, to_backend: protocol, tls: None, rules: 0, authorization: None, issuer: None }
    }
}

impl Setup {
    /// Finds the programs; `wanted` limits the peers, all of them when it is empty.
    pub fn new(wanted: &[String]) -> Result<Self> {
        let bench = std::env::current_exe().context("this program's own path")?;
        let built = bench.parent().context("a folder above this program")?;
        let (evenkeel, envoy) = (built.join("evenkeel"), built.join("../tools/envoy/envoy/_bin/envoy"));
        let authz_server = built.join("../tools/bin/authz-server");
        let fortio = built.join("../tools/bin/fortio");
        ensure!(
            std::thread::available_parallelism()?.get() > PROXY_CORE,
            "two cores are needed: one for the load and the backend, one for the proxies"
        );
        let folder = tempfile::Builder::new().prefix("evenkeel-bench.").tempdir()?;
        let setup = Self { evenkeel, envoy, authz_server, fortio, bench, folder, wanted: wanted.to_vec() };
        for (name, program, remedy) in
            [(EVENKEEL, &setup.evenkeel, "cargo build --release"), (ENVOY, &setup.envoy, "scripts/setup.sh bench")]
        {
            if setup.is_wanted(name) && !program.is_file() {
                bail!("{} does not exist: run {remedy}", program.display());
            }
        }
        Ok(setup)
    }

    /// Fortio.
    ///
    /// # Errors
    /// It is not installed.
    pub fn fortio(&self) -> Result<&Path> {
        ensure!(self.fortio.is_file(), "{} does not exist: run scripts/setup.sh bench", self.fortio.display());
        Ok(&self.fortio)
    }

    /// A path in the folder that vanishes.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name.replace([' ', '/', ','], "-"))
    }

    /// Writes a file into the folder that vanishes.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// Whether this peer is to be measured: by its whole name or its first word.
    pub fn is_wanted(&self, name: &str) -> bool {
        let program = program(name);
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name || wanted == program)
    }

    /// Starts the selected peers; one that does not start is recorded as absent with its error.
    pub fn start_all(
        &self,
        scenario: &str,
        names: &[&'static str],
        findings: &mut Findings,
        start: impl Fn(&'static str) -> Result<Peer>,
    ) -> Vec<Peer> {
        let mut peers = Vec::new();
        for name in names.iter().filter(|name| self.is_wanted(name)) {
            match start(name) {
                Ok(peer) => peers.push(peer),
                Err(reason) => findings.absent(scenario, name, &reason),
            }
        }
        peers
    }

    /// Starts a backend on the load's core.
    pub fn start_backend(&self, backend: Backend) -> Result<(Pinned, SocketAddr)> {
        let listen = free_address()?;
        let kind: &[&str] = match backend {
            Backend::Http1 => &["backend"],
            Backend::Http2 => &["backend-http2"],
            Backend::HeldHttp2 => &["backend-http2", "--hold"],
            Backend::Source => &["source"],
        };
        let mut args = kind.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        args.extend(["--listen".to_owned(), listen.to_string()]);
        let mut backend = Pinned::start(LOAD_CORE, &self.bench, &args, &self.file("backend.out"))?;
        backend.wait_for_port(listen)?;
        Ok((backend, listen))
    }

    /// Starts the authorization server, which permits everything, on the load's core; returns its addresses for both
    /// protocols.
    pub fn start_authz_server(&self) -> Result<(Pinned, [(Asks, SocketAddr); 2])> {
        let ways = [(Asks::Grpc, free_address()?), (Asks::Http, free_address()?)];
        let mut args = vec!["-permit".to_owned()];
        for (flag, (_, address)) in ["-grpc", "-http"].into_iter().zip(&ways) {
            args.extend([flag.to_owned(), address.to_string()]);
        }
        ensure!(
            self.authz_server.is_file(),
            "{} does not exist: run scripts/setup.sh bench",
            self.authz_server.display()
        );
        let mut server = Pinned::start(LOAD_CORE, &self.authz_server, &args, &self.file("authz-server.out"))?;
        for (_, address) in &ways {
            server.wait_for_port(*address)?;
        }
        Ok((server, ways))
    }

    /// Returns the backend itself as a peer: no proxy at all.
    pub fn direct(&self, upstream: SocketAddr) -> Peer {
        Peer { name: DIRECT, entry: upstream, processes: Vec::new() }
    }

    /// Starts one proxy before `upstream`, and waits until it serves.
    pub fn start_hop(&self, name: &'static str, upstream: SocketAddr, role: Role<'_>) -> Result<Peer> {
        let listen = free_address()?;
        let proxy = Proxy {
            id: name,
            listen,
            admin: free_address()?,
            upstream,
            protocol: role.protocol,
            downstream_tls: role.tls,
            upstream_tls: None,
            rules: role.rules,
            authorization: role.authorization,
            issuer: role.issuer,
            log: self.file(&format!("{name}-access.log")),
        };
        let args = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut process = match name {
            RELAY => {
                let args = args(&["relay", "--listen", &listen.to_string(), "--upstream", &upstream.to_string()]);
                Pinned::start(PROXY_CORE, &self.bench, &args, &self.file("relay.out"))?
            }
            HAPROXY => {
                let file = self.write("haproxy.cfg", &proxy.haproxy())?;
                let args = args(&["-db", "-f", &file.display().to_string()]);
                Pinned::start(PROXY_CORE, &find("haproxy")?, &args, &proxy.log)?
            }
            NGINX => {
                let file = self.write("nginx.conf", &proxy.nginx(self.folder.path()))?;
                let args = args(&["-c", &file.display().to_string()]);
                Pinned::start(PROXY_CORE, &find("nginx")?, &args, &self.file("nginx.out"))?
            }
            _ => self.start_ready(name, name, &proxy)?,
        };
        process.wait_for_port(listen)?;
        Ok(Peer { name, entry: listen, processes: vec![process] })
    }

    /// Starts a sidecar pair: plain bytes in, TLS between, plain bytes out to `upstream`.
    pub fn start_pair(&self, name: &'static str, upstream: SocketAddr, role: Role<'_>) -> Result<Peer> {
        let (outer, inner) = (free_address()?, free_address()?);
        let (mut processes, mut admin) = (Vec::new(), outer);
        for (side, listen, upstream, protocol) in
            [("server", inner, upstream, role.to_backend), ("client", outer, inner, role.protocol)]
        {
            let file = format!("{name}-{side}");
            let server = side == "server";
            let proxy = Proxy {
                id: &file,
                listen,
                admin: free_address()?,
                upstream,
                protocol,
                downstream_tls: role.tls.filter(|_| server),
                upstream_tls: role.tls.filter(|_| !server),
                rules: if server { role.rules } else { 0 },
                authorization: role.authorization.filter(|_| server),
                issuer: None,
                log: self.file(&format!("{file}-access.log")),
            };
            let mut process = self.start_ready(name, &file, &proxy)?;
            process.wait_for_port(listen)?;
            processes.push(process);
            admin = proxy.admin;
        }
        let shares = role.protocol == Protocol::Mesh && name.starts_with(EVENKEEL) && role.tls.is_some();
        if role.protocol == Protocol::Http2 || shares {
            speaks_http2(outer, admin)?;
        }
        Ok(Peer { name, entry: outer, processes })
    }

    fn start_ready(&self, name: &str, file: &str, proxy: &Proxy<'_>) -> Result<Pinned> {
        let mut process = self.start_proxy(name, file, proxy)?;
        process.wait_until_ready(proxy.admin)?;
        Ok(process)
    }

    /// Starts Evenkeel's or Envoy's proxy, as the first word of `name` says, without waiting for it.
    pub fn start_proxy(&self, name: &str, file: &str, proxy: &Proxy<'_>) -> Result<Pinned> {
        self.start_with(name, file, &proxy.bootstrap())
    }

    /// Starts a proxy with the given bootstrap file.
    pub fn start_with(&self, name: &str, file: &str, bootstrap: &str) -> Result<Pinned> {
        let path = self.write(&format!("{file}.yaml"), bootstrap)?;
        let mut args = vec!["-c".to_owned(), path.display().to_string()];
        args.extend(["--concurrency", "1", "-l", "error"].map(str::to_owned));
        let program = match program(name) {
            EVENKEEL => {
                args.insert(0, "proxy".to_owned());
                &self.evenkeel
            }
            ENVOY => {
                args.push("--disable-hot-restart".to_owned());
                &self.envoy
            }
            _ => bail!("no peer is called {name}"),
        };
        Pinned::start(PROXY_CORE, program, &args, &self.file(&format!("{file}.out")))
    }

    /// Creates one identity for both sides, from a root made for this run.
    pub fn certificates(&self) -> Result<MutualTls> {
        certificates(self.folder())
    }

    /// The folder that vanishes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Creates one ECDSA P-256 identity for both sides, from a new root, as files in this folder.
pub fn certificates(folder: &Path) -> Result<MutualTls> {
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // It must differ from the leaf's name: a certificate with its issuer's name counts as self-signed.
    root.distinguished_name.push(DnType::CommonName, "benchmark root");
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut leaf = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    leaf.subject_alt_names.push(SanType::URI(CLIENT_IDENTITY.try_into()?));
    let leaf = leaf.signed_by(&key, &root)?;
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    };
    Ok(MutualTls {
        cert: write("cert.pem", &leaf.pem())?,
        key: write("key.pem", &key.serialize_pem())?,
        root: write("root.pem", &root.pem())?,
    })
}

/// Checks with one request and the counters of the client's proxy that the pair speaks HTTP/2, as its row says.
fn speaks_http2(entry: SocketAddr, admin: SocketAddr) -> Result<()> {
    const COUNTER: &str = "cluster.backend.upstream_cx_http2_total";
    drop(Idle::plain(entry, 1)?);
    let stats = get(admin, &format!("/stats?filter={COUNTER}"))?;
    let count =
        stats.lines().find_map(|line| line.strip_prefix(COUNTER)).map(|rest| rest.trim_start_matches([':', ' ']));
    ensure!(count.is_some_and(|count| count != "0"), "does not speak HTTP/2 to its upstream: {COUNTER} is {count:?}");
    Ok(())
}

/// Returns a loopback address on which nothing listens at the moment, a different one each time.
pub fn free_address() -> Result<SocketAddr> {
    // Below Linux's ephemeral range, so that no outgoing connection takes the port before it is used.
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 97) as u16 * 123;
    let mut ports = (0..COUNT).map(|_| FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let port = ports.find(free).with_context(|| format!("no free TCP port in {FIRST}..{}", FIRST + COUNT))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

#[cfg(test)]
mod tests {
    use super::{DIRECT, ENVOY, EVENKEEL, HAPROXY, NGINX, RELAY, program};
    use crate::bars::PROMISES;
    use crate::scenarios::{FORTIO, WRK};

    #[test]
    fn peers_of_bars_name_their_program() {
        for peer in PROMISES.iter().flat_map(|promise| promise.peers()) {
            let known = [EVENKEEL, ENVOY, HAPROXY, NGINX, RELAY, FORTIO, WRK].contains(&program(peer));
            assert!(known || peer == DIRECT, "{peer}");
        }
    }
}
