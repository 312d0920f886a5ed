//! Every target's invariant holds for its seeds and a fixed number of mutations of them.

use evenkeel_fuzz::targets::Target;
use evenkeel_fuzz::{mutate, targets};

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let target = targets::ALL.iter().find(|target| target.name == stringify!($name));
                mutate::run(target.expect("a target of this name"));
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! { h1_request h1_response h1_chunked h2_server h2_client h2_headers jwt_token jwt_jwks path proxy_protocol bootstrap xds }

/// A target that is added is tested here and has an entry point for `cargo fuzz`, which runs that target and no other.
#[test]
fn every_target_is_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let manifest = read(folder.join("Cargo.toml"));
    for Target { name, .. } in targets::ALL {
        assert!(TESTED.contains(name), "{name} has no test here");
        let entry = format!("fuzz_targets/{name}.rs");
        let binary = format!("[[bin]]\nname = \"{name}\"\npath = \"{entry}\"\n");
        assert!(manifest.contains(&binary), "{name} is no binary in fuzz/Cargo.toml");
        let text = read(folder.join(&entry));
        assert!(text.contains(&format!("targets::run(\"{name}\", data)")), "{entry} runs something else: {text}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), targets::ALL.len());
}
