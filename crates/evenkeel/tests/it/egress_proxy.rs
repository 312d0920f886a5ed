//! Calls of unknown hosts go to the mesh's egress proxy, over real sockets.

use evenkeel_testkit::{Backend, eventually};

use crate::mesh::{Plane, Proxy, host};
use crate::settle::settle;

fn mesh(policy: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
         data: {{mesh: '{{outboundTrafficPolicy: {{{policy}}}, enableAutoMtls: false}}'}}\n"
    )
}

#[test]
fn unknown_hosts_are_called_through_the_egress_proxy_of_the_mesh() {
    let (known, egress) = (Backend::echo("known"), Backend::echo("egress"));
    let plane = Plane::new();
    plane.write("known", &host("known", known.address()));
    plane.write("egress", &host("egress", egress.address()));
    plane.write("mesh", &mesh("mode: ALLOW_ANY, egressProxy: {host: egress.test, port: {number: 80}}"));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    let proxies = ["learned", "full"].map(|scope| Proxy::start(&plane, folder.path(), &format!("{scope}-0"), scope, 1));
    let answers = |host: &str, status: u16, from: &str| {
        for proxy in &proxies {
            let (got, body) = proxy.get(host);
            assert!(got == status && body.contains(from), "{host}: {got} {body}, not {status} from {from}");
        }
    };
    for proxy in &proxies {
        eventually("the host", || (proxy.get("known.test").0 == 200).then_some(()));
    }
    answers("known.test", 200, "known");
    answers("unknown.example.com", 200, "egress");
    // The egress proxy learns the host that is called.
    answers("unknown.example.com", 200, "unknown.example.com");
    // Without the egress proxy, nothing passes by it.
    plane.remove("egress");
    settle(&plane);
    answers("unknown.example.com", 503, "");
    answers("known.test", 200, "known");
    plane.write("egress", &host("egress", egress.address()));
    settle(&plane);
    answers("unknown.example.com", 200, "egress");
    // With a mistake in it, the last settings without one hold.
    plane.write("mesh", &mesh("mode: ALLOW_ANY, egressProxy: {host: egress.test}"));
    settle(&plane);
    answers("unknown.example.com", 200, "egress");
    answers("known.test", 200, "known");
}
