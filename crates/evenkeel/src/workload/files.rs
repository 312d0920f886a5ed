//! The files that a machine needs: those of `istioctl x workload entry configure`, and a script that starts the agent with them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Value, json};

/// The script that starts the agent.
pub const SCRIPT: &str = "start-agent.sh";

/// A machine of a WorkloadGroup.
#[derive(Debug)]
pub struct Machine {
    pub name: String,
    pub namespace: String,
    pub group: String,
    pub service_account: String,
    pub ip: IpAddr,
    pub labels: BTreeMap<String, String>,
    /// The ports of its programs.
    pub ports: Vec<String>,
    pub network: Option<String>,
    pub cluster_id: String,
    /// The control plane's name.
    pub control_plane: String,
    pub control_plane_ip: Option<IpAddr>,
    /// Whether it registers itself.
    pub registers: bool,
    /// `readinessProbe` of its ProxyConfig.
    pub probe: Option<Value>,
}

impl Machine {
    /// The files, each with its text.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("cluster.env", self.environment()),
            ("mesh.yaml", self.mesh()),
            ("hosts", self.hosts()),
            (SCRIPT, self.script()),
        ]
    }

    /// Variables, as Istio's start script and the agent read them.
    fn environment(&self) -> String {
        let label = |names: [&str; 2]| names.iter().find_map(|name| self.labels.get(*name)).cloned();
        let name = label(["service.istio.io/canonical-name", "app"]).unwrap_or_else(|| self.group.clone());
        let revision = label(["service.istio.io/canonical-revision", "version"]).unwrap_or_else(|| "latest".to_owned());
        let labels = json!(self.labels).to_string();
        let ports = self.ports.join(",");
        let mut all = vec![
            ("CANONICAL_REVISION", revision),
            ("CANONICAL_SERVICE", name),
            ("ISTIO_INBOUND_PORTS", if ports.is_empty() { "*".to_owned() } else { ports }),
            ("ISTIO_LOCAL_EXCLUDE_PORTS", "22,15090,15021,15020".to_owned()),
            ("ISTIO_METAJSON_LABELS", labels),
            ("ISTIO_META_CLUSTER_ID", self.cluster_id.clone()),
            ("ISTIO_META_DNS_CAPTURE", "true".to_owned()),
            ("ISTIO_META_WORKLOAD_NAME", self.group.clone()),
            ("ISTIO_NAMESPACE", self.namespace.clone()),
            ("ISTIO_SERVICE", format!("{}.{}", self.group, self.namespace)),
            ("ISTIO_SERVICE_CIDR", "*".to_owned()),
            ("ISTIO_SVC_IP", self.ip.to_string()),
            ("POD_NAMESPACE", self.namespace.clone()),
            ("SERVICE_ACCOUNT", self.service_account.clone()),
        ];
        if self.registers {
            all.push(("ISTIO_META_AUTO_REGISTER_GROUP", self.group.clone()));
        }
        if let Some(network) = &self.network {
            all.push(("ISTIO_META_NETWORK", network.clone()));
        }
        all.sort();
        all.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect()
    }

    fn mesh(&self) -> String {
        let config = json!({ "defaultConfig": self.proxy_config() });
        serde_saphyr::to_string(&config).unwrap_or_else(|_| config.to_string())
    }

    fn proxy_config(&self) -> Value {
        let mut config = json!({ "discoveryAddress": format!("{}:15012", self.control_plane) });
        if let Some(probe) = &self.probe {
            config["readinessProbe"] = probe.clone();
        }
        config
    }

    /// What to append to the machine's file of hosts.
    fn hosts(&self) -> String {
        self.control_plane_ip.map(|address| format!("{address} {}\n", self.control_plane)).unwrap_or_default()
    }

    fn script(&self) -> String {
        let Self { name, namespace, service_account, ip, control_plane, .. } = self;
        let config = self.probe.as_ref().map(|probe| json!({ "readinessProbe": probe }).to_string());
        let config = config.map(|config| format!(" \\\n    --proxy-config {}", quoted(&config))).unwrap_or_default();
        format!(
            "#!/bin/sh\n\
             # Starts the agent and the proxy of this machine, with the files beside this script. Append `hosts` to /etc/hosts first.\n\
             # `evenkeel istio-iptables` redirects the machine's connections to the proxy.\n\
             set -eu\n\
             here=$(CDPATH= cd -- \"$(dirname -- \"$0\")\" && pwd)\n\
             set -a\n\
             . \"$here/cluster.env\"\n\
             set +a\n\
             exec evenkeel agent sidecar --id {} --namespace {} --service-account {} --ip {ip} \\\n    \
             --cluster-id \"$ISTIO_META_CLUSTER_ID\" --workload-name \"$ISTIO_META_WORKLOAD_NAME\" \\\n    \
             --token \"$here/istio-token\" --root-cert \"$here/root-cert.pem\" --discovery-address {} \\\n    \
             --state \"${{EVENKEEL_STATE:-/var/lib/evenkeel}}\"{config} \"$@\"\n",
            quoted(&format!("{name}.{namespace}")),
            quoted(namespace),
            quoted(service_account),
            quoted(&format!("{control_plane}:15012")),
        )
    }
}

/// A text that a shell reads as one word, whatever is in it.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Writes a file with this mode; one that is there is replaced.
pub fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            name: "vm-1".to_owned(),
            namespace: "shop".to_owned(),
            group: "vm".to_owned(),
            service_account: "vm".to_owned(),
            ip: [192, 0, 2, 7].into(),
            labels: [("app", "it's"), ("version", "v1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ports: vec!["8080".to_owned()],
            network: Some("north".to_owned()),
            cluster_id: "Kubernetes".to_owned(),
            control_plane: "istiod.istio-system.svc".to_owned(),
            control_plane_ip: Some([198, 51, 100, 1].into()),
            registers: true,
            probe: Some(json!({"httpGet": {"port": 8080}})),
        }
    }

    #[test]
    fn files_say_what_the_group_says() {
        let files: BTreeMap<&str, String> = machine().files().into_iter().collect();
        let check = |file: &str, parts: &[&str]| {
            let text = files.get(file).map(String::as_str).unwrap_or_default();
            parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in {file}:\n{text}"));
        };
        check("hosts", &["198.51.100.1 istiod.istio-system.svc\n"]);
        check("mesh.yaml", &["discoveryAddress: istiod.istio-system.svc:15012", "port: 8080"]);
        check(
            "cluster.env",
            &[
                "CANONICAL_SERVICE='it'\\''s'\n",
                "CANONICAL_REVISION=v1\n",
                "ISTIO_INBOUND_PORTS=8080\n",
                "ISTIO_META_AUTO_REGISTER_GROUP=vm\n",
                "ISTIO_META_NETWORK=north\n",
                "POD_NAMESPACE=shop\n",
            ],
        );
        check(
            SCRIPT,
            &[
                "--id vm-1.shop",
                "--ip 192.0.2.7",
                "--proxy-config '{\"readinessProbe\":{\"httpGet\":{\"port\":8080}}}'",
            ],
        );
        let unregistered = Machine { registers: false, probe: None, ..machine() };
        let files: BTreeMap<&str, String> = unregistered.files().into_iter().collect();
        assert!(files.values().all(|text| !text.contains("AUTO_REGISTER") && !text.contains("readinessProbe")));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let check = |text: &str, expected: &str| assert_eq!(quoted(text), expected);
        check("plain-1.2", "plain-1.2");
        check("", "''");
        check("a b", "'a b'");
        check("$(id)", "'$(id)'");
        check("it's", "'it'\\''s'");
    }
}
