//! The roots that the control plane tells the agent to trust, beside those in the file of `--root-cert`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_base::files::Readers;
use evenkeel_base::spiffe;
use evenkeel_tls::{RevocationLists, TrustBundle};
use evenkeel_xds::istio::mesh::{ProxyConfig, TrustDomain};
use evenkeel_xds::{Resource, unpack};
use tokio::sync::{mpsc, oneshot};

use crate::files;
use crate::options::Options;

/// The roots that the control plane sent last, in the state directory: an agent that starts again needs them to verify a control
/// plane that has changed its root meanwhile.
pub const BUNDLE_FILE: &str = "trust-bundle.pem";
/// The trust domains that it told apart last, in the same place: until it says so again, each root counts for no other one.
const DOMAINS_FILE: &str = "trust-domains.pb";
/// Maximum size of such a file, in bytes.
const MAX_DOMAINS_BYTES: u64 = 16 * 1024 * 1024;
/// Begins the first line of a bundle; the authority key identifier of current certificates follows.
const SIGNER_COMMENT: &str = "# signer ";
/// Bundles that wait until they are in use, in bundles.
const QUEUE: usize = 4;

/// A bundle as the control plane sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The roots, PEM.
    pub roots: String,
    /// Revocation lists, PEM.
    pub lists: Option<String>,
    /// The trust domains that roots count for; every one if there are none.
    pub domains: Vec<TrustDomain>,
    /// The authority key identifier of certificates that are current, if the control plane says so.
    pub signer: Option<String>,
}

impl Bundle {
    /// Reads what the control plane sent.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(message: &ProxyConfig) -> Result<Self, String> {
        let text: String = message.ca_certificates_pem.iter().map(|text| format!("{}\n", text.trim_end())).collect();
        TrustBundle::from_pem(text.as_bytes()).map_err(|error| format!("ca_certificates_pem {error}"))?;
        let signer = text.lines().next().and_then(|line| line.strip_prefix(SIGNER_COMMENT)).map(str::to_owned);
        let lists = lists(&text);
        if let Some(lists) = &lists {
            RevocationLists::from_pem(lists.as_bytes()).map_err(|error| format!("ca_certificates_pem {error}"))?;
        }
        let domains = message.trust_domains.clone();
        check_domains(&domains)?;
        Ok(Self { roots: merge_roots(&[&text]), lists, domains, signer })
    }
}

/// A bundle on its way to the proxy.
#[derive(Debug)]
pub struct Pushed {
    /// The bundle.
    pub bundle: Bundle,
    /// Told when the proxy uses it, or why it does not.
    pub confirmed: oneshot::Sender<Result<(), String>>,
}

/// Creates the channel for bundles from the agent's stream to the task that keeps the certificate.
pub fn channel() -> (mpsc::Sender<Pushed>, mpsc::Receiver<Pushed>) {
    mpsc::channel(QUEUE)
}

/// The roots that are trusted.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// The roots that the control plane sent last.
    bundle: Option<String>,
    /// Roots that it sent before and does not any more: they are not trusted, even if the file still has them.
    retired: Vec<Vec<u8>>,
    /// The trust domains that it tells apart.
    domains: Vec<TrustDomain>,
    /// Roots for peers that the proxy's own config adds, PEM.
    further: String,
}

impl Trust {
    /// Trusts only `further`: roots for peers that the proxy's own config adds. They never verify the control plane.
    pub fn new(further: String) -> Self {
        Self { further, ..Self::default() }
    }

    /// The roots that verify peers, where these verify the control plane.
    pub fn of_peers(&self, of_control_plane: &str) -> String {
        merge_roots(&[of_control_plane, &self.further])
    }

    /// Takes over what the control plane says.
    pub fn replace(&mut self, bundle: &str) {
        let now = contents(bundle);
        for before in self.bundle.iter().flat_map(|bundle| contents(bundle)) {
            if !now.contains(&before) && !self.retired.contains(&before) {
                self.retired.push(before);
            }
        }
        self.retired.retain(|root| !now.contains(root));
        self.bundle = Some(bundle.to_owned());
    }

