//! The steps of a rotation: the conditions of each, and that a crash at any of them loses nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_ca::rotation::{
    AuthorityStore, HOLDER_SKEW, Kind, Ledger, Ledgers, Observed, Origin, Phase, Record, Reloaded, SETTLE, Signer,
    State,
};
use evenkeel_ca::{Authority, PluggedFiles};
use rcgen::{CertificateParams, KeyPair, SanType};

use crate::drill::revocation_list;
use crate::{DAY, now};

const START: u64 = 1_000_000;
const END: u64 = START + 24 * 3600;

fn signer(id: &str) -> Signer {
    Signer {
        id: id.to_owned(),
        key_id: format!("key-{id}"),
        origin: Origin::Own,
        parent: None,
        not_before: 0,
        not_after: START * 10,
        root_not_before: 0,
        root_not_after: START * 10,
    }
}

fn issued(name: &str, signer: &str, serial: &str, bundle: &str, at: u64) -> Record {
    Record::Issued {
        name: name.to_owned(),
        identity: format!("spiffe://cluster.local/ns/shop/sa/{name}"),
        signer: signer.to_owned(),
        serial: serial.to_owned(),
        bundle: bundle.to_owned(),
        at: at * 1000,
        end: END,
        pod: true,
    }
}

fn shown(serial: &str, at: u64) -> Record {
    Record::Shown { serial: serial.to_owned(), at: at * 1000 }
}

fn trusts(serial: &str, bundle: &str, at: u64) -> Record {
    Record::Trusts { serial: serial.to_owned(), bundle: bundle.to_owned(), at: at * 1000 }
}

fn waits_for(state: &State, records: &[Record], bundle: &str, now: u64) -> Vec<String> {
    let ledgers = Ledgers::of(records.iter().cloned());
    state.waiting(&Observed { ledgers: &ledgers, bundle }, now).workloads
}

#[test]
fn nothing_is_signed_with_a_root_before_every_workload_trusts_it() {
    let state = State::steady(signer("old"), START).begin(Kind::Root, signer("new"), START).expect("begun");
    assert_eq!((state.phase, &*state.active.id), (Phase::Distributing, "old"));
    let check = |records: &[Record], now: u64, expected: &[&str]| {
        assert_eq!(waits_for(&state, records, "both", now), expected, "{records:?}");
        let ledgers = Ledgers::of(records.iter().cloned());
        let next = state.advance(&Observed { ledgers: &ledgers, bundle: "both" }, now);
        assert_eq!(next.is_some(), expected.is_empty());
        if let Some(next) = next {
            assert_eq!((next.phase, &*next.active.id), (Phase::Replacing, "new"));
        }
    };
    check(&[], START, &[]);
    let web = issued("web", "old", "1", "old", START);
    check(std::slice::from_ref(&web), START, &["web"]);
    check(&[web.clone(), shown("1", START)], START, &["web"]);
    check(&[web.clone(), trusts("1", "both", START)], START, &[]);
    // The acknowledgement of roots of an earlier state does not count.
    check(&[web.clone(), trusts("1", "old", START)], START, &["web"]);
    check(&[web.clone(), trusts("1", "both", START), trusts("1", "old", START + 1)], START + 1, &["web"]);
    // A new certificate comes with the roots, if it has arrived.
    let again = issued("web", "old", "2", "both", START + 1);
    check(&[web.clone(), again.clone()], START + 1, &["web"]);
    check(&[web.clone(), again, shown("2", START + 2)], START + 2, &[]);
    // A workload that has not been heard of since is waited for as long as its certificate may be in use.
    let end = END + HOLDER_SKEW.as_secs();
    check(std::slice::from_ref(&web), end - 1, &["web"]);
    check(std::slice::from_ref(&web), end, &[]);
    // The acknowledgement of one workload does not count for another, and a Pod that is gone is not waited for.
    let two = [web, issued("api", "old", "3", "old", START), trusts("1", "both", START)];
    check(&two, START, &["api"]);
    check(&[&two[..], &[Record::Gone { name: "api".into(), at: START * 1000 }]].concat(), START, &[]);
    // A later one of the same name is waited for.
    let later = issued("api", "old", "4", "old", START + 9);
    check(&[&two[..], &[Record::Gone { name: "api".into(), at: START * 1000 }, later]].concat(), START, &["api"]);
}

