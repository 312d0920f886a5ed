//! Makes Rust types of the descriptors in `protos/envoy.bin`.

use std::error::Error;
use std::fs;

use prost::Message;
use prost_types::FileDescriptorSet;

const DESCRIPTORS: &str = "protos/envoy.bin";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={DESCRIPTORS}");
    let descriptors = FileDescriptorSet::decode(&*fs::read(DESCRIPTORS)?)?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    // A resource's version is a hash of its bytes, so its maps need a stable order where the control plane writes several
    // entries.
    config.btree_map(["typed_per_filter_config"]);
    tonic_prost_build::configure()
        .compile_well_known_types(true)
        .include_file("pb.rs")
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
