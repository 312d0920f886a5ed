//! The mesh of a scenario: YAML files, one per service, or the same objects in an API server.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::LabError;
use crate::writer::Writer;

/// Namespace of all services.
pub const NAMESPACE: &str = "lab";
/// Name and label of the gateway.
pub const GATEWAY: &str = "edge";
/// The port on which clients call services.
pub const SERVICE_PORT: u16 = 80;
/// The file of the gateway. A user's own directory is unlikely to contain this name.
const GATEWAY_FILE: &str = "lab-gateway.yaml";
/// The prefix of each service's file and host name. The service's number follows.
const PREFIX: &str = "svc-";
/// The number of digits of that number. It is fixed, so no name is a prefix of another.
const DIGITS: usize = 6;
/// The value of `x-tier` in all services' routes at the start.
const FIRST_TIER: &str = "gold";

/// The kinds of objects that define a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceKind {
    /// A `ServiceEntry` with static endpoints.
    ServiceEntry,
    /// A `Service` and an `EndpointSlice`.
    Service,
}

/// The address of an endpoint.
pub type Address = Ipv4Addr;

/// Where the mesh's objects are.
#[derive(Debug)]
pub enum Destination {
    /// Files in a directory.
    Directory(PathBuf),
    /// Objects of an API server.
    Cluster(Writer),
}

/// Writes services to where the control plane reads them.
#[derive(Debug)]
pub struct Mesh {
    destination: Destination,
    kind: ServiceKind,
    /// The port of the endpoints.
    endpoint_port: u16,
}