/// A workload that asked for a certificate of 90 days and acknowledged nothing held every rotation up for as long.
#[test]
fn a_rotation_does_not_wait_for_workloads_that_the_operator_names() {
    let records = [issued("web", "old", "1", "old", START), issued("api", "old", "2", "old", START)];
    let ledgers = Ledgers::of(records.iter().cloned());
    let state = State::steady(signer("old"), START).begin(Kind::Root, signer("new"), START).expect("begun");
    assert_eq!(waits_for(&state, &records, "both", START), ["api", "web"]);
    let without = |state: &State, names: &[&str]| {
        state.without(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), START)
    };
    let less = without(&state, &["web"]).expect("another state");
    assert_eq!(waits_for(&less, &records, "both", START), ["api"]);
    assert!(less.generation > state.generation && less.steps.last().is_some_and(|step| step.what.ends_with("web")));
    assert_eq!(without(&less, &["web"]), None, "once is enough");
    let less = without(&less, &["api", "else"]).expect("another state");
    let next = less.advance(&Observed { ledgers: &ledgers, bundle: "both" }, START).expect("nobody to wait for");
    assert_eq!(next.phase, Phase::Replacing);
    // The order counts for one rotation.
    let observed = Observed { ledgers: &ledgers, bundle: "both" };
    let next = next.advance(&observed, START).expect("nobody to wait for");
    let over = next.advance(&observed, START + 60).expect("settled");
    assert_eq!((over.phase, over.without.len()), (Phase::Steady, 0));
    // It may come before the rotation.
    let state = without(&State::steady(signer("old"), START), &["web"]).expect("another state");
    let state = state.begin(Kind::Root, signer("new"), START).expect("begun");
    assert_eq!(waits_for(&state, &records, "both", START), ["api"]);
}

#[test]
fn the_old_root_stays_until_every_certificate_of_it_is_replaced() {
    let steady = State::steady(signer("old"), START);
    let state = steady.begin(Kind::Root, signer("new"), START).expect("begun");
    let none = Ledgers::default();
    let observed = Observed { ledgers: &none, bundle: "both" };
    let replacing = state.advance(&observed, START).expect("nobody to wait for");
    let ids = |state: &State| state.trusted().map(|signer| signer.id.clone()).collect::<Vec<_>>();
    assert_eq!((replacing.phase, ids(&replacing)), (Phase::Replacing, vec!["new".to_owned(), "old".to_owned()]));
    assert_eq!(replacing.server_signer().id, "old", "a client that knows only the old root reaches the control plane");
    let web = issued("web", "old", "1", "both", START);
    let check = |records: &[Record], expected: &[&str]| {
        assert_eq!(waits_for(&replacing, records, "both", START + 9), expected, "{records:?}");
    };
    check(&[web.clone(), shown("1", START)], &["web"]);
    check(&[web.clone(), shown("1", START), issued("web", "new", "2", "both", START + 1)], &["web"]);
    check(&[web, issued("web", "new", "2", "both", START + 1), shown("2", START + 2)], &[]);

    let retiring = replacing.advance(&observed, START + 9).expect("nobody to wait for");
    assert_eq!((retiring.phase, ids(&retiring).len()), (Phase::Retiring, 2));
    assert_eq!(retiring.server_signer().id, "new");
    assert!(retiring.advance(&observed, START + 9).is_none(), "workers take what proxies have confirmed");
    let done = retiring.advance(&observed, START + 9 + SETTLE.as_secs()).expect("over");
    assert_eq!((done.phase, ids(&done)), (Phase::Steady, vec!["new".to_owned()]));
    assert_eq!(done.generation, steady.generation + 4);
    assert_eq!(done.steps.len(), 4);
}

#[test]
fn one_rotation_at_a_time_and_an_intermediate_needs_no_distribution() {
    let state = State::steady(signer("old"), START).begin(Kind::Intermediate, signer("new"), START).expect("begun");
    assert_eq!((state.phase, &*state.active.id, state.next.is_none()), (Phase::Replacing, "new", true));
    assert_eq!(state.begin(Kind::Root, signer("third"), START), None);
}