    /// Limits roots to these trust domains from now on.
    pub fn tell_apart(&mut self, domains: &[TrustDomain]) {
        self.domains = domains.to_vec();
    }

    /// The roots of each trust domain, where `mesh` has those of the mesh. One without roots is left out: proxies refuse
    /// its identities. Empty if trust domains are not told apart.
    pub fn domains(&self, mesh: &str) -> Vec<(String, String)> {
        let roots = |domain: &TrustDomain| {
            if domain.has_mesh_roots {
                merge_roots(&[mesh, &domain.roots_pem])
            } else {
                merge_roots(&[&domain.roots_pem])
            }
        };
        let all = self.domains.iter().map(|domain| (domain.name.clone(), roots(domain)));
        all.filter(|(_, roots)| !roots.is_empty()).collect()
    }

    /// The roots of the file that are not retired, and the control plane's.
    pub fn roots(&self, file: &str) -> String {
        let of_file: String = pem::parse_many(file)
            .unwrap_or_default()
            .into_iter()
            .filter(|root| root.tag() == CERTIFICATE && !self.retired.iter().any(|retired| retired == root.contents()))
            .map(|root| encode(root.into_contents()))
            .collect();
        merge_roots(&[&of_file, self.bundle.as_deref().unwrap_or_default()])
    }
}

/// Returns the roots for clients that do not distinguish trust domains (programs that use gRPC, Envoy with revocation lists):
/// those of the own trust domain. With all of them, an authority could vouch for another trust domain. Empty if there are
/// none.
pub(crate) fn roots_of_own(identity: &str, domains: &[(String, String)]) -> String {
    let own = spiffe::trust_domain_of(identity);
    let found = domains.iter().find(|(name, _)| Some(name.as_str()) == own);
    found.map(|(_, roots)| roots.clone()).unwrap_or_default()
}

/// The roots that verify the control plane: those in use, and before there are any, those of the file and the ones that an earlier
/// run of the agent was sent.
#[derive(Debug, Clone, Default)]
pub struct ControlPlaneRoots(Arc<Mutex<Option<String>>>);

impl ControlPlaneRoots {
    /// Uses these from now on.
    pub(crate) fn set(&self, roots: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(roots.to_owned());
    }

    /// The roots, PEM.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub(crate) fn get(&self, options: &Options) -> Result<String, (PathBuf, std::io::Error)> {
        if let Some(roots) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(roots.clone());
        }
        let file = std::fs::read_to_string(&options.root_cert).map_err(|error| (options.root_cert.clone(), error))?;
        let learned = std::fs::read_to_string(options.state.join(BUNDLE_FILE)).unwrap_or_default();
        Ok(merge_roots(&[&file, &learned]))
    }
}

/// Remembers the control plane's roots for the next start of the agent.
pub(crate) fn remember(state: &Path, bundle: &str) -> std::io::Result<()> {
    files::write_whole(&state.join(BUNDLE_FILE), bundle.as_bytes(), Readers::Owner)
}

/// Stores the trust domains and their roots.
pub(crate) fn remember_domains(state: &Path, domains: &[TrustDomain]) -> std::io::Result<()> {
    let message = ProxyConfig { ca_certificates_pem: Vec::new(), trust_domains: domains.to_vec() };
    let resource = Resource::from_message("", &message);
    files::write_whole(&state.join(DOMAINS_FILE), resource.value(), Readers::Owner)
}

/// Returns the trust domains that an earlier run stored; empty if there are no usable ones.
pub(crate) fn remembered_domains(state: &Path) -> Vec<TrustDomain> {
    let path = state.join(DOMAINS_FILE);
    let Ok(size) = std::fs::metadata(&path).map(|file| file.len()) else { return Vec::new() };
    let mut any = Resource::from_message("", &ProxyConfig::default()).any();
    let read = if size <= MAX_DOMAINS_BYTES {
        std::fs::read(&path).map_err(|error| error.to_string())
    } else {
        Err(format!("{size} bytes; at most {MAX_DOMAINS_BYTES} are read"))
    };
    let domains = read.and_then(|bytes| {
        any.value = bytes;
        let message: ProxyConfig = unpack(&any).map_err(|error| error.to_string())?;
        check_domains(&message.trust_domains)?;
        Ok(message.trust_domains)
    });
    domains.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "the trust domains of an earlier run cannot be used");
        Vec::new()
    })
}

