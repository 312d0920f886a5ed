//! Probes of programs go to the agent, which makes them in the Pod: kubelet has no certificate of the mesh, and the program's
//! port is the proxy's.
//!
//! A probe over HTTP, TCP or gRPC becomes a GET of the agent's page at `/app-health/CONTAINER/readyz` (`livez`, `startupz`;
//! Istio's paths), and the agent gets the table of them in a variable. It serves the paths of this table and no others.

use serde_json::{Map, Value, json};

/// Variable with the table of probes, as in Istio: `{"/app-health/web/readyz": {"httpGet": {…}, "timeoutSeconds": 1}}`.
pub const PROBES_VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";
/// Annotation that leaves probes as they are.
pub(crate) const REWRITE_ANNOTATION: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
/// The fields with probes, and the last part of their paths.
const PROBES: [(&str, &str); 3] =
    [("readinessProbe", "readyz"), ("livenessProbe", "livez"), ("startupProbe", "startupz")];

/// The probes of a Pod's programs that the agent makes, by their paths.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Probes(Map<String, Value>);

impl Probes {
    /// Reads the table of the variable.
    pub(crate) fn of(table: String) -> Self {
        Self(serde_json::from_str(&table).unwrap_or_default())
    }

    /// Makes a container's probes what they were before they were redirected.
    pub(crate) fn restore(&self, container: &mut Value) {
        for (field, _) in PROBES {
            let Some(probe) = container.get_mut(field).and_then(Value::as_object_mut) else { continue };
            let path = probe.get("httpGet").and_then(|action| action.get("path")?.as_str());
            let Some(real) = path.and_then(|path| self.0.get(path)?.as_object()).cloned() else { continue };
            probe.remove("httpGet");
            probe.extend(real.into_iter().filter(|(name, _)| name != "timeoutSeconds"));
        }
    }

    /// Redirects the probes of a container to a port of the agent.
    pub(crate) fn redirect(&mut self, container: &mut Value, agent_port: u16) {
        let Some(name) = container.get("name").and_then(Value::as_str).map(str::to_owned) else { return };
        let ports = container.get("ports").cloned().unwrap_or_default();
        for (field, last) in PROBES {
            let Some(probe) = container.get_mut(field).and_then(Value::as_object_mut) else { continue };
            let path = format!("/app-health/{name}/{last}");
            if let Some(real) = redirected(probe, &ports, &path, agent_port) {
                self.0.insert(path, real);
            }
        }
    }

    /// The table for the agent; `None`: there are none.
    pub(crate) fn table(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| Value::Object(self.0.clone()).to_string())
    }
}

/// Makes a probe one of the agent, and returns what the agent has to do. A command, and a port that does not exist, stay.
fn redirected(probe: &mut Map<String, Value>, ports: &Value, path: &str, agent_port: u16) -> Option<Value> {
    let kind = ["httpGet", "tcpSocket", "grpc"].into_iter().find(|kind| probe.contains_key(*kind))?;
    let mut action = probe.get(kind)?.as_object()?.clone();
    let port = number(action.get("port")?, ports)?;
    if port == agent_port {
        return None;
    }
    action.insert("port".to_owned(), port.into());
    probe.remove(kind);
    probe.insert("httpGet".to_owned(), json!({"path": path, "port": agent_port}));
    let timeout = probe.get("timeoutSeconds").cloned().unwrap_or(1.into());
    Some(json!({kind: action, "timeoutSeconds": timeout}))
}

/// The number of a port, which may be given by its name.
fn number(port: &Value, ports: &Value) -> Option<u16> {
    if let Some(number) = port.as_u64() {
        return u16::try_from(number).ok();
    }
    let name = port.as_str()?;
    let of_name = |port: &&Value| port.get("name").and_then(Value::as_str) == Some(name);
    let found = ports.as_array().into_iter().flatten().find(of_name);
    let number = found.and_then(|port| port.get("containerPort")).and_then(Value::as_u64);
    number.and_then(|number| u16::try_from(number).ok()).or_else(|| name.parse().ok())
}
