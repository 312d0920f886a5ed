//! Valid and invalid edits of the configuration.

use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Protocol;

use crate::fixture::{Plane, cluster, service};

#[tokio::test]
async fn a_broken_file_is_named_and_its_last_good_content_served() {
    let plane = Plane::start(&[("a.yaml", service("a")), ("b.yaml", service("b"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("b")).await;

    plane.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}\n");
    let page = plane.until("/debug/diagnostics", |page| page.contains("a.yaml").then(|| page.to_owned())).await;
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let found = page["diagnostics"].as_array().expect("findings").iter().find(|d| d["code"] == "unknown-field");
    let found = found.unwrap_or_else(|| panic!("{page}"));
    assert!(found["line"] == 4 && found["column"] == 8, "{found}");
    assert!(found["message"].as_str().expect("a message").contains("prots"), "{found}");
    assert!(found["help"].as_str().expect("a way out").contains("ports"), "{found}");
    assert!(page["refused_files"][0].as_str().expect("a file").ends_with("a.yaml"), "{page}");
    assert!(plane.page("/metrics").await.contains("evenkeel_config_refused_files 1\n"));

    // Other files still take effect, and the broken one's objects stay.
    plane.write("c.yaml", &service("c"));
    proxy.until_held(ResourceType::Cluster, &cluster("c")).await;
    assert!(proxy.holds(ResourceType::Cluster, &cluster("a")));

    plane.write("a.yaml", &service("a2"));
    proxy.until_held(ResourceType::Cluster, &cluster("a2")).await;
    plane.until("/debug/diagnostics", |page| page.contains("\"refused_files\": []").then_some(())).await;
}

#[tokio::test]
async fn a_deleted_file_takes_its_objects_along() {
    let plane = Plane::start(&[("a.yaml", service("a")), ("b.yaml", service("b"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("b")).await;
    std::fs::remove_file(plane.config.path().join("b.yaml")).expect("a removed file");
    let gone = cluster("b");
    proxy.until(|update| update.removed.contains(&gone).then_some(())).await;
}

#[tokio::test]
async fn a_comment_is_no_change_for_proxies() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let before = plane.json("/debug/syncz").await["generation"].clone();
    plane.write("a.yaml", &format!("{}# a comment\n", service("a")));
    plane.write("b.yaml", "apiVersion: v2\nkind: Nothing\n");
    plane.until("/debug/diagnostics", |page| page.contains("b.yaml").then_some(())).await;
    assert_eq!(plane.json("/debug/syncz").await["generation"], before);
}

/// That an edit waits for nothing is tested with the debounce, on a virtual clock. This test checks that each edit takes
/// effect, is not merged with another that waits, and is not pushed twice.
#[tokio::test]
async fn each_edit_takes_effect_by_itself() {
    let plane = Plane::start(&[("a.yaml", service("a"))]).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    let before = plane.json("/debug/syncz").await["generation"].as_u64().expect("a number");
    for i in 0..5 {
        plane.write("b.yaml", &service(&format!("b{i}")));
        proxy.until_held(ResourceType::Cluster, &cluster(&format!("b{i}"))).await;
    }
    // The last one counts as published when all have been told, which a proxy may be before.
    let followed = |page: &str| {
        let page: serde_json::Value = serde_json::from_str(page).ok()?;
        page["generation"].as_u64().filter(|generation| *generation >= before + 5)
    };
    assert_eq!(plane.until("/debug/syncz", followed).await, before + 5);
}

#[tokio::test]
async fn what_is_left_when_most_has_gone_is_built_anew_and_nobody_notices() {
    let many: String = (0..1_100).map(|number| format!("{}---\n", service(&format!("many-{number}")))).collect();
    let files = [("a.yaml", service("a")), ("many.yaml", many)];
    let plane = Plane::start(&files).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("many-1099")).await;
    std::fs::remove_file(plane.config.path().join("many.yaml")).expect("a removed file");
    proxy.until(|update| update.removed.contains(&cluster("many-1099")).then_some(())).await;

    plane.until("/metrics", |page| page.contains("evenkeel_config_rebuilds 1\n").then_some(())).await;
    assert!(plane.page("/metrics").await.contains("pilot_total_xds_internal_errors 0\n"));
    plane.write("b.yaml", &service("b"));
    let (kept, new) = (cluster("a"), cluster("b"));
    proxy
        .until(|update| {
            if update.kind != ResourceType::Cluster {
                return None;
            }
            assert!(update.removed.is_empty(), "{:?}", update.removed);
            assert!(!update.added.iter().any(|received| *received.name == *kept), "it was held before");
            update.added.iter().any(|received| *received.name == *new).then_some(())
        })
        .await;
    std::fs::remove_file(plane.config.path().join("a.yaml")).expect("a removed file");
    proxy.until(|update| update.removed.contains(&kept).then_some(())).await;
}