fn check_domains(domains: &[TrustDomain]) -> Result<(), String> {
    let bundles = domains.iter().map(|domain| (domain.name.as_str(), domain.roots_pem.as_bytes()));
    let filled: Vec<_> = bundles.filter(|(_, roots)| !roots.is_empty()).collect();
    if filled.is_empty() {
        Ok(())
    } else {
        TrustBundle::from_domains(filled).map(drop).map_err(|error| format!("trust_domains: {error}"))
    }
}

const CERTIFICATE: &str = "CERTIFICATE";
const REVOCATION_LIST: &str = "X509 CRL";

/// The revocation lists in a PEM text.
pub(crate) fn lists(text: &str) -> Option<String> {
    let all = pem::parse_many(text).unwrap_or_default().into_iter();
    let lists: String = all
        .filter(|list| list.tag() == REVOCATION_LIST)
        .map(|list| encode_as(REVOCATION_LIST, list.into_contents()))
        .collect();
    (!lists.is_empty()).then_some(lists)
}

fn contents(text: &str) -> Vec<Vec<u8>> {
    let all = pem::parse_many(text).unwrap_or_default().into_iter();
    all.filter(|root| root.tag() == CERTIFICATE).map(pem::Pem::into_contents).collect()
}

/// Returns all certificates of several PEM texts, in order and without duplicates.
pub(crate) fn merge_roots(texts: &[&str]) -> String {
    let mut roots: Vec<Vec<u8>> = Vec::new();
    for root in texts.iter().flat_map(|text| contents(text)) {
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    // Comments between certificates are not kept.
    roots.into_iter().map(encode).collect()
}

fn encode(root: Vec<u8>) -> String {
    encode_as(CERTIFICATE, root)
}

fn encode_as(tag: &str, content: Vec<u8>) -> String {
    let unix = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, content), unix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(name: &str) -> String {
        encode(name.as_bytes().to_vec())
    }

    #[test]
    fn a_root_that_the_control_plane_drops_is_not_trusted_though_the_file_has_it() {
        let (old, new, own) = (root("old"), root("new"), root("operator's"));
        let mut trust = Trust::default();
        let mut check = |bundle: &[&String], file: &[&String], expected: &[&String]| {
            let text = |roots: &[&String]| roots.iter().map(|root| root.as_str()).collect::<String>();
            if !bundle.is_empty() {
                trust.replace(&text(bundle));
            }
            assert_eq!(trust.roots(&text(file)), text(expected));
        };
        check(&[], &[&old], &[&old]);
        check(&[&old], &[&old, &own], &[&old, &own]);
        check(&[&old, &new], &[&old], &[&old, &new]);
        check(&[&new, &old], &[&old], &[&old, &new]);
        check(&[&new], &[&old, &own], &[&own, &new]);
        // It comes back when the control plane says so.
        check(&[&old, &new], &[], &[&old, &new]);
    }

    #[test]
    fn a_bundle_without_a_usable_root_is_refused() {
        let check = |texts: &[&str], expected: &str| {
            let ca_certificates_pem = texts.iter().map(|&text| text.to_owned()).collect();
            let message = ProxyConfig { ca_certificates_pem, trust_domains: Vec::new() };
            let error = Bundle::read(&message).expect_err("no bundle");
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "no `BEGIN CERTIFICATE` section");
        check(&["# signer 00\n"], "no `BEGIN CERTIFICATE` section");
        check(&[&root("damaged")], "cannot be used as a root");
    }

    #[test]
    fn without_telling_trust_domains_apart_only_roots_of_the_own_one_count() {
        let domains = [("a.example", "A"), ("b.example", "B")].map(|(name, roots)| (name.to_owned(), roots.to_owned()));
        let check = |identity: &str, expected: &str| {
            assert_eq!(super::roots_of_own(identity, &domains), expected, "{identity}");
        };
        check("spiffe://b.example/ns/x/sa/y", "B");
        check("spiffe://c.example/ns/x/sa/y", "");
        check("b.example", "");
    }
}
