//! Starts, failed starts, and restarts.

use std::os::unix::fs::PermissionsExt as _;

use evenkeel_control::ControlPlane;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Protocol;

use crate::fixture::{Plane, cluster, options, service};

#[tokio::test]
async fn a_port_in_use_is_named_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let directory = tempfile::tempdir().expect("a directory");
    for flag in ["--grpc-address", "--secure-grpc-address", "--http-address"] {
        let mut options = options(directory.path(), directory.path());
        match flag {
            "--grpc-address" => options.grpc_address = address,
            "--secure-grpc-address" => options.secure_grpc_address = address,
            _ => options.http_address = address,
        }
        let error = ControlPlane::start(&options).await.expect_err("a conflict").to_string();
        assert!(error.starts_with(&format!("{flag} {address}: ")), "{error}");
        assert!(error.contains("another process listens there"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let check = async |change: &dyn Fn(&mut evenkeel_control::Options), expected: &str| {
        let mut options = options(directory.path(), directory.path());
        change(&mut options);
        let error = ControlPlane::start(&options).await.expect_err("a refusal").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&|o| o.config = vec!["/nonexistent/evenkeel".into()], "--config /nonexistent/evenkeel: No such file").await;
    check(&|o| o.grpc_address = "0.0.0.0:0".parse().expect("an address"), "only served on a loopback address").await;
    check(&|o| o.trust_domain = Some("No Domain".to_owned()), "--trust-domain: `No Domain` is not a trust domain")
        .await;
    check(&|o| o.state = "/proc/nonexistent".into(), "--state /proc/nonexistent: ").await;
    // Others could put their keys there.
    let open = directory.path().join("open");
    std::fs::create_dir(&open).expect("a directory");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("ours");
    check(&|o| o.state = open.clone(), "has mode 0777: other users than its owner can put keys and records into it")
        .await;
}

#[tokio::test]
async fn a_restart_keeps_the_root_and_the_addresses() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let before = plane.json("/debug/registryz").await;
    assert!(before[0]["addresses"][0].as_str().expect("an address").starts_with("10."), "{before}");
    let root = |state: &std::path::Path| std::fs::read_to_string(state.join("ca-cert.pem")).expect("a root");
    let first_root = root(plane.state.path());
    let mode = |name: &str| {
        let metadata = std::fs::metadata(plane.state.path().join(name)).expect("a file");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode("ca-key.pem"), 0o600);

    let (config, state) = plane.stop().await;
    // Another service before it in order would move addresses that are merely counted up.
    std::fs::write(config.path().join("0.yaml"), service("0")).expect("a file");
    let plane = Plane::start_in(config, state).await;
    let after = plane.json("/debug/registryz").await;
    let of_a = after.as_array().expect("services").iter().find(|s| s["host"] == before[0]["host"]);
    assert_eq!(of_a.expect("the service")["addresses"], before[0]["addresses"]);
    assert_eq!(root(plane.state.path()), first_root);
}

#[tokio::test]
async fn a_restart_keeps_what_a_refused_file_said_last() {
    let broken = service("a").replace("ports", "prots");
    let plane = Plane::start(&[("a.yaml", service("a")), ("b.yaml", service("b"))]).await;
    for edit in [broken.clone(), format!("{broken}# again\n")] {
        plane.write("a.yaml", &edit);
        let is_refused = |page: &str| (!page.contains("\"refused_files\": []")).then_some(());
        plane.until("/debug/diagnostics", is_refused).await;
    }
    // It was never good since it came to be again.
    std::fs::remove_file(plane.config.path().join("b.yaml")).expect("a removed file");
    plane.until("/debug/registryz", |page| (!page.contains("\"b.shop")).then_some(())).await;
    plane.write("b.yaml", &service("b").replace("ports", "prots"));
    plane.until("/debug/diagnostics", |page| page.contains("b.yaml").then_some(())).await;

    // What was recalled once is recalled again.
    let (mut config, mut state) = plane.stop().await;
    for _ in 0..2 {
        let plane = Plane::start_in(config, state).await;
        let mut proxy = plane.client(Protocol::Delta, "client").await;
        proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
        assert!(!proxy.holds(ResourceType::Cluster, &cluster("b")));
        let page = plane.json("/debug/diagnostics").await;
        let found = page["diagnostics"].as_array().expect("findings").iter();
        let recalled: Vec<_> = found.filter(|finding| finding["code"] == "recalled").collect();
        assert!(recalled.len() == 1 && recalled[0]["file"].as_str().is_some_and(|f| f.ends_with("a.yaml")), "{page}");
        assert_eq!(page["refused_files"].as_array().map(Vec::len), Some(2), "{page}");
        let never = page["never_accepted"].as_array().expect("files");
        assert!(never.len() == 1 && never[0].as_str().is_some_and(|file| file.ends_with("b.yaml")), "{page}");
        drop(proxy);
        (config, state) = plane.stop().await;
    }
    let plane = Plane::start_in(config, state).await;
    plane.write("a.yaml", &service("a2"));
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("a2")).await;
    assert!(!plane.page("/debug/diagnostics").await.contains("recalled"));
}

#[tokio::test]
async fn shutdown_ends_open_streams() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    plane.stop().await;
    while proxy.step(None).await.is_ok() {}
}
