//! A source without files beside the configuration directories, in a running control plane.

use std::collections::BTreeMap;

use evenkeel_api::ObjectKey;
use evenkeel_base::{Rank, SourceId};
use evenkeel_control::source::feed::{ObjectFeed, ObjectSource};
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Protocol;
use serde_json::{Value, json};

use crate::fixture::{Plane, Proxy, cluster, pod, service};

fn kubernetes() -> (ObjectFeed, ObjectSource) {
    ObjectFeed::new(SourceId::new("kubernetes", Rank(200)))
}

fn object(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port}]},
    })
}

fn instance(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{name}-0"), "namespace": "shop", "labels": {"app": name}},
        "spec": {"serviceAccountName": name, "containers": [{"name": "main"}]},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn key(json: &Value) -> ObjectKey {
    ObjectKey::of_json(json).expect("a kind that is known")
}

/// Waits until the proxy holds the clusters of these services and no others of the namespace.
async fn until_served(proxy: &mut Proxy, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|name| cluster(name)).collect();
    loop {
        let held = proxy.held(ResourceType::Cluster).into_keys();
        let mut held: Vec<String> = held.filter(|name| name.contains(".shop.svc.")).collect();
        held.sort();
        if held == expected {
            return;
        }
        proxy.step(None).await.expect("an open stream");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_come_and_go_beside_files_that_change_all_the_time() {
    let (feed, source) = kubernetes();
    feed.put(object("b", 80), 0);
    let plane = Plane::start_beside(&[("a.yaml", service("a"))], vec![Box::new(source)]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    until_served(&mut proxy, &["a", "b"]).await;

    // Load: bursts of changes of a file and of endpoints of the other source, one as soon as the last is served.
    let path = plane.config.path().join("load.yaml");
    let load = async {
        for burst in (0..200).cycle() {
            for number in [200, 201, 202, burst] {
                std::fs::write(&path, pod("a", &format!("10.1.{number}.1"))).expect("a file");
                feed.put(instance("b", &format!("10.2.{number}.1")), 0);
            }
            let last = [format!("10.1.{burst}.1"), format!("10.2.{burst}.1")];
            let is_served = |page: &str| last.iter().all(|address| page.contains(address)).then_some(());
            plane.until("/debug/endpointz", is_served).await;
        }
    };
    let changes = async {
        feed.put(object("c", 80), 0);
        until_served(&mut proxy, &["a", "b", "c"]).await;
        // It changes: another port.
        feed.put(object("c", 81), 0);
        proxy.until_held(ResourceType::Cluster, "outbound|81||c.shop.svc.cluster.local").await;
        feed.put(object("c", 80), 0);
        until_served(&mut proxy, &["a", "b", "c"]).await;
        feed.remove(&key(&object("c", 80)));
        until_served(&mut proxy, &["a", "b"]).await;
        // The source lists everything again: what is missing is gone, and what is the same stays.
        feed.replace_all(vec![(object("b", 80), 0), (object("d", 80), 0)]);
        until_served(&mut proxy, &["a", "b", "d"]).await;
    };
    tokio::select! {
        () = changes => {}
        () = load => {}
    }
    feed.replace_all(vec![(object("d", 80), 0)]);
    until_served(&mut proxy, &["a", "d"]).await;

    // The page of endpoints has the last Pod of each source.
    feed.put(instance("d", "10.3.0.1"), 0);
    plane.write("load.yaml", &pod("a", "10.4.0.1"));
    plane
        .until("/debug/endpointz", |page| (page.contains("10.3.0.1") && page.contains("10.4.0.1")).then_some(()))
        .await;
    // The history names objects, and files. It tells the last 100 changes.
    feed.put(object("c", 80), 0);
    until_served(&mut proxy, &["a", "c", "d"]).await;
    feed.put(object("c", 81), 0);
    proxy.until_held(ResourceType::Cluster, "outbound|81||c.shop.svc.cluster.local").await;
    feed.remove(&key(&object("c", 80)));
    until_served(&mut proxy, &["a", "d"]).await;
    let changes = plane.json("/debug/history").await["changes"].as_array().expect("changes").clone();
    let of = |name: &str| {
        let entries = changes.iter().flat_map(|change| change["files"].as_array().expect("entries"));
        let of = entries.filter(|entry| entry["file"].as_str().is_some_and(|file| file.ends_with(name)));
        of.map(|entry| (entry["what"].clone(), entry["object"].clone(), entry["source"].clone())).collect::<Vec<_>>()
    };
    let all = ["added", "changed", "removed"];
    let expected = all.map(|what| (json!(what), json!("Service shop/c"), json!("kubernetes")));
    assert!(of("kubernetes/Service/shop/c").ends_with(&expected), "{changes:#?}");
    assert!(of("load.yaml").iter().all(|(_, object, source)| object.is_null() && source.is_null()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_name_objects_and_the_last_good_ones_are_served() {
    let (feed, source) = kubernetes();
    feed.put(object("a", 81), 0);
    feed.put(object("b", 80), 0);
    let plane = Plane::start_beside(&[("a.yaml", service("a"))], vec![Box::new(source)]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    until_served(&mut proxy, &["a", "b"]).await;
    // Of two sources with the same object the first one wins, and the second one's has a finding that names both.
    let finding = |page: &str, code: &str| {
        let page: Value = serde_json::from_str(page).expect("JSON");
        let found = page["diagnostics"].as_array()?.iter().find(|finding| finding["code"] == code)?.clone();
        Some((page, found))
    };
    let shadowed = |page: &str| {
        let page: Value = serde_json::from_str(page).expect("JSON");
        let all = page["diagnostics"].as_array().expect("findings").clone();
        all.into_iter().find(|finding| finding["message"].as_str().is_some_and(|it| it.contains("takes precedence")))
    };
    let found = plane.until("/debug/diagnostics", shadowed).await;
    let message = found["message"].as_str().expect("a message");
    assert!(message.contains("from kubernetes is ignored: the one from files takes precedence"), "{found}");
    assert_eq!((&found["object"]["source"], &found["object"]["name"]), (&json!("kubernetes"), &json!("a")), "{found}");

    let mut broken = object("b", 80);
    broken["spec"]["prots"] = json!([]);
    feed.put(broken.clone(), 0);
    let (page, found) = plane.until("/debug/diagnostics", |page| finding(page, "unknown-field")).await;
    assert_eq!(page["refused_files"], json!(["kubernetes/Service/shop/b"]));
    assert_eq!(page["never_accepted"], json!([]));
    assert!(found["message"].as_str().is_some_and(|message| message.contains("`spec.prots`")), "{found}");
    let rendered = found["rendered"].as_str().expect("a text");
    assert!(rendered.contains("kubernetes/Service/shop/b"), "{rendered}");
    assert!(plane.page("/metrics").await.contains("evenkeel_config_refused_files 1\n"));
    assert!(proxy.holds(ResourceType::Cluster, &cluster("b")), "what was good stays");

    // After a restart, too: the history has it.
    let (config, state) = plane.stop().await;
    let (feed, source) = kubernetes();
    feed.put(object("a", 81), 0);
    feed.put(broken, 0);
    let plane = Plane::start_with(config, state, vec![Box::new(source)]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    until_served(&mut proxy, &["a", "b"]).await;
    feed.put(object("b", 80), 0);
    plane.until("/debug/diagnostics", |page| page.contains("\"refused_files\": []").then_some(())).await;
    // A file that is removed makes room for the other source's object.
    std::fs::remove_file(plane.config.path().join("a.yaml")).expect("the file");
    proxy.until_held(ResourceType::Cluster, "outbound|81||a.shop.svc.cluster.local").await;
}

/// Versions are made of the resources' bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_objects_give_the_same_resources_from_either_source() {
    let objects = [object("a", 80), object("b", 80), instance("a", "10.1.0.1"), instance("b", "10.1.0.2")];
    let file = objects.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n");
    let (feed, source) = kubernetes();
    feed.replace_all(objects.iter().map(|object| (object.clone(), 0)).collect());
    let by_files = Plane::start_beside(&[("all.yaml", file)], Vec::new()).await;
    let by_feed = Plane::start_beside(&[], vec![Box::new(source)]).await;
    let mut held: Vec<BTreeMap<String, String>> = Vec::new();
    for plane in [&by_files, &by_feed] {
        let mut proxy = plane.client(Protocol::Delta, "client").await;
        let names = [cluster("a"), cluster("b")];
        proxy.want_endpoints(&[&names[0], &names[1]]).await;
        until_served(&mut proxy, &["a", "b"]).await;
        for name in &names {
            proxy.until_held(ResourceType::Endpoint, name).await;
        }
        let mut all = proxy.held(ResourceType::Cluster);
        while proxy.held(ResourceType::Listener).is_empty() {
            proxy.step(None).await.expect("an open stream");
        }
        all.extend(proxy.held(ResourceType::Listener));
        all.extend(proxy.held(ResourceType::Endpoint).into_iter().map(|(name, v)| (format!("endpoints {name}"), v)));
        held.push(all);
    }
    assert!(held[0].len() > 5, "{held:?}");
    assert_eq!(held[0], held[1]);
}