#[test]
fn a_control_plane_that_runs_an_earlier_state_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = Ledger::open(folder.path(), "one", START).unwrap();
    let mut other = Ledger::open(folder.path(), "other", START).unwrap();
    let state = State::steady(signer("old"), START).begin(Kind::Root, signer("new"), START).expect("begun");
    let planes = || {
        let ledgers = Ledgers::read(folder.path()).unwrap();
        state.waiting(&Observed { ledgers: &ledgers, bundle: "both" }, START).control_planes
    };
    one.append(&Record::Runs { generation: state.generation }, START).unwrap();
    assert_eq!(planes(), ["other"]);
    other.append(&Record::Runs { generation: state.generation - 1 }, START).unwrap();
    assert_eq!(planes(), ["other"]);
    other.append(&Record::Runs { generation: state.generation }, START).unwrap();
    assert_eq!(planes(), [""; 0]);
    // A control plane that has ended runs nothing.
    other.append(&issued("web", "old", "1", "old", START), START).unwrap();
    drop(other);
    let ledgers = Ledgers::read(folder.path()).unwrap();
    assert_eq!((ledgers.replicas.len(), ledgers.holders.len()), (1, 1), "what it has issued still counts");
    // The next one takes over its ledger, and another's lines about its certificates.
    one.append(&trusts("1", "both", START), START).unwrap();
    let _next = Ledger::open(folder.path(), "next", START).unwrap();
    let ledgers = Ledgers::read(folder.path()).unwrap();
    assert_eq!(ledgers.holders["web"].bundle.as_deref(), Some("both"));
    assert_eq!(fs::read_dir(folder.path().join("ca/ledger")).unwrap().count(), 2);
}

#[test]
fn a_ledger_survives_a_crash_in_the_middle_of_a_line_and_does_not_grow_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(folder.path(), "one", START).unwrap();
    ledger.append(&issued("web", "old", "1", "old", START), START).unwrap();
    let ledgers = folder.path().join("ca/ledger");
    let path = ledgers.join("one.ledger");
    let mut text = fs::read(&path).unwrap();
    text.extend(b"{\"t\":\"issued\",\"name\":\"half");
    fs::write(ledgers.join("two.ledger"), &text).unwrap();
    assert_eq!(Ledgers::read(folder.path()).unwrap().holders.len(), 1);
    fs::remove_file(ledgers.join("two.ledger")).unwrap();

    let later = END + HOLDER_SKEW.as_secs();
    for number in 0..45_000 {
        ledger.append(&shown("1", START + number), later).unwrap();
    }
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 2_000_000, "{size} bytes");
    assert_eq!(Ledgers::read(folder.path()).unwrap().holders.len(), 0, "the certificate has ended");
}

fn certificate(authority: &Authority, now: SystemTime) -> Vec<String> {
    let id = "spiffe://cluster.local/ns/a/sa/b";
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    let csr = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    authority.sign(csr.der(), &id.parse().unwrap(), DAY, now).unwrap().chain
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Opens the store again before every step, as after a crash.
#[test]
fn a_rotation_goes_on_after_a_crash_at_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let open = || AuthorityStore::open(folder.path(), None, "cluster.local", now()).unwrap();
    let (_, first) = open();
    assert_eq!(first.active.origin, Origin::First);
    let first_root = fs::read_to_string(folder.path().join("ca-cert.pem")).unwrap();
    let bundle = || fs::read_to_string(folder.path().join("trust-bundle.pem")).unwrap();
    assert_eq!(bundle(), first_root);
    let none = Ledgers::default();
    for (kind, phases) in [
        (Kind::Root, &[Phase::Distributing, Phase::Replacing, Phase::Retiring, Phase::Steady][..]),
        (Kind::Intermediate, &[Phase::Replacing, Phase::Retiring, Phase::Steady][..]),
        (Kind::Intermediate, &[Phase::Replacing, Phase::Retiring, Phase::Steady][..]),
        (Kind::Root, &[Phase::Distributing, Phase::Replacing, Phase::Retiring, Phase::Steady][..]),
    ] {
        let (store, before) = open();
        store.rotate(&before, kind, now()).unwrap();
        for (index, phase) in phases.iter().enumerate() {
            let (store, state) = open();
            assert_eq!(state.phase, *phase);
            let signing = store.signing(state.clone(), now()).unwrap();
            certificate(&signing.active, now());
            assert!(signing.bundle.starts_with(&format!("# signer {}\n", signing.active.key_id())));
            let roots = signing.roots.matches("BEGIN").count();
            let two = kind == Kind::Root && *phase != Phase::Steady;
            assert_eq!((roots, &*signing.roots), (if two { 2 } else { 1 }, &*bundle()));
            if index + 1 < phases.len() {
                let later = state.since.max(seconds(now())) + SETTLE.as_secs();
                let observed = Observed { ledgers: &none, bundle: &signing.version };
                let next = state.advance(&observed, later).expect("the next step");
                store.save(&next).unwrap();
            } else {
                store.clean(&state).unwrap();
            }
        }
    }
    let (store, state) = open();
    assert!(!bundle().contains(first_root.trim()), "the first root is not trusted any more");
    assert!(!folder.path().join("ca-key.pem").exists(), "its key is gone");
    assert_eq!(fs::read_dir(folder.path().join("ca/signers")).unwrap().count(), 1, "those of others, too");
    assert!(store.signing(state, now()).unwrap().active.is_root());
}

