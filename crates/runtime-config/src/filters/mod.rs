//! The filters that the proxy has, one file each: the compiled type, what others have to know of it, the function that compiles its message,
//! and the supported fields. The registries ([`crate::http_filters`], [`crate::network_filters`]) list them.

pub mod alpn;
pub mod buffer;
pub mod compression;
pub mod compressor;
pub mod connection_limit;
pub mod cors;
pub mod custom;
pub mod decompressor;
pub mod dynamic_forward_proxy;
pub mod ext_authz;
pub mod fault;
pub mod grpc_stats;
pub mod grpc_web;
pub mod header_mutation;
pub mod istio_stats;
pub mod jwt_authn;
pub mod local_ratelimit;
pub mod metadata_exchange;
pub(crate) mod passive;
pub mod peer_metadata;
pub mod ratelimit;
pub mod rbac;
pub mod stateful_session;
