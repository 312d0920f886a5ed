//! From the operator's files to the handshake of a real proxy: an operator's authority, revocation lists, another mesh's
//! roots, and the alarm of a certificate that expires.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_ca::rotation::{Ledger, Record};
use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_testkit::{Process, eventually};
use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};

use crate::mesh::Plane;
use crate::pair::{A, B, Gateway, ask, caller_of, local_ports, objects, trusting};

/// Writes an authority with a list that revokes these serial numbers, in hexadecimal.
fn plug(folder: &Path, files: &PluggedFiles, revoked: &[&str]) {
    let issuer = Issuer::from_ca_cert_pem(&files.certificate, KeyPair::from_pem(&files.key).expect("a key"));
    let begin = rcgen::date_time_ymd(2001, 1, 1);
    let entry = |serial: &&str| {
        let bytes = (0..serial.len()).step_by(2).map(|at| u8::from_str_radix(&serial[at..at + 2], 16).expect("hex"));
        RevokedCertParams {
            serial_number: SerialNumber::from_slice(&bytes.collect::<Vec<u8>>()),
            revocation_time: begin,
            reason_code: None,
            invalidity_date: None,
        }
    };
    let list = CertificateRevocationListParams {
        this_update: begin,
        next_update: rcgen::date_time_ymd(2100, 1, 1),
        crl_number: SerialNumber::from(revoked.len() as u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&issuer.expect("an issuer")).and_then(|list| list.pem()).expect("a list");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
    };
    write("ca-cert.pem", &files.certificate);
    write("ca-key.pem", &files.key);
    write("root-cert.pem", &files.roots);
    write("ca-crl.pem", &list);
}

/// `ROOT_CA_DIR` names the operator's authority, as for Istio; its list reaches the proxies, and one of them refuses the other.
#[test]
fn the_operators_list_of_revoked_certificates_reaches_a_proxy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cacerts = folder.path().join("cacerts");
    fs::create_dir(&cacerts).expect("a folder");
    let files = Authority::new_root("corp", SystemTime::now()).expect("a root");
    plug(&cacerts, &files, &[]);
    let (plane, backend, [a, b]) = (Plane::new(), caller_of(), local_ports());
    plane.write("objects", &objects(a, b, backend.address(), B));
    let _control = plane.start_as(|command| _ = command.env("ROOT_CA_DIR", &cacerts));
    let bundle = fs::read_to_string(plane.state().join("trust-bundle.pem")).expect("a bundle");
    assert_eq!(bundle.trim(), files.roots.trim(), "the operator's root, and no other");

    let [caller, called] = ["a", "b"].map(|name| Gateway::new(folder.path(), name));
    let _both = (caller.start(&plane, &[]), called.start(&plane, &[]));
    let seen = eventually("a request through both", || ask(a).ok());
    assert!(seen.contains(A), "{seen}");
    let [stolen, other] = [&caller, &called].map(|gateway| gateway.certificate().expect("a certificate").serial);
    // A list of a certificate that nobody shows changes nothing.
    plug(&cacerts, &files, &[&"7f".repeat(16)]);
    let version = plane.json("/debug/ca").expect("the page")["bundle"].clone();
    eventually("the list at the control plane", || (plane.json("/debug/ca")?["bundle"] != version).then_some(()));
    ask(a).expect("still served");
    plug(&cacerts, &files, &[&stolen]);
    let refused = eventually("the refusal", || ask(a).err());
    assert!(refused.starts_with("503"), "{refused}");
    // It is the server that refuses the certificate: the caller has no other reason to say.
    assert!(called.counts("ssl.fail_verify_error") > 0);
    assert_ne!(stolen, other);
    // It is accepted again when the list does not name it any more.
    plug(&cacerts, &files, &[]);
    eventually("a request through both", || ask(a).ok());
}

#[test]
fn two_meshes_trust_each_other_by_their_settings_between_evenkeels() {
    two_trust_domains(&[]);
}

/// Stock Envoy verifies with what the agent makes of it, the validator for SPIFFE.
#[test]
fn two_meshes_trust_each_other_by_their_settings_where_envoy_serves() {
    two_trust_domains(&["--envoy".to_owned(), evenkeel_testkit::envoy().display().to_string()]);
}

/// `a` is of another mesh, with a control plane and a trust domain of its own. `b` runs with these flags.
fn two_trust_domains(flags: &[String]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (here, there, backend, [a, b]) = (Plane::new(), Plane::new(), caller_of(), local_ports());
    let all = objects(a, b, backend.address(), B);
    here.write("objects", &all);
    there.write("objects", &all);
    there.write("mesh", &of_domain("partner.example"));
    let _controls = [here.start(), there.start()];
    let roots = |plane: &Plane| fs::read_to_string(plane.state().join("trust-bundle.pem")).expect("a bundle");
    let (caller, called) = (Gateway::new(folder.path(), "a"), Gateway::new(folder.path(), "b"));
    let partner = ["--trust-domain", "partner.example"].map(str::to_owned);
    let (caller_process, called_process) = (caller.start(&there, &partner), called.start(&here, flags));
    let refused = |what: &str| {
        let refusal = eventually(what, || ask(a).err().filter(|refusal| refusal.starts_with("503")));
        assert!(refusal.starts_with("503"), "{what}: {refusal}");
    };
    eventually("their certificates", || caller.certificate().zip(called.certificate()));
    refused("nobody has told them of each other");
    // The caller trusts the server, and is still a stranger to it.
    there.write("mesh", &trusting("partner.example", "cluster.local", &roots(&here)));
    eventually("the caller's roots", || caller.certificate()?.roots.contains("cluster.local").then_some(()));
    refused("a stranger");
    // Roots for another trust domain than the caller's let nobody in.
    here.write("mesh", &trusting("cluster.local", "other.example", &roots(&there)));
    refused("roots of another trust domain");
    here.write("mesh", &trusting("cluster.local", "partner.example", &roots(&there)));
    let seen = eventually("a request from one mesh to the other", || ask(a).ok());
    assert!(seen.contains("URI=spiffe://partner.example/ns/shop/sa/a"), "{seen}");
    here.write("mesh", &of_domain("cluster.local"));
    refused("a stranger again");
    drop::<[Process; 2]>([caller_process, called_process]);
}

