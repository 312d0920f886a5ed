//! What is decided about Pods outside the mesh.

use evenkeel_cni::upkeep::{Action, Loader, Probe, Remedy, Reported, Stage, decide};

#[test]
fn each_pod_gets_the_configured_remedy_where_it_helps() {
    let missing = || Probe::Missing("no table".to_owned());
    let bypassed = || Probe::Bypassed("past".to_owned());
    let refused = || Probe::Refused("no listener".to_owned());
    let check = |stage, loader, probe: Probe, configured, expected: Option<(&str, Remedy)>| {
        let name = format!("{stage:?} {loader:?} {probe:?} {configured:?}");
        match (decide(stage, loader, &probe, configured), expected) {
            (Action::None, None) => {}
            (Action::Report { reason, remedy, .. }, Some(expected)) => assert_eq!((reason, remedy), expected, "{name}"),
            (action, expected) => panic!("{name}: {action:?}, {expected:?}"),
        }
    };
    let (waits, outside) = ("CaptureRulesMissing", "OutsideMesh");
    for remedy in [Remedy::Report, Remedy::Label, Remedy::Delete, Remedy::Repair] {
        check(Stage::Waiting, Loader::Plugin, missing(), remedy, Some((waits, remedy)));
        // One mistake of a probe must not end all Pods of a node that serve.
        let of_running = if remedy == Remedy::Delete { Remedy::Report } else { remedy };
        check(Stage::Running, Loader::Plugin, missing(), remedy, Some((outside, of_running)));
        check(Stage::Running, Loader::Plugin, refused(), remedy, Some(("SidecarNotListening", Remedy::Report)));
        check(Stage::Waiting, Loader::Plugin, Probe::Captured, remedy, None);
        check(Stage::Running, Loader::Plugin, Probe::Unknown("gone".to_owned()), remedy, None);
        check(Stage::Other, Loader::Plugin, missing(), remedy, None);
    }
    // Loading rules helps neither a Pod that has ended, nor one whose rules are there or are another program's.
    check(Stage::Failed, Loader::Plugin, missing(), Remedy::Repair, Some((waits, Remedy::Report)));
    check(Stage::Failed, Loader::Plugin, missing(), Remedy::Delete, Some((waits, Remedy::Delete)));
    check(Stage::Running, Loader::Plugin, bypassed(), Remedy::Repair, Some((outside, Remedy::Report)));
    check(Stage::Running, Loader::Plugin, bypassed(), Remedy::Label, Some((outside, Remedy::Label)));
    check(Stage::Running, Loader::Container, missing(), Remedy::Repair, Some((outside, Remedy::Report)));
    check(Stage::Running, Loader::Container, missing(), Remedy::Delete, Some((outside, Remedy::Report)));
}

#[test]
fn a_finding_is_reported_once() {
    let mut reported = Reported::default();
    assert!(reported.is_new("1", "OutsideMesh"));
    assert!(!reported.is_new("1", "OutsideMesh"));
    assert!(reported.is_new("2", "SidecarNotListening"));
    assert_eq!(reported.outside(), 1);
    assert!(reported.is_new("1", "SidecarNotListening"), "another finding");
    assert_eq!(reported.outside(), 0);
    assert!(reported.clear("1") && !reported.clear("1"));
    reported.retain(|uid| uid != "2");
    assert!(reported.is_new("2", "SidecarNotListening"), "forgotten");
}
