//! The workload at one end of a connection, as Istio's metrics name it.

use std::collections::BTreeMap;

use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{Struct, Value};
use prost::Message;

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

    /// All its parts.
    pub fn parts(&self) -> [&str; 7] {
        let Self { workload, namespace, canonical_service, canonical_revision, cluster, app, version } = self;
        [workload, namespace, canonical_service, canonical_revision, cluster, app, version]
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

/// What a proxy tells others of its workload: the values of Istio's headers `x-envoy-peer-metadata-id` and `x-envoy-peer-metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHeaders {
    /// The proxy's id.
    pub id: Box<str>,
    /// A `google.protobuf.Struct`, which the header has in Base64.
    pub metadata: Vec<u8>,
}

impl Peer {
    /// Returns what a proxy with this id tells others of its workload.
    pub fn headers(&self, id: &str) -> PeerHeaders {
        let labels = [
            ("app", &self.app),
            ("version", &self.version),
            ("service.istio.io/canonical-name", &self.canonical_service),
            ("service.istio.io/canonical-revision", &self.canonical_revision),
        ];
        // `KIND~ADDRESS~POD.NAMESPACE~DOMAIN`
        let pod = id.split('~').nth(2).and_then(|pod| pod.strip_suffix(&*self.namespace)?.strip_suffix('.'));
        let parts = [
            ("NAME", pod.unwrap_or_default()),
            ("NAMESPACE", &self.namespace),
            ("CLUSTER_ID", &self.cluster),
            ("WORKLOAD_NAME", &self.workload),
        ];
        let mut all = texts(parts);
        let labels = Kind::StructValue(texts(labels.map(|(name, value)| (name, &**value))));
        all.fields.insert("LABELS".to_owned(), Value { kind: Some(labels) });
        PeerHeaders { id: id.into(), metadata: all.encode_to_vec() }
    }

    /// Reads what another proxy tells of its workload; `None` if that is no such message.
    pub fn of_metadata(bytes: &[u8]) -> Option<Self> {
        let all = Struct::decode(bytes).ok()?;
        let labels = match all.fields.get("LABELS").and_then(|value| value.kind.as_ref()) {
            Some(Kind::StructValue(labels)) => {
                labels.fields.keys().map(|name| (name.clone(), text(labels, name).to_owned())).collect()
            }
            _ => BTreeMap::new(),
        };
        let part = |name: &str| text(&all, name);
        Some(Self::new(part("WORKLOAD_NAME"), part("NAMESPACE"), part("CLUSTER_ID"), &labels))
    }
}

/// A struct of texts; those that are empty are left out.
fn texts<const N: usize>(fields: [(&str, &str); N]) -> Struct {
    let known = fields.into_iter().filter(|(_, text)| !text.is_empty());
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    Struct { fields: known.map(|(name, text)| (name.to_owned(), value(text))).collect() }
}

fn text<'s>(all: &'s Struct, name: &str) -> &'s str {
    match all.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(text)) => text,
        _ => "",
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
    fn what_one_proxy_tells_another_one_reads() {
        let check = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let peer = Peer::new("web-v1", "shop", "Kubernetes", &labels);
            let headers = peer.headers("sidecar~10.0.0.1~web-v1-0.shop~shop.svc.cluster.local");
            assert_eq!(Peer::of_metadata(&headers.metadata), Some(peer));
            let all = Struct::decode(&*headers.metadata).unwrap();
            assert_eq!(text(&all, "NAME"), "web-v1-0");
        };
        check(&[]);
        check(&[("app", "web"), ("version", "v1")]);
        check(&[("service.istio.io/canonical-name", "shop"), ("app", "web")]);
        assert_eq!(Peer::of_metadata(b"lies"), None);
        assert_eq!(Peer::of_metadata(b"").map(|peer| peer.workload.len()), Some(0));
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