fn of_domain(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
         data: {{mesh: \"trustDomain: {name}\"}}\n"
    )
}

/// The ledger of an earlier control plane on this state directory, with certificates of these workloads.
fn earlier_ledger(plane: &Plane, issued: &[Issued]) {
    let ledger = plane.state().join("ca/ledger");
    fs::create_dir_all(&ledger).expect("a folder");
    for folder in [plane.state(), plane.state().join("ca")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("its mode");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let mut earlier = Ledger::open(&plane.state(), "earlier", now).expect("a ledger");
    for Issued { name, since, left, pod } in issued {
        let record = Record::Issued {
            name: (*name).to_owned(),
            identity: format!("spiffe://cluster.local/ns/shop/sa/{name}"),
            signer: "s".to_owned(),
            serial: (*name).to_owned(),
            bundle: "b".to_owned(),
            at: (now - since) * 1000,
            end: now + left,
            pod: *pod,
        };
        earlier.append(&record, now).expect("written");
    }
}

/// A certificate: of whom, how old it is and how long it is good in seconds, and whether the configuration had its Pod.
struct Issued {
    name: &'static str,
    since: u64,
    left: u64,
    pod: bool,
}

/// Runs `evenkeel ca`; whether it succeeded, and what it printed.
fn ca(plane: &Plane, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("ca").args(arguments).args(["--control-plane", &plane.http().to_string()]);
    let output = command.arg("--state").arg(plane.state()).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// A workload with a certificate of 90 days that acknowledges nothing holds a rotation up, until the operator goes on without it. Pods of an
/// earlier run that the configuration does not have are not waited for.
#[test]
fn a_rotation_goes_on_without_the_workloads_that_the_operator_names() {
    let (plane, quarter) = (Plane::new(), 90 * 24 * 3600);
    let stuck = Issued { name: "stuck.shop", since: 10, left: quarter, pod: false };
    let gone = Issued { name: "gone-0.shop", since: 10, left: quarter, pod: true };
    earlier_ledger(&plane, &[stuck, gone]);
    let _control = plane.start();
    let check = |arguments: &[&str], succeeds: bool, words: &[&str]| {
        let (has_succeeded, text) = ca(&plane, arguments);
        assert_eq!(has_succeeded, succeeds, "{arguments:?}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{arguments:?}: no `{word}` in {text}"));
        text
    };
    check(&["rotate", "--root", "--no-wait"], true, &["is trusted in addition"]);
    eventually("it waits for one workload only", || {
        let (_, text) = ca(&plane, &["status"]);
        text.contains("waiting for stuck.shop\n").then_some(())
    });
    check(&["rotate"], false, &["a rotation is going on (distributing)", "--without NAME"]);
    check(&["rotate", "--without", "stuck"], false, &["does not wait for stuck; it waits for stuck.shop"]);
    let order = "by order of the operator the rotation does not wait for stuck.shop";
    let steps = [order, "it signs from now on", "replace their own", "is not trusted any more"];
    check(&["rotate", "--without", "stuck.shop"], true, &steps);
    check(&["status"], true, &["phase       steady"]);
    // The order may come with the request, and says where it does not help.
    let text =
        check(&["rotate", "--without", "stuck.shop"], true, &["the root stays the same", "is not trusted any more"]);
    assert!(!text.contains("waiting for stuck"), "{text}");
}

/// A workload whose certificate nobody has replaced, as a control plane finds it that starts: in its log, and where operators look.
#[test]
fn a_certificate_that_ends_is_an_alarm_with_the_workloads_name() {
    let plane = Plane::new();
    let late = Issued { name: "late.shop", since: 9_000, left: 1_000, pod: false };
    let fresh = Issued { name: "fresh.shop", since: 1_000, left: 9_000, pod: false };
    earlier_ledger(&plane, &[late, fresh]);
    let mut control = plane.start();
    let line = control.wait_for_line("a certificate has less than 30 % of its life left and was not replaced");
    for part in ["WARN", "late.shop", "spiffe://cluster.local/ns/shop/sa/late.shop", "left_s"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let alarm = "ALARM: the certificate of late.shop ends at ";
    let printed = eventually("the alarm", || Some(plane.proxy_status(&[])).filter(|text| text.contains(alarm)));
    assert_eq!(printed.matches("ALARM").count(), 1, "{printed}");
    assert!(printed.contains(" and was not renewed"), "{printed}");
    let http: SocketAddr = plane.http();
    let mut status = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = status.args(["ca", "status", "--control-plane", &http.to_string()]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(alarm) && output.status.code() == Some(1), "{output:?}");
    assert!(!control.output().contains("fresh.shop"), "{}", control.output());
}
