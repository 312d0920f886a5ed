//! Istio's own wire types: the DNS name table, the certificate service, and messages to agents.

#![allow(missing_docs, reason = "generated from protos/istio, documented there")]

/// `istio.networking.nds.v1`: what a proxy's DNS server answers with.
pub mod nds {
    include!("generated/istio.networking.nds.v1.rs");

    impl prost::Name for NameTable {
        const NAME: &'static str = "NameTable";
        const PACKAGE: &'static str = "istio.networking.nds.v1";
    }
}

/// `io.istio.http.peer_metadata`: proxies tell each other which workload they are for.
pub mod peer_metadata {
    include!("generated/io.istio.http.peer_metadata.rs");

    impl prost::Name for Config {
        const NAME: &'static str = "Config";
        const PACKAGE: &'static str = "io.istio.http.peer_metadata";
    }
}

/// `stats`: the configuration of Istio's metrics.
pub mod stats {
    include!("generated/stats.rs");

    /// The type of its durations.
    pub use prost_types::Duration;

    impl prost::Name for PluginConfig {
        const NAME: &'static str = "PluginConfig";
        const PACKAGE: &'static str = "stats";
    }
}

/// `istio.envoy.config.filter.http.alpn.v2alpha1`: ALPN by upstream protocol.
pub mod alpn {
    include!("generated/istio.envoy.config.filter.http.alpn.v2alpha1.rs");

    impl prost::Name for FilterConfig {
        const NAME: &'static str = "FilterConfig";
        const PACKAGE: &'static str = "istio.envoy.config.filter.http.alpn.v2alpha1";
    }
}

/// `envoy.tcp.metadataexchange.config`: proxies tell each other over TCP which workload they are for.
pub mod metadata_exchange {
    include!("generated/envoy.tcp.metadataexchange.config.rs");

    impl prost::Name for MetadataExchange {
        const NAME: &'static str = "MetadataExchange";
        const PACKAGE: &'static str = "envoy.tcp.metadataexchange.config";
    }
}

/// `envoy.extensions.filters.network.mysql_proxy.v3`, of Envoy's contrib build, which Istio's proxies have.
pub mod mysql_proxy {
    include!("generated/envoy.extensions.filters.network.mysql_proxy.v3.rs");

    impl prost::Name for MySqlProxy {
        const NAME: &'static str = "MySQLProxy";
        const PACKAGE: &'static str = "envoy.extensions.filters.network.mysql_proxy.v3";
    }
}

/// `istio.mesh.v1alpha1`: what the control plane tells agents.
pub mod mesh {
    /// `istio.mesh.v1alpha1.ProxyConfig`, of which agents read one field in PCDS.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ProxyConfig {
        /// Texts in PEM with the roots that workloads trust; together they replace those of the previous response.
        #[prost(string, repeated, tag = "34")]
        pub ca_certificates_pem: Vec<String>,
        /// Evenkeel's own field: if there are any, roots count for these trust domains only, each for its own.
        #[prost(message, repeated, tag = "10034")]
        pub trust_domains: Vec<TrustDomain>,
    }

    /// The roots of one trust domain.
    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct TrustDomain {
        /// Its name.
        #[prost(string, tag = "1")]
        pub name: String,
        /// Roots, PEM; may be empty.
        #[prost(string, tag = "2")]
        pub roots_pem: String,
        /// Whether the roots of the mesh, `ca_certificates_pem` and those of the agent's file, vouch for it, too.
        #[prost(bool, tag = "3")]
        pub has_mesh_roots: bool,
    }

    impl prost::Name for ProxyConfig {
        const NAME: &'static str = "ProxyConfig";
        const PACKAGE: &'static str = "istio.mesh.v1alpha1";
    }
}

/// `istio.v1.auth`: certificate signing requests.
pub mod auth {
    include!("generated/istio.v1.auth.rs");
}
