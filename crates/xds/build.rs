//! Builds what the crate embeds beside Envoy's API: Rust types of Istio's few wire messages and of our own, and their descriptors.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const PROTOS: [&str; 6] = [
    "evenkeel/scope.proto",
    "evenkeel/xds.proto",
    "istio/nds.proto",
    "istio/ca.proto",
    "udpa/typed_struct.proto",
    "xds/typed_struct.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=protos");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut files = protox::compile(PROTOS, ["protos"])?;
    tonic_prost_build::configure().out_dir(&out).compile_fds(files.clone())?;
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("schema.bin"), files.encode_to_vec())?;
    Ok(())
}
