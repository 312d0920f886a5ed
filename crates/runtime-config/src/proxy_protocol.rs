//! The PROXY protocol: versions, and the fields (TLVs) that follow the addresses.

/// `envoy.filters.listener.proxy_protocol`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyProtocol {
    /// Connections without a header are accepted too (`allow_requests_without_proxy_protocol`).
    pub optional: bool,
    /// Versions that are refused (`disallowed_versions`).
    pub disallowed: Vec<ProxyProtocolVersion>,
    /// Which TLVs are available for upstream PROXY protocol headers (`pass_through_tlvs`).
    pub pass_through: TlvSelection,
    /// Statistics are `proxy_proto.PREFIX.…`; without it `proxy_proto.…`.
    pub stat_prefix: Box<str>,
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyProtocolVersion {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

impl ProxyProtocolVersion {
    /// The number in statistics and messages.
    pub fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// `ProxyProtocolPassThroughTLVs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlvSelection {
    /// All.
    All,
    /// Those of these types; none when empty.
    Types(Vec<u8>),
}

impl Default for TlvSelection {
    fn default() -> Self {
        Self::Types(Vec::new())
    }
}

impl TlvSelection {
    /// Whether a TLV of this type is selected.
    pub fn includes(&self, kind: u8) -> bool {
        match self {
            Self::All => true,
            Self::Types(types) => types.contains(&kind),
        }
    }
}

/// A type-length-value vector of a PROXY protocol header.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tlv {
    /// `PP2_TYPE_…`.
    pub kind: u8,
    /// Its bytes.
    pub value: Vec<u8>,
}
