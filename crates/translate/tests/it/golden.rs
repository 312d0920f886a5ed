//! Golden files; `BLESS=1` rewrites them.

use evenkeel_testkit::golden;
use evenkeel_translate::ClientKind;

use crate::scenario::{SCENARIOS, Scenario, as_json, translate};

#[test]
fn resources_are_as_recorded() {
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        for view in &scenario.proxies {
            let json = as_json(&translate(view, &scenario.snapshot));
            let text = serde_json::to_string_pretty(&json).expect("JSON") + "\n";
            let file = match view.client_kind {
                ClientKind::Grpc => format!("{}.grpc.json", view.pod),
                _ => format!("{}.json", view.pod),
            };
            golden::check(scenario.folder.join(file), &text);
        }
    }
}
