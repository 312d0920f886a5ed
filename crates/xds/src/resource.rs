//! A named, versioned resource: encoded once, shared by every set it is in and every stream it is sent on.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use twox_hash::XxHash64;

use crate::metadata::{self, Cause};
use crate::{Any, references, type_url};

/// The types of resources, in the order they are sent. Referenced types come first, so that a listener never names a
/// cluster that the proxy does not have (make before break).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// CDS: `envoy.config.cluster.v3.Cluster`.
    Cluster,
    /// EDS: `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    Endpoint,
    /// LDS: `envoy.config.listener.v3.Listener`.
    Listener,
    /// RDS: `envoy.config.route.v3.RouteConfiguration`.
    Route,
    /// VHDS: `envoy.config.route.v3.VirtualHost`, named `ROUTE_CONFIGURATION/HOST`.
    VirtualHost,
    /// SDS: `envoy.extensions.transport_sockets.tls.v3.Secret`.
    Secret,
    /// ECDS: `envoy.config.core.v3.TypedExtensionConfig`, the configuration of a filter.
    ExtensionConfig,
    /// NDS: `istio.networking.nds.v1.NameTable`.
    NameTable,
    /// PCDS: `istio.mesh.v1alpha1.ProxyConfig`, with the roots that agents are to trust.
    ProxyConfig,
}

impl ResourceType {
    /// All of them, in sending order.
    pub const ALL: [Self; 9] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
        Self::VirtualHost,
        Self::Secret,
        Self::ExtensionConfig,
        Self::NameTable,
        Self::ProxyConfig,
    ];

    /// The type of a type URL, if it is one of ours.
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// The type URL requests and responses carry.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => type_url::CLUSTER,
            Self::Endpoint => type_url::ENDPOINT,
            Self::Listener => type_url::LISTENER,
            Self::Route => type_url::ROUTE,
            Self::VirtualHost => type_url::VIRTUAL_HOST,
            Self::Secret => type_url::SECRET,
            Self::ExtensionConfig => type_url::EXTENSION_CONFIG,
            Self::NameTable => type_url::NAME_TABLE,
            Self::ProxyConfig => type_url::PROXY_CONFIG,
        }
    }

    /// `CDS`, `EDS`, …: the name that operators know.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Cluster => "CDS",
            Self::Endpoint => "EDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
            Self::VirtualHost => "VHDS",
            Self::Secret => "SDS",
            Self::ExtensionConfig => "ECDS",
            Self::NameTable => "NDS",
            Self::ProxyConfig => "PCDS",
        }
    }

    /// Whether a first request without names asks for everything of the type
    /// (xDS protocol, "How the client specifies what resources to return"; NDS and PCDS as Istio has them).
    pub const fn defaults_to_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::NameTable | Self::ProxyConfig)
    }

    /// Whether its resources can have aliases.
    pub(crate) const fn has_aliases(self) -> bool {
        matches!(self, Self::VirtualHost | Self::NameTable)
    }

    /// Returns its index in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short_name())
    }
}

/// Hash of a resource's content, 16 hex digits on the wire: equal versions mean equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

/// Digits of a version on the wire.
const VERSION_DIGITS: usize = 16;

