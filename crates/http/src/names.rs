//! Ids of the header names that the proxy itself uses.

macro_rules! header_ids {
    ($($(#[$doc:meta])* $id:ident = $name:literal,)*) => {
        /// A header name that the proxy itself uses; any other name is [`HeaderId::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum HeaderId { $($id,)* Other }

        const IDS: &[HeaderId] = &[$(HeaderId::$id,)*];

        impl HeaderId {
            /// The lower-case name; empty for `Other`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* Self::Other => "" }
            }
        }
    };
}

/// Slots of the table below; a power of two, several times the number of names, so that most lookups end at the first slot.
const SLOTS: usize = 256;
const EMPTY: u8 = u8::MAX;

/// Index into [`IDS`] by [`slot`], with linear probing.
const TABLE: [u8; SLOTS] = {
    let mut table = [EMPTY; SLOTS];
    let mut index = 0;
    while index < IDS.len() {
        let mut at = slot(IDS[index].name().as_bytes());
        while table[at] != EMPTY {
            at = (at + 1) % SLOTS;
        }
        table[at] = index as u8;
        index += 1;
    }
    table
};

const fn slot(name: &[u8]) -> usize {
    let (len, first, last) = (name.len(), name[0] as usize, name[name.len() - 1] as usize);
    let middle = name[len / 2] as usize;
    (len * 5 + first * 3 + last * 11 + middle * 37) % SLOTS
}

impl HeaderId {
    /// The id of a lower-case name.
    #[inline]
    pub fn of(name: &[u8]) -> Self {
        if name.is_empty() {
            return Self::Other;
        }
        let mut at = slot(name);
        loop {
            let Some(id) = IDS.get(usize::from(TABLE[at])) else { return Self::Other };
            if id.name().as_bytes() == name {
                return *id;
            }
            at = (at + 1) % SLOTS;
        }
    }
}

impl HeaderId {
    /// Whether the header is for framing, routing or one hop only, and so is not allowed in trailers (RFC 9110 section
    /// 6.5.1).
    pub fn is_forbidden_in_trailers(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::ContentLength
                | Self::Expect
                | Self::Host
                | Self::KeepAlive
                | Self::ProxyConnection
                | Self::Te
                | Self::Trailer
                | Self::TransferEncoding
                | Self::Upgrade
        )
    }
}

header_ids! {
    Authorization = "authorization",
    Connection = "connection",
    ContentLength = "content-length",
    ContentType = "content-type",
    Cookie = "cookie",
    Date = "date",
    Expect = "expect",
    ForwardedClientCert = "x-forwarded-client-cert",
    ForwardedFor = "x-forwarded-for",
    ForwardedHost = "x-forwarded-host",
    ForwardedProto = "x-forwarded-proto",
    GrpcStatus = "grpc-status",
    Host = "host",
    KeepAlive = "keep-alive",
    Location = "location",
    ProxyAuthorization = "proxy-authorization",
    ProxyConnection = "proxy-connection",
    RequestId = "x-request-id",
    Server = "server",
    SetCookie = "set-cookie",
    Te = "te",
    Trailer = "trailer",
    TransferEncoding = "transfer-encoding",
    Upgrade = "upgrade",
    UserAgent = "user-agent",
    Via = "via",
    EnvoyAttemptCount = "x-envoy-attempt-count",
    EnvoyDecoratorOperation = "x-envoy-decorator-operation",
    EnvoyDownstreamServiceCluster = "x-envoy-downstream-service-cluster",
    EnvoyDownstreamServiceNode = "x-envoy-downstream-service-node",
    EnvoyExpectedRqTimeoutMs = "x-envoy-expected-rq-timeout-ms",
    EnvoyExternalAddress = "x-envoy-external-address",
    EnvoyForceTrace = "x-envoy-force-trace",
    EnvoyHedgeOnPerTryTimeout = "x-envoy-hedge-on-per-try-timeout",
    EnvoyInternal = "x-envoy-internal",
    EnvoyIpTags = "x-envoy-ip-tags",
    EnvoyMaxRetries = "x-envoy-max-retries",
    EnvoyOriginalDstHost = "x-envoy-original-dst-host",
    EnvoyOriginalPath = "x-envoy-original-path",
    EnvoyRateLimited = "x-envoy-ratelimited",
    EnvoyRetryOn = "x-envoy-retry-on",
    EnvoyUpstreamServiceTime = "x-envoy-upstream-service-time",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_agree() {
        for id in IDS {
            assert_eq!(HeaderId::of(id.name().as_bytes()), *id);
        }
        assert_eq!(HeaderId::of(b"x-other"), HeaderId::Other);
        assert_eq!(HeaderId::of(b""), HeaderId::Other);
    }
}
