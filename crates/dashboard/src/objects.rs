//! The objects in force, with the files and lines that they come from, as the control plane knows them.

use evenkeel_admin::dashboard::{ConfigObject, Objects};
use serde::Deserialize;

use crate::source::Source;
use crate::status::read;

/// Maximum number of objects shown.
const MAX_OBJECTS: usize = 5000;
/// The control plane's page with routing and policy objects.
const ROUTING: &str = "/debug/configz";
/// Its page with Services.
const SERVICES: &str = "/debug/registryz";

/// A service of the control plane's page.
#[derive(Debug, Deserialize)]
struct Service {
    host: String,
    namespace: String,
    #[serde(default)]
    external: bool,
    #[serde(default)]
    origin: String,
}

/// The page.
pub(crate) async fn objects(source: &dyn Source) -> Objects {
    match in_force(source).await {
        Ok(mut objects) => {
            let left_out = objects.len().saturating_sub(MAX_OBJECTS);
            objects.truncate(MAX_OBJECTS);
            Objects { objects, left_out, unreachable: None }
        }
        Err(reason) => Objects { unreachable: Some(reason), ..Objects::default() },
    }
}

/// All objects, sorted.
pub(crate) async fn in_force(source: &dyn Source) -> Result<Vec<ConfigObject>, String> {
    let mut objects: Vec<ConfigObject> = read(source, ROUTING).await?;
    let services: Vec<Service> = read(source, SERVICES).await?;
    // The mesh's own settings have no position.
    objects.retain(|object| !object.origin.is_empty());
    objects.extend(services.into_iter().map(object));
    objects.sort();
    Ok(objects)
}

fn object(service: Service) -> ConfigObject {
    let Service { host, namespace, external, origin } = service;
    let kind = if external { "ServiceEntry" } else { "Service" };
    ConfigObject { namespace, kind: kind.to_owned(), name: host, origin }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{FetchedPage, ReplicaKey, ReplicaStatus};

    struct ControlPlane;

    impl Source for ControlPlane {
        fn replicas(&self) -> Vec<ReplicaStatus> {
            Vec::new()
        }

        fn proxy_page<'a>(&'a self, _: &'a ReplicaKey, _: &'a str) -> FetchedPage<'a> {
            Box::pin(async { Err("there is none".to_owned()) })
        }

        fn control_page<'a>(&'a self, path: &'a str) -> FetchedPage<'a> {
            let page = match path {
                ROUTING => {
                    r#"[{"kind": "VirtualService", "namespace": "shop", "name": "web", "origin": "web.yaml:3:1"},
                        {"kind": "MeshConfig", "namespace": "istio-system", "name": "istio", "outbound_traffic_policy": "ALLOW_ANY"}]"#
                }
                SERVICES => {
                    r#"[{"host": "web.shop.svc.cluster.local", "namespace": "shop", "external": false, "origin": "a.yaml:1:1"},
                        {"host": "bank.example", "namespace": "shop", "external": true, "origin": "a.yaml:9:1"}]"#
                }
                other => return Box::pin(async move { Err(format!("no {other}")) }),
            };
            Box::pin(async move { Ok(page.into()) })
        }
    }

    #[tokio::test]
    async fn objects_have_files_and_lines() {
        let found = objects(&ControlPlane).await;
        let lines: Vec<String> =
            found.objects.iter().map(|object| format!("{} {} {}", object.kind, object.name, object.origin)).collect();
        let expected = [
            "Service web.shop.svc.cluster.local a.yaml:1:1",
            "ServiceEntry bank.example a.yaml:9:1",
            "VirtualService web web.yaml:3:1",
        ];
        assert_eq!(lines, expected);
    }
}
