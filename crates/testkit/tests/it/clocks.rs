//! Workers read the clock through `evenkeel_upstream::turn` and `proxy/src/clock.rs`: once per turn, and the same time for
//! everything in a turn.

use std::collections::BTreeSet;

use evenkeel_testkit::workspace::{self, sources};

/// The crates whose code runs on workers.
const CRATES: [&str; 3] = ["filters", "proxy", "upstream"];
/// Files and folders of them that read the clock themselves, with the reason.
const READERS: &[(&str, &str)] = &[
    ("filters/src/explain/request.rs", "explanations run on no worker"),
    ("filters/src/http/services.rs", "the clock of explanations and tests"),
    ("proxy/src/access_log/writer.rs", "the thread that writes"),
    ("proxy/src/admin/", "the control thread"),
    ("proxy/src/certificate_files.rs", "the control thread"),
    ("proxy/src/clock.rs", "the wall clock of workers"),
    ("proxy/src/dns_cache.rs", "the control thread"),
    ("proxy/src/handover/predecessor.rs", "the control thread"),
    ("proxy/src/pool/mod.rs", "the control thread"),
    ("proxy/src/readiness.rs", "the control thread"),
    ("proxy/src/resolver.rs", "the control thread"),
    ("proxy/src/scope/mod.rs", "the control thread"),
    ("proxy/src/settle.rs", "the control thread"),
    ("proxy/src/state.rs", "the control thread"),
    ("proxy/src/stats_sinks/", "the control thread"),
    ("proxy/src/subscribe/stream.rs", "the control thread"),
    ("proxy/src/throttling.rs", "the control thread"),
    ("proxy/src/worker/idle_meter.rs", "measures how busy the runtime was between two turns"),
    ("upstream/src/health/", "tasks of the control thread, in no turn"),
    ("upstream/src/turn.rs", "the clock of workers"),
];

#[test]
fn workers_read_the_clock_once_per_turn() {
    let crates = workspace::root().join("crates");
    let (mut broken, mut used) = (Vec::new(), BTreeSet::new());
    for path in CRATES.iter().flat_map(|name| sources(&crates.join(name).join("src"))) {
        let below = path.strip_prefix(&crates).expect("below").to_string_lossy().into_owned();
        if is_test(&below) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for line in readings(&text) {
            match READERS.iter().find(|(reader, _)| below.starts_with(reader)) {
                Some((reader, _)) => _ = used.insert(*reader),
                None => broken.push(format!("{below}:{line}: use turn::now() or wall_clock()")),
            }
        }
    }
    let unused = READERS.iter().filter(|(reader, _)| !used.contains(reader));
    broken.extend(unused.map(|(reader, _)| format!("{reader} reads no clock any more: remove its row from READERS")));
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn readings_are_found() {
    let check = |text: &str, expected: &[usize]| assert_eq!(readings(text), expected, "{text}");
    check("let a = 1;\nlet now = Instant::now();\nlet age = start.elapsed();", &[2, 3]);
    check("// Instant::now()\nturn::now()", &[]);
    check("#[cfg(test)]\nmod tests {\nfn f() { SystemTime::now() }", &[]);
}

/// The lines that read a clock.
fn readings(text: &str) -> Vec<usize> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let reads = |line: &str| {
        let comment = line.trim_start().starts_with("//");
        !comment && ["Instant::now()", "SystemTime::now()", ".elapsed()"].iter().any(|call| line.contains(call))
    };
    code.lines().enumerate().filter(|(_, line)| reads(line)).map(|(number, _)| number + 1).collect()
}

fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    path.contains("/tests/") || name.ends_with("tests.rs") || matches!(name, "fixture.rs" | "test_filter.rs")
}