impl Version {
    /// The version of these bytes: their xxh64.
    pub fn of(content: &[u8]) -> Self {
        Self(XxHash64::oneshot(0, content))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A version that is not in our format: another server's, or no version at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 16 hexadecimal digits")]
pub struct ForeignVersion;

impl FromStr for Version {
    type Err = ForeignVersion;

    fn from_str(text: &str) -> Result<Self, ForeignVersion> {
        let ours = text.len() == VERSION_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(text, 16).ok().filter(|_| ours).map(Self).ok_or(ForeignVersion)
    }
}

/// A resource. Two resources are equal if name, type and content are; origin and cause do not count.
#[derive(Clone)]
pub struct Resource {
    /// The name it is subscribed to by.
    pub name: Arc<str>,
    /// Hash of its content.
    pub version: Version,
    /// The position in the user's files that it comes from, `file:line:column`.
    pub origin: Option<Arc<str>>,
    /// The change that caused this version.
    pub cause: Cause,
    /// Other names it answers to: `ROUTE_CONFIGURATION/DOMAIN` of a virtual host, with `*` as in its domains.
    aliases: Box<[Arc<str>]>,
    /// An encoded `envoy.service.discovery.v3.Resource` with version, name and, last, the message in its `Any`.
    encoded: Bytes,
    any_at: usize,
    value_at: usize,
    references: OnceLock<Box<[Arc<str>]>>,
    metadata: OnceLock<Bytes>,
}

/// Field numbers of `envoy.service.discovery.v3.Resource` and of `google.protobuf.Any`.
mod field {
    pub const VERSION: u32 = 1;
    pub const RESOURCE: u32 = 2;
    pub const NAME: u32 = 3;
    pub const ANY_TYPE_URL: u32 = 1;
    pub const ANY_VALUE: u32 = 2;
}

impl Resource {
    /// Wraps an encoded message; the version is the hash of its bytes.
    pub fn new(name: impl Into<Arc<str>>, any: &Any) -> Self {
        Self::encode(name.into(), &any.type_url, any.value.len(), |out| out.extend_from_slice(&any.value))
    }

    /// Encodes a message.
    pub fn from_message<M: prost::Name>(name: impl Into<Arc<str>>, message: &M) -> Self {
        // A Vec grows as needed, so encoding into it cannot fail.
        Self::encode(name.into(), &type_url::of::<M>(), message.encoded_len(), |out| message.encode_raw(out))
    }

    fn encode(name: Arc<str>, type_url: &str, value_len: usize, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let any_len = string_len(field::ANY_TYPE_URL, type_url.len()) + string_len(field::ANY_VALUE, value_len);
        let head = string_len(field::VERSION, VERSION_DIGITS) + string_len(field::NAME, name.len());
        let mut out = Vec::with_capacity(head + string_len(field::RESOURCE, any_len));
        put_key(&mut out, field::VERSION, VERSION_DIGITS);
        let version_at = out.len();
        out.extend_from_slice(&[b'0'; VERSION_DIGITS]);
        put_string(&mut out, field::NAME, &name);
        put_key(&mut out, field::RESOURCE, any_len);
        let any_at = out.len();
        put_string(&mut out, field::ANY_TYPE_URL, type_url);
        put_key(&mut out, field::ANY_VALUE, value_len);
        let value_at = out.len();
        write(&mut out);
        let (head, value) = out.split_at_mut(value_at);
        let version = Version::of(value);
        // Room of exactly this length was reserved above.
        if let Some(place) = head.get_mut(version_at..version_at + VERSION_DIGITS) {
            place.copy_from_slice(version.to_string().as_bytes());
        }
        Self {
            name,
            version,
            origin: None,
            cause: Cause::default(),
            aliases: Box::default(),
            encoded: shared(out.into()),
            any_at,
            value_at,
            references: OnceLock::new(),
            metadata: OnceLock::new(),
        }
    }

    /// Sets the position in the user's files.
    pub fn with_origin(mut self, origin: impl Into<Arc<str>>) -> Self {
        self.origin = Some(origin.into());
        self.metadata = OnceLock::new();
        self
    }

    /// Sets the change that caused it.
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self.metadata = OnceLock::new();
        self
    }

    /// Sets its aliases: for a virtual host `ROUTE_CONFIGURATION/DOMAIN` of each of its domains, for a host's entry of the
    /// name table its short names.
    pub fn with_aliases(mut self, aliases: impl IntoIterator<Item = Arc<str>>) -> Self {
        self.aliases = aliases.into_iter().filter(|alias| *alias != self.name).collect();
        self
    }

    /// The other names it answers to.
    pub fn aliases(&self) -> &[Arc<str>] {
        &self.aliases
    }

    /// Computes all lazily computed values. A server calls this while it allocates from its heap for resources; streams that
    /// compute them later would allocate elsewhere.
    pub fn completed(self) -> Self {
        self.metadata();
        self.references();
        self
    }

    /// The encoded message.
    pub fn value(&self) -> &[u8] {
        self.encoded.get(self.value_at..).unwrap_or_default()
    }

    /// The message in its wrapper; copies it.
    pub fn any(&self) -> Any {
        Any { type_url: self.type_url().to_owned(), value: self.value().to_vec() }
    }

    /// The type URL of the message.
    pub fn type_url(&self) -> &str {
        let wrapper = self.encoded.get(self.any_at..self.value_at).unwrap_or_default();
        // The URL is preceded by its key and length and followed by those of the value, which are skipped.
        let start = key_len(field::ANY_TYPE_URL);
        let Some((length, rest)) = wrapper.get(start..).and_then(read_length) else { return "" };
        rest.get(..length).and_then(|url| std::str::from_utf8(url).ok()).unwrap_or("")
    }

    /// Its encoded `envoy.service.discovery.v3.Resource`; shared, not copied. Fields may be appended, and if a field
    /// appears twice the last one counts.
    pub fn encoded(&self) -> Bytes {
        self.encoded.clone()
    }

    /// Its `google.protobuf.Any`, encoded; shared, not copied.
    pub fn encoded_any(&self) -> Bytes {
        self.encoded.slice(self.any_at..)
    }

    /// Its `metadata` field for clients that measure ages, encoded with its key: cause and origin under the key
    /// [`METADATA_KEY`](crate::metadata::KEY).
    pub fn encoded_metadata(&self) -> Bytes {
        self.metadata().clone()
    }

    /// Bytes of that field.
    pub fn metadata_len(&self) -> usize {
        self.metadata().len()
    }

    fn metadata(&self) -> &Bytes {
        self.metadata.get_or_init(|| shared(metadata::encode(self.cause, self.origin.as_deref())))
    }

    /// Names of resources that a proxy must wait for because of it: endpoints of a cluster, route tables of a listener.
    /// Computed once.
    pub fn references(&self) -> &[Arc<str>] {
        self.references.get_or_init(|| references::of(self.type_url(), self.value()))
    }

    /// Bytes it takes on the wire.
    pub fn encoded_len(&self) -> usize {
        self.encoded.len()
    }

    /// Bytes of its `google.protobuf.Any` with the key before it.
    pub fn encoded_any_len(&self) -> usize {
        self.encoded.len() - self.any_at
    }
}

/// Returns the same bytes with a reference count, which otherwise would be allocated when they are first shared.
fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
            && self.name == other.name
            && self.aliases == other.aliases
            && self.type_url() == other.type_url()
    }
}

