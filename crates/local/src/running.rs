//! What a running `up` tells the other commands about itself: the options of its control plane, which no file has, and the
//! ports of this machine that lead to its gateways.

use std::fs;
use std::io;
use std::path::Path;

use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_control::jwks::settings::JwksSettings;
use evenkeel_model::{JwksFetching, MeshConfig, PublishedPort};
use serde::{Deserialize, Serialize};

use crate::ports::HostPort;

/// Options that decide about calls and are in no file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningOptions {
    trust_domain: String,
    leave_out_refused: bool,
    jwks_fetching: JwksFetching,
}

impl RunningOptions {
    /// The options of a run that starts now, with this process's environment.
    pub fn of(trust_domain: &str, leave_out_refused: bool) -> Self {
        // With a setting that cannot be read the control plane does not start.
        let settings = JwksSettings::from_env(|name| std::env::var(name).ok()).unwrap_or_default();
        Self { trust_domain: trust_domain.to_owned(), leave_out_refused, jwks_fetching: settings.by }
    }

    /// The settings of the mesh, before those in its files.
    pub fn mesh(&self) -> MeshConfig {
        MeshConfig {
            trust_domain: self.trust_domain.as_str().into(),
            leave_out_refused: self.leave_out_refused,
            on_one_machine: true,
            jwks_fetching: self.jwks_fetching,
            ..MeshConfig::default()
        }
    }
}

/// A port of this machine as other commands know it.
pub(crate) fn published(port: &HostPort) -> PublishedPort {
    let (namespace, workload) = port.gateway.owner.clone();
    PublishedPort { namespace, workload, number: port.gateway.number, address: port.address }
}

/// Writes the ports that are open into a file.
pub(crate) fn write_ports(file: &Path, ports: &[PublishedPort]) -> io::Result<()> {
    write_atomically(file, serde_json::to_string(ports)?.as_bytes(), Readers::All)
}

/// Reads them; none if there is no file, as while the mesh starts.
pub(crate) fn read_ports(file: &Path) -> Vec<PublishedPort> {
    let text = fs::read(file).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_settings_and_ports_are_read_as_they_were_written() -> Result<(), Box<dyn std::error::Error>> {
        let options = RunningOptions {
            trust_domain: "example.test".to_owned(),
            leave_out_refused: true,
            jwks_fetching: JwksFetching::Proxies,
        };
        let mesh = options.mesh();
        assert_eq!((&*mesh.trust_domain, mesh.leave_out_refused, mesh.on_one_machine), ("example.test", true, true));
        assert_eq!(mesh.jwks_fetching, JwksFetching::Proxies);

        let folder = tempfile::tempdir()?;
        let file = folder.path().join("ports.json");
        assert_eq!(read_ports(&file), []);
        let port = PublishedPort {
            namespace: "istio-system".to_owned(),
            workload: "istio-ingressgateway".to_owned(),
            number: 80,
            address: "127.0.0.1:9080".parse()?,
        };
        write_ports(&file, std::slice::from_ref(&port))?;
        assert_eq!(read_ports(&file), [port]);
        Ok(())
    }
}