#[test]
fn an_intermediate_signs_below_the_same_root() {
    let folder = tempfile::tempdir().unwrap();
    let (store, first) = AuthorityStore::open(folder.path(), None, "cluster.local", now()).unwrap();
    let key = store.signing(first.clone(), now()).unwrap().active.key_id().to_owned();
    let state = store.rotate(&first, Kind::Intermediate, now()).unwrap();
    let signing = store.signing(state, now()).unwrap();
    assert_eq!(certificate(&signing.active, now()).len(), 2, "leaf and intermediate");
    assert_ne!(signing.active.key_id(), key);
    assert!(!signing.active.is_root());
    assert!(folder.path().join("ca-key.pem").exists());
    let busy = store.rotate(&signing.state, Kind::Root, now()).unwrap_err().to_string();
    assert!(busy.contains("a rotation is going on"), "{busy}");
}

#[test]
fn the_operators_files_are_followed() {
    let (folder, plug) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |files: &PluggedFiles| {
        for (name, text) in [
            ("ca-cert.pem", &files.certificate),
            ("ca-key.pem", &files.key),
            ("root-cert.pem", &files.roots),
            ("cert-chain.pem", &files.chain),
        ] {
            fs::write(plug.path().join(name), text).unwrap();
        }
        fs::set_permissions(plug.path().join("ca-key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    };
    let read = || PluggedFiles::read(plug.path()).unwrap();
    let top = Authority::new_root("corp", now()).unwrap();
    let authority = |files: &PluggedFiles| Authority::from_files(files, now()).unwrap();
    write(&authority(&top).new_intermediate("corp", now()).unwrap());
    let (store, state) = AuthorityStore::open(folder.path(), Some(&read()), "cluster.local", now()).unwrap();
    assert_eq!(state.active.origin, Origin::PluggedIn);
    assert_eq!(store.reload(&state, &read(), now()).unwrap(), Reloaded::Same);
    assert!(!folder.path().join("ca-key.pem").exists(), "no root of its own");

    // Below the same root nothing has to be distributed.
    write(&authority(&top).new_intermediate("corp", now()).unwrap());
    let Reloaded::Begun(begun) = store.reload(&state, &read(), now()).unwrap() else { panic!("begun") };
    assert_eq!((begun.phase, begun.kind), (Phase::Replacing, Some(Kind::Intermediate)));
    assert_eq!(store.reload(&begun, &read(), now()).unwrap(), Reloaded::Same);

    // A new root has to wait for the current rotation, and is distributed first.
    let other = Authority::new_root("corp", now()).unwrap();
    write(&other);
    assert_eq!(store.reload(&begun, &read(), now()).unwrap(), Reloaded::Later);
    let over = State { phase: Phase::Steady, old: None, ..*begun };
    let Reloaded::Begun(begun) = store.reload(&over, &read(), now()).unwrap() else { panic!("begun") };
    assert_eq!((begun.phase, begun.kind), (Phase::Distributing, Some(Kind::Root)));

    // Files that do not fit change nothing.
    fs::write(plug.path().join("ca-cert.pem"), &top.certificate).unwrap();
    let error = store.reload(&over, &read(), now()).unwrap_err().to_string();
    assert!(error.contains("ca-cert.pem"), "{error}");
    let refused = store.rotate(&over, Kind::Intermediate, now()).unwrap_err().to_string();
    assert!(refused.contains("plugged in"), "{refused}");
}

#[test]
fn revocation_lists_of_the_operator_are_followed() {
    let (folder, plug) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let top = Authority::new_root("corp", now()).unwrap();
    for (name, text) in [("tls.crt", &top.certificate), ("tls.key", &top.key), ("ca.crt", &top.roots)] {
        fs::write(plug.path().join(name), text).unwrap();
        fs::set_permissions(plug.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let read = || PluggedFiles::read(plug.path()).unwrap();
    let (store, state) = AuthorityStore::open(folder.path(), Some(&read()), "cluster.local", now()).unwrap();
    let lists = || store.signing(state.clone(), now()).unwrap().revocation_lists;
    assert_eq!(lists(), None);
    let list = revocation_list(&top, "40", now());
    let text = pem::encode_config(
        &pem::Pem::new("X509 CRL", list.as_ref()),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    );
    fs::write(plug.path().join("ca-crl.pem"), &text).unwrap();
    assert!(store.replace_revocation_lists(&state, &read(), now()).unwrap());
    assert_eq!(lists().as_deref(), Some(&*text));
    // An authority without lists would accept revoked certificates again.
    let refused = store.rotate(&state, Kind::Root, now()).unwrap_err().to_string();
    assert!(refused.contains("revocation lists"), "{refused}");
    // Lists of another authority do not cover these certificates: peers would reject all of them.
    let other = Authority::new_root("other", now()).unwrap();
    let foreign = revocation_list(&other, "40", now());
    let foreign = pem::encode(&pem::Pem::new("X509 CRL", foreign.as_ref()));
    fs::write(plug.path().join("ca-crl.pem"), &foreign).unwrap();
    let refused = store.replace_revocation_lists(&state, &read(), now()).unwrap_err().to_string();
    assert!(refused.contains("there is no revocation list of `O=corp`"), "{refused}");
    assert_eq!(lists().as_deref(), Some(&*text));
    fs::write(plug.path().join("ca-crl.pem"), &text).unwrap();
    assert!(!store.replace_revocation_lists(&state, &read(), now()).unwrap());
    fs::remove_file(plug.path().join("ca-crl.pem")).unwrap();
    assert!(store.replace_revocation_lists(&state, &read(), now()).unwrap());
    assert_eq!(lists(), None);
}

/// Members of a WorkloadGroup have no Pod whose end could be noticed.
#[test]
fn workloads_of_an_earlier_run_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = AuthorityStore::open(folder.path(), None, "cluster.local", now()).unwrap();
    store.forget_holders().unwrap();
    let mut ledger = Ledger::open(store.store(), "one", START).unwrap();
    ledger.append(&issued("group:vm@10.0.0.1.shop", "a", "1", "b", START), START).unwrap();
    drop(ledger);
    assert_eq!(Ledgers::read(store.store()).unwrap().holders.len(), 1);
    store.forget_holders().unwrap();
    let _ledger = Ledger::open(store.store(), "two", START).unwrap();
    assert!(Ledgers::read(store.store()).unwrap().holders.is_empty());
}

#[test]
fn a_request_is_seen_until_it_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = AuthorityStore::open(folder.path(), None, "cluster.local", now()).unwrap();
    assert_eq!(store.requested(), None);
    AuthorityStore::at(folder.path(), "").request(Kind::Intermediate).unwrap();
    assert_eq!(store.requested(), Some(Kind::Intermediate));
    store.answered(Kind::Intermediate).unwrap();
    assert_eq!(store.requested(), None);
    assert!(store.without_requested().unwrap().is_empty());
    let names = ["web-0.shop".to_owned(), "api-0.shop".to_owned()];
    AuthorityStore::at(folder.path(), "").request_without(&names).unwrap();
    assert_eq!(store.without_requested().unwrap(), names);
    store.without_answered().unwrap();
    assert!(store.without_requested().unwrap().is_empty());
    assert!(AuthorityStore::at(&folder.path().join("none"), "").request(Kind::Root).is_err());
    assert!(Duration::from_secs(60) < HOLDER_SKEW);
}
