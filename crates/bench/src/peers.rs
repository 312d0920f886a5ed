//! Who is measured, and how each is started.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::config::{Hop, MutualTls};
use crate::load::Load;
use crate::process::{LOAD_CORE, PROXY_CORE, Pinned, find};

/// The name under which the backend without any proxy is measured.
pub const DIRECT: &str = "no proxy";
/// The byte-copying relay.
pub const RELAY: &str = "relay";
/// This project's proxy.
pub const EVENKEEL: &str = "evenkeel";
/// Stock Envoy.
pub const ENVOY: &str = "envoy";

/// Programs and a folder for configurations, logs and certificates, which vanishes at the end.
pub struct Setup {
    /// The `evenkeel` binary that was built with this one.
    pub evenkeel: PathBuf,
    /// Envoy, from its package.
    pub envoy: PathBuf,
    bench: PathBuf,
    folder: tempfile::TempDir,
    wanted: Vec<String>,
}

/// One line of a table: a chain of processes whose CPU is added up.
pub struct Peer {
    /// Its name in the table.
    pub name: &'static str,
    /// Where the load goes.
    pub entry: SocketAddr,
    /// Its processes, none for [`DIRECT`].
    pub processes: Vec<Pinned>,
}

/// Everything that runs during one table.
pub struct Field {
    /// The peers, each listening.
    pub peers: Vec<Peer>,
    /// The load generator.
    pub load: Load,
    _backend: Pinned,
}

impl Setup {
    /// Finds the programs; `wanted` limits the peers, all of them when it is empty.
    pub fn new(wanted: &[String]) -> Result<Self> {
        let bench = std::env::current_exe().context("this program's own path")?;
        let built = bench.parent().context("a folder above this program")?;
        let (evenkeel, envoy) = (built.join("evenkeel"), built.join("../tools/envoy/envoy/_bin/envoy"));
        if std::thread::available_parallelism()?.get() <= PROXY_CORE {
            bail!("two cores are needed: one for the load and the backend, one for the proxies");
        }
        let folder = tempfile::Builder::new().prefix("evenkeel-bench.").tempdir()?;
        let setup = Self { evenkeel, envoy, bench, folder, wanted: wanted.to_vec() };
        for (name, program, remedy) in
            [(EVENKEEL, &setup.evenkeel, "cargo build --release"), (ENVOY, &setup.envoy, "scripts/setup.sh bench")]
        {
            if setup.is_wanted(name) && !program.is_file() {
                bail!("{} does not exist: run {remedy}", program.display());
            }
        }
        Ok(setup)
    }

    /// A path in the folder that vanishes.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the backend and every peer of the one-hop table.
    pub fn start_hop(&self) -> Result<Field> {
        let (backend, upstream) = self.start_backend()?;
        let hop = |name| self.start_one(name, upstream);
        let peers = [DIRECT, RELAY, EVENKEEL, ENVOY, "haproxy", "nginx"];
        let peers = peers.into_iter().filter(|name| self.is_wanted(name)).map(hop).collect::<Result<_>>()?;
        Ok(Field { peers, load: Load::new(self.folder.path())?, _backend: backend })
    }

    /// Starts the backend and the sidecar pairs.
    pub fn start_pair(&self) -> Result<Field> {
        let (backend, upstream) = self.start_backend()?;
        let tls = self.certificates()?;
        let pair = |name| self.start_two(name, upstream, &tls);
        let peers = [DIRECT, EVENKEEL, ENVOY].into_iter().filter(|name| self.is_wanted(name));
        let peers = peers.map(pair).collect::<Result<_>>()?;
        Ok(Field { peers, load: Load::new(self.folder.path())?, _backend: backend })
    }

    /// Starts Evenkeel's or Envoy's proxy without waiting for it.
    pub fn start_proxy(&self, name: &str, file: &str, hop: &Hop<'_>) -> Result<Pinned> {
        let path = self.file(&format!("{file}.yaml"));
        std::fs::write(&path, hop.bootstrap())?;
        let mut args = vec!["-c".to_owned(), path.display().to_string()];
        args.extend(["--concurrency", "1", "-l", "error"].map(str::to_owned));
        let program = if name == EVENKEEL {
            args.insert(0, "proxy".to_owned());
            &self.evenkeel
        } else {
            args.push("--disable-hot-restart".to_owned());
            &self.envoy
        };
        Pinned::start(PROXY_CORE, program, &args, &self.file(&format!("{file}.out")))
    }

