//! After writing a file and waiting as `evenkeel apply --wait` does, the next request sees the change.

use evenkeel_testkit::{Backend, cases, eventually};

use crate::mesh::{Plane, Proxy, host};

/// A host's route that answers with this number.
fn answer(number: usize) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: a, namespace: shop}}\n\
         spec: {{hosts: [a.test], http: [{{directResponse: {{status: 200, body: {{string: \"{number}\"}}}}}}]}}\n"
    )
}

/// Waits until what is written runs everywhere.
pub fn settle(plane: &Plane) {
    let ticket = plane.json("/debug/settle").expect("a ticket")["ticket"].clone();
    eventually("every proxy runs it", || {
        let page = plane.json(&format!("/debug/settle?ticket={ticket}"))?;
        let done = page["read"] == true && page["behind"].as_array().is_some_and(Vec::is_empty);
        done.then_some(())
    });
}

#[test]
fn the_next_request_sees_what_was_waited_for() {
    let backend = Backend::echo("one");
    let plane = Plane::new();
    plane.write("a", &host("a", backend.address()));
    plane.write("route", &answer(0));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let learned = Proxy::start(&plane, folder.path(), "client-0", "learned", 2);
    let full = Proxy::start(&plane, folder.path(), "other-0", "full", 2);
    for proxy in [&learned, &full] {
        eventually("the host", || (proxy.get("a.test") == (200, "0".to_owned())).then_some(()));
    }
    // Changes, each followed by a request to each proxy.
    let pairs = cases(200, 1000);
    let mut stale = Vec::new();
    for number in 1..=pairs {
        plane.write("route", &answer(number));
        settle(&plane);
        for (name, proxy) in [("learned", &learned), ("full", &full)] {
            let (status, body) = proxy.get("a.test");
            if (status, &*body) != (200, &*number.to_string()) {
                stale.push(format!("{name} {number}: {status} {body}"));
            }
        }
    }
    assert!(stale.is_empty(), "{} of {pairs} pairs are stale: {stale:?}", stale.len());
}

#[test]
fn a_refused_file_is_named() {
    let plane = Plane::new();
    plane.write("route", &answer(0).replace("hosts:", "hots:"));
    let _control = plane.start();
    let ticket = plane.json("/debug/settle").expect("a ticket")["ticket"].clone();
    let page = eventually("the file is read", || {
        let page = plane.json(&format!("/debug/settle?ticket={ticket}"))?;
        (page["read"] == true).then_some(page)
    });
    let refused = page["refused"].as_array().expect("a list");
    assert!(refused.iter().any(|finding| finding.as_str().is_some_and(|text| text.contains("route.yaml"))), "{page}");
}