impl Eq for Resource {}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("type_url", &self.type_url())
            .field("name", &self.name)
            .field("version", &self.version)
            .field("origin", &self.origin)
            .field("cause", &self.cause)
            .field("bytes", &self.value().len())
            .finish_non_exhaustive()
    }
}

fn string_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn put_key(out: &mut Vec<u8>, tag: u32, len: usize) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

fn put_string(out: &mut Vec<u8>, tag: u32, text: &str) {
    put_key(out, tag, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn read_length(mut bytes: &[u8]) -> Option<(usize, &[u8])> {
    let length = prost::encoding::decode_varint(&mut bytes).ok()?;
    Some((usize::try_from(length).ok()?, bytes))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::pb::envoy::config::cluster::v3::Cluster;
    use crate::pb::envoy::service::discovery::v3 as discovery;

    #[test]
    fn is_encoded_as_the_protocol_has_it() {
        let message = Cluster { name: "a".into(), alt_stat_name: "x".repeat(300), ..Default::default() };
        let resource = Resource::from_message("a", &message).with_origin("f.yaml:3:1");
        let read = discovery::Resource::decode(resource.encoded()).expect("a message");
        assert_eq!((&*read.name, read.version), ("a", resource.version.to_string()));
        assert_eq!(read.resource, Some(crate::pack(&message)));
        assert_eq!(resource.any(), crate::pack(&message));
        assert_eq!(Any::decode(resource.encoded_any()).expect("a message"), crate::pack(&message));
        assert_eq!(Resource::new("a", &crate::pack(&message)), resource);
        assert_eq!(resource.version, Version::of(&message.encode_to_vec()));
    }

    #[test]
    fn versions_are_read_back() {
        let version = Version::of(b"something");
        assert_eq!(version.to_string().parse(), Ok(version));
        for foreign in ["", "1", "2026-01-01T00:00:00Z/1", "00000000000000FF", "+0000000000000ff"] {
            assert_eq!(foreign.parse::<Version>(), Err(ForeignVersion), "{foreign}");
        }
    }
}
