//! `protos/own.bin`, of which the build makes Rust types, is what the `.proto` files beside it say. So no build but this test's
//! needs a compiler of Protocol Buffers.

use std::path::Path;

use prost::Message;

const PROTOS: [&str; 6] = [
    "evenkeel/scope.proto",
    "evenkeel/xds.proto",
    "istio/nds.proto",
    "istio/ca.proto",
    "udpa/typed_struct.proto",
    "xds/typed_struct.proto",
];

#[test]
fn descriptors_are_those_of_the_proto_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("protos");
    let compiled = protox::compile(PROTOS, [&folder]).expect("sound files").encode_to_vec();
    let kept = folder.join("own.bin");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&kept, &compiled).expect("written");
    }
    let stale = std::fs::read(&kept).expect("descriptors") != compiled;
    assert!(!stale, "{} is not what the files beside it say: BLESS=1 writes it anew", kept.display());
}
