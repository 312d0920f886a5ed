//! `docs/diagnostics.md` explains every code.

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_testkit::workspace;

#[test]
fn every_code_is_explained() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let docs = std::fs::read_to_string(crates.join("../docs/diagnostics.md")).expect("the page of codes");
    let mut codes = BTreeSet::new();
    for name in ["base", "api", "model"] {
        collect(&crates.join(name).join("src"), &mut codes);
    }
    assert!(codes.len() > 40, "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|code| !docs.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "not in docs/diagnostics.md: {missing:?}");
}

/// Codes are the first text given to what makes a finding.
fn collect(folder: &Path, codes: &mut BTreeSet<String>) {
    for path in workspace::sources(folder) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        for start in ["error(", "warning(", "info(", "note(", "parsed(node, cx, "] {
            for (at, found) in text.match_indices(start) {
                let rest = text.get(at + found.len()..).unwrap_or_default().trim_start();
                let code = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(code, _)| code);
                let is_code = |code: &&str| code.contains('-') || ["conflict", "merged", "overridden"].contains(code);
                codes.extend(code.filter(is_code).filter(|c| !c.contains(' ')).map(str::to_owned));
            }
        }
    }
}
