//! The WorkloadEntry that a proxy asks for in its node metadata.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::ProxyView;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};

use super::RefusedRegistration;

/// Maximum length of a WorkloadEntry's name, in characters (Kubernetes').
const MAX_NAME_CHARS: usize = 253;
/// Maximum length of a network's name, in characters.
const MAX_NETWORK_CHARS: usize = 63;
/// Maximum size of a node's labels, in bytes.
const MAX_LABEL_BYTES: usize = 16 * 1024;

/// A proxy that registers its workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registrant {
    /// The WorkloadGroup (`AUTO_REGISTER_GROUP`).
    pub group: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its first address.
    pub address: IpAddr,
    /// Its network (`NETWORK`); empty if the node does not say.
    pub network: String,
    /// Its locality, `region/zone/subzone`; empty if the node does not say.
    pub locality: String,
    /// Its own labels (`LABELS`).
    pub labels: BTreeMap<String, String>,
    /// Whether its agent checks the health of its workload (`PROXY_CONFIG.readinessProbe`).
    pub has_probe: bool,
}

impl Registrant {
    /// Reads the node's metadata; `None` if it names no group.
    pub fn of(node: &Node, view: &ProxyView) -> Result<Option<Self>, RefusedRegistration> {
        let metadata = node.metadata.as_ref();
        let Some(group) = text(metadata, "AUTO_REGISTER_GROUP").filter(|group| !group.is_empty()) else {
            return Ok(None);
        };
        // A view has at least the address in its node id.
        let Some(address) = view.addresses.first() else { return Err(RefusedRegistration::NoAddress) };
        let network = text(metadata, "NETWORK").unwrap_or_default();
        let is_named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
        if network.len() > MAX_NETWORK_CHARS
            || !network.chars().all(is_named)
            || !edge(network.chars().next())
            || !edge(network.chars().last())
        {
            return Err(RefusedRegistration::Network);
        }
        let bytes: usize = view.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_LABEL_BYTES {
            return Err(RefusedRegistration::Labels { bytes });
        }
        Ok(Some(Self {
            group: group.into(),
            namespace: view.namespace.clone(),
            address: *address,
            network: network.to_owned(),
            locality: locality(node),
            labels: view.labels.clone(),
            has_probe: object(metadata, "PROXY_CONFIG").is_some_and(|it| it.fields.contains_key("readinessProbe")),
        }))
    }

    /// Returns the name of its WorkloadEntry (Istio's `autoregisteredWorkloadEntryName`): `GROUP-ADDRESS[-NETWORK]`.
    pub fn entry_name(&self) -> String {
        let mut address = self.address.to_string().replace(':', "-");
        // A name must end with a letter or a digit, so `fe80::` is written as `fe80::0`.
        if address.ends_with('-') && self.network.is_empty() {
            address.push('0');
        }
        let mut name = format!("{}-{address}", self.group);
        if !self.network.is_empty() {
            name = format!("{name}-{}", self.network);
        }
        // All of it is ASCII.
        let cut = name.len().saturating_sub(MAX_NAME_CHARS);
        name.get(cut..).unwrap_or_default().trim_start_matches(['-', '.']).to_owned()
    }
}

/// Checks that an identity may act for a workload of a group with this service account (Istio's
/// `ensureProxyCanControlEntry`).
pub fn may_register(
    identity: Option<&SpiffeId>,
    registrant: &Registrant,
    account: Option<&str>,
) -> Result<(), RefusedRegistration> {
    let identity = identity.ok_or(RefusedRegistration::NoIdentity)?;
    if identity.namespace() != &*registrant.namespace {
        return Err(RefusedRegistration::Namespace {
            identity: identity.to_string(),
            namespace: registrant.namespace.to_string(),
        });
    }
    match account.filter(|account| !account.is_empty() && *account != identity.service_account()) {
        Some(account) => Err(RefusedRegistration::Account {
            identity: identity.to_string(),
            group: format!("{}/{}", registrant.namespace, registrant.group),
            account: account.to_owned(),
        }),
        None => Ok(()),
    }
}

fn locality(node: &Node) -> String {
    let Some(locality) = &node.locality else { return String::new() };
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    let said = parts.iter().take_while(|part| !part.is_empty() && part.len() <= MAX_NETWORK_CHARS);
    said.map(|part| part.as_str()).collect::<Vec<_>>().join("/")
}

fn kind<'n>(metadata: Option<&'n Struct>, name: &str) -> Option<&'n Kind> {
    let Value { kind } = metadata?.fields.get(name)?;
    kind.as_ref()
}

fn text<'n>(metadata: Option<&'n Struct>, name: &str) -> Option<&'n str> {
    match kind(metadata, name)? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

fn object<'n>(metadata: Option<&'n Struct>, name: &str) -> Option<&'n Struct> {
    match kind(metadata, name)? {
        Kind::StructValue(inner) => Some(inner),
        _ => None,
    }
}
