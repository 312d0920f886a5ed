//! Header names the proxy itself looks at, as small numbers.

macro_rules! header_ids {
    ($($(#[$doc:meta])* $id:ident = $name:literal,)*) => {
        /// A header name the proxy itself looks at; anything else is [`HeaderId::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum HeaderId { $($id,)* Other }

        impl HeaderId {
            /// The lower-case name; empty for `Other`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* Self::Other => "" }
            }

            /// The id of a lower-case name.
            #[inline]
            pub fn of(name: &[u8]) -> Self {
                // Length and first byte single out most candidates before any comparison.
                $(if name.len() == $name.len() && name[0] == $name.as_bytes()[0] && name == $name.as_bytes() {
                    return Self::$id;
                })*
                Self::Other
            }
        }
    };
}

impl HeaderId {
    /// Framing, routing and the hop's own business, which no trailer may change (RFC 9110 section 6.5.1).
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
    Connection = "connection",
    ContentLength = "content-length",
    ContentType = "content-type",
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
    ProxyConnection = "proxy-connection",
    RequestId = "x-request-id",
    Server = "server",
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
        for id in [HeaderId::Connection, HeaderId::Host, HeaderId::EnvoyUpstreamServiceTime, HeaderId::Te] {
            assert_eq!(HeaderId::of(id.name().as_bytes()), id);
        }
        assert_eq!(HeaderId::of(b"x-other"), HeaderId::Other);
        assert_eq!(HeaderId::of(b""), HeaderId::Other);
    }
}