impl Mesh {
    /// Writes the gateway, and removes the services that an earlier run left in the directory.
    pub fn create(
        destination: Destination,
        kind: ServiceKind,
        gateway_port: u16,
        endpoint_port: u16,
    ) -> Result<Self, LabError> {
        if let Destination::Directory(directory) = &destination {
            fs::create_dir_all(directory).map_err(LabError::io(format!("creating {}", directory.display())))?;
            let entries = fs::read_dir(directory).map_err(LabError::io(format!("reading {}", directory.display())))?;
            for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_file_of_a_service))
            {
                let path = entry.path();
                fs::remove_file(&path).map_err(LabError::io(format!("removing {}", path.display())))?;
            }
        }
        let mesh = Self { destination, kind, endpoint_port };
        mesh.replace(GATEWAY_FILE, &gateway(gateway_port))?;
        Ok(mesh)
    }

    /// Writes that have not reached the API server; none into files.
    pub fn unwritten(&self) -> usize {
        match &self.destination {
            Destination::Directory(_) => 0,
            Destination::Cluster(writer) => writer.open(),
        }
    }

    /// Returns an error if a write has failed since.
    pub fn check(&self) -> Result<(), LabError> {
        match &self.destination {
            Destination::Directory(_) => Ok(()),
            Destination::Cluster(writer) => writer.check(),
        }
    }

    /// Sets the port of the endpoints of services that are written later.
    pub fn set_endpoint_port(&mut self, port: u16) {
        self.endpoint_port = port;
    }

    /// The host of a service, as clients call it.
    pub fn host(&self, service: usize) -> String {
        let name = name(service);
        match self.kind {
            ServiceKind::ServiceEntry => format!("{name}.{NAMESPACE}.example"),
            ServiceKind::Service => format!("{name}.{NAMESPACE}.svc.cluster.local"),
        }
    }

    /// Whether a resource of this name belongs to one of the mesh's services.
    pub fn is_of_a_service(resource: &str) -> bool {
        resource.contains(PREFIX)
    }

    /// Writes a service with these endpoints atomically, and returns the time of the change.
    pub fn write(&self, service: usize, endpoints: &[Address]) -> Result<Instant, LabError> {
        self.write_routes(service, endpoints, FIRST_TIER)
    }

    /// Writes the service with a route; its first route is for requests whose header `x-tier` has this value.
    pub fn write_routes(&self, service: usize, endpoints: &[Address], tier: &str) -> Result<Instant, LabError> {
        let text = self.service(service, endpoints, tier);
        self.replace(&file(service), &text)
    }

    /// Gives the service another label, which no proxy can see, and returns the time of the change.
    pub fn relabel(&self, service: usize, endpoints: &[Address], value: usize) -> Result<Instant, LabError> {
        let labelled = format!("metadata: {{labels: {{lab/revision: \"{value}\"}}, name:");
        let text = self.service(service, endpoints, FIRST_TIER).replacen("metadata: {name:", &labelled, 1);
        self.replace(&file(service), &text)
    }

    /// Removes a service, and returns the time of the change.
    pub fn remove(&self, service: usize) -> Result<Instant, LabError> {
        let at = Instant::now();
        match &self.destination {
            Destination::Directory(directory) => {
                let path = directory.join(file(service));
                fs::remove_file(&path).map_err(LabError::io(format!("removing {}", path.display())))?;
            }
            Destination::Cluster(writer) => writer.delete(objects(&self.service(service, &[], FIRST_TIER))?),
        }
        Ok(at)
    }

    /// Replaces a file as editors and synchronizing sidecars do: writes a temporary file, then renames it. The objects of an API
    /// server are stored all at once, and the change begins when their requests are sent.
    fn replace(&self, name: &str, text: &str) -> Result<Instant, LabError> {
        match &self.destination {
            Destination::Directory(directory) => {
                let path = directory.join(name);
                let new = directory.join(format!(".{name}.new"));
                fs::write(&new, text).map_err(LabError::io(format!("writing {}", new.display())))?;
                let at = Instant::now();
                fs::rename(&new, &path).map_err(LabError::io(format!("writing {}", path.display())))?;
                Ok(at)
            }
            Destination::Cluster(writer) => {
                let objects = objects(text)?;
                let at = Instant::now();
                writer.store(objects);
                Ok(at)
            }
        }
    }

    fn service(&self, service: usize, endpoints: &[Address], tier: &str) -> String {
        let name = name(service);
        let host = self.host(service);
        let port = self.endpoint_port;
        let mut text = match self.kind {
            ServiceKind::ServiceEntry => format!(
                "apiVersion: networking.istio.io/v1\n\
                 kind: ServiceEntry\n\
                 metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
                 spec:\n\
                 \x20 hosts: [{host}]\n\
                 \x20 location: MESH_INTERNAL\n\
                 \x20 resolution: STATIC\n\
                 \x20 ports: [{{number: {SERVICE_PORT}, name: http, protocol: HTTP, targetPort: {port}}}]\n\
                 \x20 endpoints:\n"
            ),
            ServiceKind::Service => format!(
                "apiVersion: v1\n\
                 kind: Service\n\
                 metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
                 spec:\n\
                 {}\
                 \x20 ports: [{{name: http, port: {SERVICE_PORT}, targetPort: {port}}}]\n\
                 ---\n\
                 apiVersion: discovery.k8s.io/v1\n\
                 kind: EndpointSlice\n\
                 metadata: {{name: {name}-1, namespace: {NAMESPACE}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
                 addressType: IPv4\n\
                 ports: [{{name: http, port: {port}}}]\n\
                 endpoints:\n",
                self.address(service)
            ),
        };
        for address in endpoints {
            text += &match self.kind {
                ServiceKind::ServiceEntry => format!("  - address: {address}\n"),
                ServiceKind::Service => format!("- addresses: [{address}]\n  conditions: {{ready: true}}\n"),
            };
        }
        text += &traffic(&name, &host, tier);
        text
    }

    /// The line with a Service's address, where no API server allots one.
    fn address(&self, service: usize) -> String {
        match self.destination {
            Destination::Directory(_) => format!("\x20 clusterIP: {}\n", cluster_ip(service)),
            Destination::Cluster(_) => String::new(),
        }
    }
}

/// The objects of a text in YAML.
///
/// # Errors
/// It is none.
pub fn objects(text: &str) -> Result<Vec<Value>, LabError> {
    let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
    let read = |document: &str| {
        serde_saphyr::from_str(document).map_err(|error| LabError::Usage(format!("reading YAML: {error}")))
    };
    let objects: Vec<Value> = documents.map(read).collect::<Result<_, _>>()?;
    Ok(objects.into_iter().filter(Value::is_object).collect())
}

/// The VirtualService and DestinationRule of a service.
fn traffic(name: &str, host: &str, tier: &str) -> String {
    format!(
        "---\n\
         apiVersion: networking.istio.io/v1\n\
         kind: VirtualService\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n\
         \x20 hosts: [{host}]\n\
         \x20 gateways: [mesh, {GATEWAY}]\n\
         \x20 http:\n\
         \x20 - match: [{{headers: {{x-tier: {{exact: {tier}}}}}}}]\n\
         \x20   route: [{{destination: {{host: {host}, port: {{number: {SERVICE_PORT}}}}}}}]\n\
         \x20   timeout: 2s\n\
         \x20 - route: [{{destination: {{host: {host}, port: {{number: {SERVICE_PORT}}}}}}}]\n\
         \x20   timeout: 10s\n\
         \x20   retries: {{attempts: 2, perTryTimeout: 3s, retryOn: \"connect-failure,refused-stream,503\"}}\n\
         ---\n\
         apiVersion: networking.istio.io/v1\n\
         kind: DestinationRule\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n\
         \x20 host: {host}\n\
         \x20 trafficPolicy:\n\
         \x20   loadBalancer: {{simple: LEAST_REQUEST}}\n\
         \x20   connectionPool:\n\
         \x20     tcp: {{maxConnections: 1000, connectTimeout: 1s}}\n\
         \x20     http: {{http1MaxPendingRequests: 1000, maxRequestsPerConnection: 100}}\n\
         \x20   outlierDetection: {{consecutive5xxErrors: 5, interval: 10s, baseEjectionTime: 30s}}\n"
    )
}

fn gateway(port: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\n\
         kind: Gateway\n\
         metadata: {{name: {GATEWAY}, namespace: {NAMESPACE}}}\n\
         spec:\n\
         \x20 selector: {{istio: {GATEWAY}}}\n\
         \x20 servers:\n\
         \x20 - port: {{number: {port}, name: http, protocol: HTTP}}\n\
         \x20   hosts: [\"*\"]\n"
    )
}

/// A value of `x-tier` that no service has at the start. All are of one length, so none contains another.
pub fn tier(number: usize) -> String {
    format!("tier-{number:0DIGITS$}")
}

fn name(service: usize) -> String {
    format!("{PREFIX}{service:0DIGITS$}")
}

fn file(service: usize) -> String {
    format!("{}.yaml", name(service))
}

/// Whether a file has a name that [`file`] generates.
fn is_file_of_a_service(name: &str) -> bool {
    let number = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(".yaml"));
    number.is_some_and(|digits| digits.len() >= DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The two initial endpoints of a service. Nothing connects to them.
pub fn first_endpoints(service: usize) -> [Address; 2] {
    let number = u32::try_from(service).unwrap_or(u32::MAX) % (1 << 20);
    // 10.0.0.0/12 and 10.16.0.0/12.
    [0x0a00_0000, 0x0a10_0000].map(|base| Address::from(base + number))
}

/// An address that is no initial endpoint. It differs for each `index` below 4 million.
pub fn further_endpoint(index: usize) -> Address {
    // 10.64.0.0/10
    Address::from(0x0a40_0000 + u32::try_from(index).unwrap_or(u32::MAX) % (1 << 22))
}

fn cluster_ip(service: usize) -> Address {
    // 10.32.0.0/12
    Address::from(0x0a20_0000 + u32::try_from(service).unwrap_or(u32::MAX) % (1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_appear_whole_and_go() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = || Destination::Directory(folder.path().to_owned());
        let mesh = Mesh::create(directory(), ServiceKind::ServiceEntry, 8080, 9000).expect("a mesh");
        mesh.write(7, &first_endpoints(7)).expect("a service");
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("a directory").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["lab-gateway.yaml", "svc-000007.yaml"]);
        let text = fs::read_to_string(folder.path().join("svc-000007.yaml")).expect("a file");
        for part in
            ["hosts: [svc-000007.lab.example]", "- address: 10.0.0.7\n", "- address: 10.16.0.7\n", "targetPort: 9000"]
        {
            assert!(text.contains(part), "{part} not in\n{text}");
        }
        mesh.relabel(7, &first_endpoints(7), 3).expect("a label");
        let text = fs::read_to_string(folder.path().join("svc-000007.yaml")).expect("a file");
        let objects = objects(&text).expect("YAML");
        let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap_or_default()).collect();
        assert_eq!(kinds, ["ServiceEntry", "VirtualService", "DestinationRule"]);
        assert_eq!(objects[0]["metadata"]["labels"]["lab/revision"], "3");
        mesh.remove(7).expect("removed");
        assert_eq!(names(), ["lab-gateway.yaml"]);
        assert!(mesh.remove(7).is_err());

        // Files of others in the directory are kept.
        for name in ["svc-000001.yaml", "svc-1.yaml", "svc-old.yaml", "gateway.yaml", "mine.yaml"] {
            fs::write(folder.path().join(name), "mine").expect("a file");
        }
        Mesh::create(directory(), ServiceKind::ServiceEntry, 8080, 9000).expect("a mesh");
        assert_eq!(names(), ["gateway.yaml", "lab-gateway.yaml", "mine.yaml", "svc-1.yaml", "svc-old.yaml"]);
        assert!(fs::read_to_string(folder.path().join("gateway.yaml")).is_ok_and(|text| text == "mine"));
    }

    #[test]
    fn no_address_is_used_twice() {
        let mut all: Vec<Address> =
            (0..1000).flat_map(first_endpoints).chain((0..1000).map(further_endpoint)).collect();
        all.extend((0..1000).map(cluster_ip));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
