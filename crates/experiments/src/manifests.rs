//! The mesh of an experiment as Kubernetes' and Istio's objects, one namespace for each setup.

use std::path::Path;

use serde_json::{Value, json};

use crate::setup::{Proxy, Setup};

/// The port of all services.
pub const PORT: u16 = 8080;
/// The caller's Deployment.
pub const CLIENT: &str = "client";
/// Istio's variables of proxyMetadata for Envoy's exact balance.
const EXACT_BALANCE: [&str; 2] =
    ["ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE", "ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE"];

/// The programs that a mesh runs.
pub struct Programs<'a> {
    /// The measured `evenkeel`, which is also the load generator and the server.
    pub evenkeel: &'a Path,
    /// The stock Envoy; `None`: no setup has one.
    pub envoy: Option<&'a Path>,
}

/// The name of a service of a chain, from 1.
pub fn service(number: usize) -> String {
    format!("s{number}")
}

/// All objects, as a YAML file with several documents.
pub fn render(setups: &[Setup], programs: &Programs<'_>) -> String {
    let objects = setups.iter().flat_map(|setup| Namespace { setup, programs, name: setup.namespace() }.objects());
    // JSON is YAML.
    objects.map(|object| format!("{object}\n")).collect::<Vec<_>>().join("---\n")
}

struct Namespace<'a> {
    setup: &'a Setup,
    programs: &'a Programs<'a>,
    name: String,
}

impl Namespace<'_> {
    fn objects(&self) -> Vec<Value> {
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": self.name, "labels": {"istio-injection": "enabled"}}}),
            self.deployment(CLIENT, self.setup.sidecars.at_client(), None),
        ];
        for number in 1..=self.setup.services {
            let next = (number < self.setup.services).then(|| service(number + 1));
            objects.push(self.deployment(&service(number), self.setup.sidecars.at_server(), next));
            objects.push(self.object(
                "v1",
                "Service",
                &service(number),
                json!({"selector": {"app": service(number)}, "ports": [{"name": "http", "port": PORT}]}),
            ));
        }
        if self.setup.services > 1 {
            objects.extend((1..self.setup.services).map(|entry| self.route(entry)));
        }
        objects.extend(self.policies());
        objects
    }

    fn object(&self, version: &str, kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": self.name}, "spec": spec})
    }

    /// A Deployment whose program answers, or forwards its connections to the next service.
    fn deployment(&self, name: &str, has_sidecar: bool, next: Option<String>) -> Value {
        let program = quoted(&self.programs.evenkeel.display().to_string());
        let others = "-grpc-port disabled -tcp-port disabled -udp-port disabled";
        let serves = match next {
            None => format!("-http-port {PORT}"),
            Some(next) => format!("-http-port disabled -P '{PORT} {next}:{PORT}'"),
        };
        let mut annotations = json!({"local.evenkeel.dev/run": format!("exec {program} echo {serves} {others}")});
        let mut labels = json!({"app": name});
        if has_sidecar {
            annotations["proxy.istio.io/config"] = json!(self.proxy_config().to_string());
            if let (Proxy::Envoy, Some(envoy)) = (self.setup.proxy, self.programs.envoy) {
                annotations["local.evenkeel.dev/proxy"] = json!("envoy");
                annotations["local.evenkeel.dev/envoy-path"] = json!(envoy);
            }
        } else {
            labels["sidecar.istio.io/inject"] = json!("false");
        }
        let container = json!({"name": name, "ports": [{"containerPort": PORT}]});
        let spec = json!({
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container]},
            },
        });
        self.object("apps/v1", "Deployment", name, spec)
    }

    fn proxy_config(&self) -> Value {
        let mut config = json!({"concurrency": self.setup.workers});
        if self.setup.exact_balance {
            for name in EXACT_BALANCE {
                config["proxyMetadata"][name] = json!("true");
            }
        }
        config
    }

    /// A program forwards bytes, and with them the Host header of the first call. So the sidecars choose the next service
    /// of a chain by the workload that calls.
    fn route(&self, entry: usize) -> Value {
        let destination = |number: usize| json!([{"destination": {"host": service(number), "port": {"number": PORT}}}]);
        let hop =
            |from: usize| json!({"match": [{"sourceLabels": {"app": service(from)}}], "route": destination(from + 1)});
        let mut routes: Vec<Value> = (entry..self.setup.services).map(hop).collect();
        routes.push(json!({"route": destination(entry)}));
        let spec = json!({"hosts": [service(entry)], "http": routes});
        self.object("networking.istio.io/v1", "VirtualService", &service(entry), spec)
    }

    fn policies(&self) -> Vec<Value> {
        let mode = if self.setup.is_mutual() { "STRICT" } else { "DISABLE" };
        let metrics =
            json!([{"providers": [{"name": "prometheus"}], "overrides": [{"disabled": !self.setup.telemetry}]}]);
        let log = json!([{"providers": [{"name": "envoy"}], "disabled": !self.setup.access_log}]);
        let mut all = vec![
            self.object("security.istio.io/v1", "PeerAuthentication", "default", json!({"mtls": {"mode": mode}})),
            self.object(
                "telemetry.istio.io/v1",
                "Telemetry",
                "default",
                json!({"metrics": metrics, "accessLogging": log}),
            ),
        ];
        if self.setup.authorization {
            let principal = format!("cluster.local/ns/{}/sa/default", self.name);
            let rule = json!({
                "from": [{"source": {"principals": [principal]}}],
                "to": [{"operation": {"methods": ["GET", "POST"]}}],
            });
            let spec = json!({"action": "ALLOW", "rules": [rule]});
            all.push(self.object("security.istio.io/v1", "AuthorizationPolicy", "callers", spec));
        }
        all
    }
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Sidecars;

    /// Checks which of the texts the objects of a setup contain.
    fn check(setup: &Setup, present: &[&str], absent: &[&str]) {
        let programs = Programs { evenkeel: Path::new("/opt/it's/evenkeel"), envoy: Some(Path::new("/opt/envoy")) };
        let text = render(std::slice::from_ref(setup), &programs);
        for expected in present {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        for unexpected in absent {
            assert!(!text.contains(unexpected), "{unexpected} in\n{text}");
        }
    }

    #[test]
    fn settings_become_the_fields_of_istio() {
        let pair = || Setup::pair(Proxy::Evenkeel, 2);
        check(
            &pair(),
            &["STRICT", "\\\"concurrency\\\":2", "'/opt/it'\\\\''s/evenkeel'"],
            &["envoy-path", "sourceLabels"],
        );
        check(&Setup::direct(), &["\"sidecar.istio.io/inject\":\"false\"", "DISABLE"], &["concurrency"]);
        check(&Setup { sidecars: Sidecars::Server, ..pair() }, &["DISABLE"], &["STRICT"]);
        check(&Setup { proxy: Proxy::Envoy, exact_balance: true, ..pair() }, &["/opt/envoy", EXACT_BALANCE[0]], &[]);
        check(&Setup { authorization: true, ..pair() }, &["/sa/default", "AuthorizationPolicy"], &[]);
        check(
            &Setup { services: 3, ..pair() },
            &["-P '8080 s2:8080'", "\"app\":\"s2\"}}]", "\"name\":\"s3\""],
            &["s4"],
        );
        check(
            &Setup { access_log: false, telemetry: false, ..pair() },
            &["\"disabled\":true"],
            &["\"disabled\":false"],
        );
    }
}
