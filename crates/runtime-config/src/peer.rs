//! The workload at one end of a connection, as Istio's metrics name it.

use std::collections::BTreeMap;

/// A workload; unknown parts are empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Peer {
    /// Its name: that of a Deployment.
    pub workload: Box<str>,
    /// Its namespace.
    pub namespace: Box<str>,
    /// The service that its labels name.
    pub canonical_service: Box<str>,
    /// The revision that its labels name.
    pub canonical_revision: Box<str>,
    /// Its cluster.
    pub cluster: Box<str>,
    /// Its label `app`.
    pub app: Box<str>,
    /// Its label `version`.
    pub version: Box<str>,
}

/// Labels that name the service of a workload, the first that is given counts.
const SERVICE_LABELS: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
/// Labels that name its revision.
const REVISION_LABELS: [&str; 3] = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];

impl Peer {
    /// Returns the workload of these labels.
    pub fn new(workload: &str, namespace: &str, cluster: &str, labels: &BTreeMap<String, String>) -> Self {
        let label = |names: &[&str]| names.iter().find_map(|name| labels.get(*name)).map_or("", String::as_str);
        let canonical_service = match label(&SERVICE_LABELS) {
            "" => workload,
            label => label,
        };
        Self {
            workload: workload.into(),
            namespace: namespace.into(),
            canonical_service: canonical_service.into(),
            canonical_revision: label(&REVISION_LABELS).into(),
            cluster: cluster.into(),
            app: label(&["app"]).into(),
            version: label(&["version"]).into(),
        }
    }

    /// Reads `WORKLOAD;NAMESPACE;SERVICE;REVISION;CLUSTER[;APP;VERSION]`, as endpoints' metadata has it (`istio`: `workload`). Istio
    /// writes the first five.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(Box::from);
        Some(Self {
            workload: parts.next()?,
            namespace: parts.next()?,
            canonical_service: parts.next()?,
            canonical_revision: parts.next()?,
            cluster: parts.next()?,
            app: parts.next().unwrap_or_default(),
            version: parts.next().unwrap_or_default(),
        })
    }
}

/// The service behind a cluster (`istio`: `services` in its metadata).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DestinationService {
    /// Its host.
    pub host: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its namespace.
    pub namespace: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_read() {
        let check = |text: &str, expected: Option<[&str; 7]>| {
            let found = Peer::parse(text);
            let found = found.as_ref().map(|peer| {
                let Peer { workload, namespace, canonical_service, canonical_revision, cluster, app, version } = peer;
                [workload, namespace, canonical_service, canonical_revision, cluster, app, version].map(|part| &**part)
            });
            assert_eq!(found, expected, "{text}");
        };
        check("", None);
        check("a;b;c;d", None);
        check("a;b;c;d;e", Some(["a", "b", "c", "d", "e", "", ""]));
        check("a;;;;;f;g;h", Some(["a", "", "", "", "", "f", "g"]));
    }

    #[test]
    fn labels_name_the_service() {
        let check = |labels: &[(&str, &str)], service: &str, revision: &str| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let peer = Peer::new("web", "shop", "Kubernetes", &labels);
            assert_eq!((&*peer.canonical_service, &*peer.canonical_revision), (service, revision), "{labels:?}");
        };
        check(&[], "web", "");
        check(&[("app", "a"), ("version", "v1")], "a", "v1");
        check(&[("app", "a"), ("app.kubernetes.io/name", "b")], "b", "");
        check(&[("service.istio.io/canonical-name", "c"), ("app", "a")], "c", "");
    }
}
