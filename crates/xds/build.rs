//! Makes what the crate embeds beside Envoy's API of the descriptors in `protos/own.bin`: Rust types of Istio's few wire messages
//! and of our own, and their descriptors without comments. The test `protos` holds the descriptors to the `.proto` files.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

const DESCRIPTORS: &str = "protos/own.bin";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={DESCRIPTORS}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut files = FileDescriptorSet::decode(&*fs::read(DESCRIPTORS)?)?;
    tonic_prost_build::configure().out_dir(&out).compile_fds(files.clone())?;
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("schema.bin"), files.encode_to_vec())?;
    Ok(())
}
