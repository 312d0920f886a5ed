//! Every target keeps its promise for its seeds and a fixed number of mutations of them.

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

targets! { h1_request h1_response h1_chunked h2_server h2_client h2_headers path proxy_protocol bootstrap xds }

/// A target that is added is tested here and has an entry point for `cargo fuzz`.
#[test]
fn every_target_is_run() {
    let entries = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    for target in targets::ALL {
        assert!(TESTED.contains(&target.name), "{} has no test here", target.name);
        let entry = entries.join(format!("{}.rs", target.name));
        assert!(entry.is_file(), "{} is missing", entry.display());
    }
}
