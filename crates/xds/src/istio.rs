//! Istio's own wire types: the DNS name table and the certificate service.

#![allow(missing_docs, reason = "generated from protos/istio, documented there")]

/// `istio.networking.nds.v1`: what a proxy's DNS server answers with.
pub mod nds {
    tonic::include_proto!("istio.networking.nds.v1");

    impl prost::Name for NameTable {
        const NAME: &'static str = "NameTable";
        const PACKAGE: &'static str = "istio.networking.nds.v1";
    }
}

/// `istio.v1.auth`: certificate signing requests.
pub mod auth {
    tonic::include_proto!("istio.v1.auth");
}
