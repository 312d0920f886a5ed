//! One proxy's configuration: generated as the control plane generates it, and compiled as the proxy compiles it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use evenkeel_model::{Snapshot, Workload};
use evenkeel_runtime_config::{Builder, Config, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_translate::{ProxyKind, ProxyView, traced_resources};
use evenkeel_xds::{ResourceSet, ResourceType};

/// The address of every name that only DNS can resolve (RFC 5737); no decision depends on it.
pub const SOMEWHERE: [u8; 4] = [192, 0, 2, 1];

/// A proxy.
pub struct Proxy {
    /// Its workload.
    pub workload: Arc<Workload>,
    /// The resources that the control plane sends it.
    pub resources: ResourceSet,
    /// The configuration that it runs.
    pub config: Arc<Config>,
    /// The resources that it refuses.
    pub refused: Vec<String>,
}

impl Proxy {
    /// Generates and compiles its configuration.
    pub fn new(kind: ProxyKind, workload: Arc<Workload>, snapshot: &Snapshot) -> Self {
        let (resources, unknown) = match ProxyView::of_workload(kind, &workload) {
            Ok(view) => (traced_resources(&view, snapshot), None),
            Err(error) => (ResourceSet::new(1), Some(error.to_string())),
        };
        let (config, mut refused) = compile(&resources);
        refused.extend(unknown);
        Self { workload, resources, config, refused }
    }
}

fn compile(set: &ResourceSet) -> (Arc<Config>, Vec<String>) {
    let mut builder = Builder::new(environment(), SecretStore::new());
    let mut refused = Vec::new();
    for kind in ResourceType::ALL {
        for resource in set.of(kind).values() {
            let outcome = match kind {
                ResourceType::Cluster => builder.set_cluster(&resource.any()),
                ResourceType::Endpoint => builder.set_endpoints(&resource.any()),
                ResourceType::Listener => builder.set_listener(&resource.any()),
                ResourceType::Route => builder.set_route(&resource.any()),
                ResourceType::VirtualHost => builder.set_virtual_host(&resource.name, &resource.any()),
                ResourceType::ExtensionConfig => builder.set_extension(&resource.any()),
                ResourceType::Secret | ResourceType::NameTable | ResourceType::ProxyConfig => Ok(()),
            };
            refused.extend(outcome.err().map(|error| format!("{} {}: {error}", kind.short_name(), resource.name)));
        }
    }
    for cluster in builder.dns_clusters() {
        for target in &cluster.targets {
            builder.set_dns_endpoints(&cluster.cluster, &target.host, &[SOMEWHERE.into()]);
        }
    }
    // No handshake happens here, so nothing waits for certificates.
    let missing = builder.missing();
    missing.secrets.iter().for_each(|secret| builder.give_up_secret(secret));
    (builder.build(), refused)
}

/// Replaces files that are not on this machine, such as certificates of a cluster's Pods: no decision depends on them.
fn environment() -> Environment {
    let read = |path: &Path| {
        std::fs::read(path).or_else(|error| {
            let placeholder = placeholder().ok_or(error)?;
            let is_key = path.to_string_lossy().contains("key");
            Ok(if is_key { placeholder.key.clone() } else { placeholder.certificate.clone() }.into_bytes())
        })
    };
    Environment { read_file: Box::new(read), ..Environment::process() }
}

/// A certificate that stands for one that is not available.
struct Placeholder {
    certificate: String,
    key: String,
}

fn placeholder() -> Option<&'static Placeholder> {
    static MADE: OnceLock<Option<Placeholder>> = OnceLock::new();
    let make = || {
        let made = rcgen::generate_simple_self_signed(vec!["placeholder.invalid".to_owned()]).ok()?;
        Some(Placeholder { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() })
    };
    MADE.get_or_init(make).as_ref()
}
