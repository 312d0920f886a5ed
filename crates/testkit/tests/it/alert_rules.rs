//! The alert rules for Prometheus do what their tests say, and name metrics that exist.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use evenkeel_testkit::workspace;

#[test]
fn alerts_pass_their_tests() {
    let folder = workspace::root().join("docs/prometheus");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(&folder).output();
        let output = output.expect("`scripts/setup.sh test` installs promtool");
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
    }
}

/// Where the metrics are declared, and the prefix that their names there lack.
const DECLARED: [(&str, &str); 3] = [
    ("istio_", "crates/filters/src/istio_stats/series.rs"),
    ("envoy_cluster_", "crates/upstream/src/stats.rs"),
    ("", "crates/control/src/metrics/mod.rs"),
];

#[test]
fn alerts_name_metrics_that_exist() {
    let read = |path: &str| fs::read_to_string(workspace::root().join(path)).expect("a file of the repository");
    let alerts = read("docs/prometheus/alerts.yaml");
    let words = alerts.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let is_metric = |word: &&str| {
        ["istio_", "envoy_cluster_", "pilot_", "citadel_"].iter().any(|prefix| word.starts_with(prefix))
            && *word != "envoy_cluster_name"
    };
    let names: BTreeSet<&str> = words.filter(is_metric).map(|word| word.trim_end_matches("_bucket")).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let is_declared = DECLARED.iter().any(|(prefix, path)| {
            name.strip_prefix(prefix).is_some_and(|rest| {
                read(path).split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == rest)
            })
        });
        assert!(is_declared, "{name}");
    }
}