    /// Whether this peer is to be measured.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name)
    }

    fn start_backend(&self) -> Result<(Pinned, SocketAddr)> {
        let listen = free_address()?;
        let args = ["backend".to_owned(), "--listen".to_owned(), listen.to_string()];
        let mut backend = Pinned::start(LOAD_CORE, &self.bench, &args, &self.file("backend.out"))?;
        backend.wait_for_port(listen)?;
        Ok((backend, listen))
    }

    fn start_one(&self, name: &'static str, upstream: SocketAddr) -> Result<Peer> {
        let listen = free_address()?;
        let log = self.file(&format!("{name}-access.log"));
        let hop =
            Hop { id: name, listen, admin: free_address()?, upstream, downstream_tls: None, upstream_tls: None, log };
        let args = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut process = match name {
            DIRECT => return Ok(Peer { name, entry: upstream, processes: Vec::new() }),
            RELAY => {
                let args = args(&["relay", "--listen", &listen.to_string(), "--upstream", &upstream.to_string()]);
                Pinned::start(PROXY_CORE, &self.bench, &args, &self.file("relay.out"))?
            }
            EVENKEEL | ENVOY => {
                let mut process = self.start_proxy(name, name, &hop)?;
                process.wait_until_ready(hop.admin)?;
                process
            }
            "haproxy" => {
                let file = self.write("haproxy.cfg", &hop.haproxy())?;
                let args = args(&["-db", "-f", &file.display().to_string()]);
                Pinned::start(PROXY_CORE, &find("haproxy")?, &args, &hop.log)?
            }
            "nginx" => {
                let file = self.write("nginx.conf", &hop.nginx(self.folder.path()))?;
                let args = args(&["-c", &file.display().to_string()]);
                Pinned::start(PROXY_CORE, &find("nginx")?, &args, &self.file("nginx.out"))?
            }
            _ => bail!("no peer is called {name}"),
        };
        process.wait_for_port(listen)?;
        Ok(Peer { name, entry: listen, processes: vec![process] })
    }

    fn start_two(&self, name: &'static str, upstream: SocketAddr, tls: &MutualTls) -> Result<Peer> {
        if name == DIRECT {
            return Ok(Peer { name, entry: upstream, processes: Vec::new() });
        }
        let (outer, inner) = (free_address()?, free_address()?);
        let mut processes = Vec::new();
        for (side, listen, upstream, downstream_tls, upstream_tls) in
            [("server", inner, upstream, Some(tls), None), ("client", outer, inner, None, Some(tls))]
        {
            let file = format!("{name}-{side}");
            let log = self.file(&format!("{file}-access.log"));
            let hop = Hop { id: &file, listen, admin: free_address()?, upstream, downstream_tls, upstream_tls, log };
            let mut process = self.start_proxy(name, &file, &hop)?;
            process.wait_until_ready(hop.admin)?;
            process.wait_for_port(listen)?;
            processes.push(process);
        }
        Ok(Peer { name, entry: outer, processes })
    }

    /// One ECDSA P-256 identity for both sides, from a root made for this run.
    fn certificates(&self) -> Result<MutualTls> {
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Not the leaf's name: a certificate named as its issuer counts as self-signed.
        root.distinguished_name.push(DnType::CommonName, "benchmark root");
        let root = CertifiedIssuer::self_signed(root, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let leaf = CertificateParams::new(vec!["backend.local".to_owned()])?.signed_by(&key, &root)?;
        Ok(MutualTls {
            cert: self.write("cert.pem", &leaf.pem())?,
            key: self.write("key.pem", &key.serialize_pem())?,
            root: self.write("root.pem", &root.pem())?,
        })
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path: PathBuf = Path::new(self.folder.path()).join(name);
        std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }
}

/// A loopback address on which nothing listens at the moment.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
