//! The part of Envoy's API that this project uses, in modules named like its packages: `envoy::config::core::v3::Node`.
//!
//! `protos/roots.txt` names the messages and services; `scripts/schema` cuts them, and everything they refer to, out of Envoy's API
//! into `protos/envoy.bin`; the build makes these types of that file.

#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::all, rustdoc::all, reason = "generated; Envoy's API reference documents it")]

include!(concat!(env!("OUT_DIR"), "/pb.rs"));

/// The descriptors of the same messages, as an encoded `google.protobuf.FileDescriptorSet`.
pub static DESCRIPTORS: &[u8] = include_bytes!("../protos/envoy.bin");
