//! The view of a proxy: what the control plane knows of it from its xDS node.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::istio::{InterceptionMode, OF_AGENT, ProxyConfig};
use evenkeel_model::{Labels, Workload};

use crate::pb::core::node::UserAgentVersionType;
use crate::pb::core::{Locality, Node};
use crate::pb::google::protobuf::{Struct, Value, value::Kind};

/// Maximum length of a node id, in bytes.
const MAX_NODE_ID_BYTES: usize = 1024;
/// Fields of `tracing` that only the agent uses.
const OF_AGENT_IN_TRACING: [&str; 2] = ["zipkin", "tlsSettings"];

/// The properties of a proxy that its configuration depends on. Equal views get equal resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyView {
    /// Sidecar or gateway.
    pub kind: ProxyKind,
    /// Its addresses, the node id's first (metadata `INSTANCE_IPS`).
    pub addresses: Vec<IpAddr>,
    /// The Pod's name.
    pub pod: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its service account (metadata `SERVICE_ACCOUNT`); empty if the proxy did not send it.
    pub service_account: Arc<str>,
    /// Its labels (metadata `LABELS`), which Gateways and policies select by.
    pub labels: Labels,
    /// Its locality as it reports it, `region/zone/subzone`; empty if it did not.
    pub locality: Arc<str>,
    /// The kind of client, and how much of the mesh it wants to hold.
    pub client_kind: ClientKind,
    /// Whether a load balancer in front of it sends the PROXY protocol (metadata `PROXY_CONFIG`:
    /// `gatewayTopology.proxyProtocol`).
    pub takes_proxy_protocol: bool,
    /// The proxy's own ProxyConfig (metadata `PROXY_CONFIG`) as JSON; empty if it did not send it. As in Istio, it
    /// stands for everything that the mesh, ProxyConfigs and annotations say.
    pub proxy_config: Arc<str>,
    /// Whether its bootstrap has a collector of spans (metadata `PROXY_CONFIG`: `tracing`, `zipkinAddress`).
    pub has_collector: bool,
    /// Whether its bootstrap has a service for access logs (metadata `PROXY_CONFIG`: `envoyAccessLogService`).
    pub has_log_service: bool,
    /// Whether its certificate has proved that it belongs to its namespace. A node cannot say so itself.
    pub authenticated: bool,
    /// Whether its agent answers its workload's DNS queries (metadata `DNS_CAPTURE`), so that hosts without an address
    /// can be called at one that is allotted to them.
    pub captures_dns: bool,
    /// How its workload's connections are captured (metadata `INTERCEPTION_MODE`): as its rules were when it started,
    /// whatever its settings say now. `None`: it did not say.
    pub interception: Option<InterceptionMode>,
    /// Whether it is an Envoy that has X25519MLKEM768, and does not offer it unless it is told to. Older ones refuse
    /// resources that name a curve which they do not know.
    pub takes_hybrid_curve: bool,
    /// The cluster that it is in (metadata `CLUSTER_ID`); empty if it did not say.
    pub cluster: Arc<str>,
    /// The network that it is in (metadata `NETWORK`), where its workload does not say; empty if it did not.
    pub network: Arc<str>,
    /// The labels that proxies like it have in common (metadata `SELF_DISCOVERY_GROUPING_LABEL_NAMES`), if its bootstrap has
    /// a local cluster (`ENABLE_SELF_DISCOVERY`).
    pub peer_labels: Option<Vec<Arc<str>>>,
}

fn locality(locality: &Locality) -> Arc<str> {
    let all = [&*locality.region, &*locality.zone, &*locality.sub_zone].join("/");
    all.trim_end_matches('/').into()
}

/// Pod names are unique, so hashing the rest for each proxy with each change is not worth it.
impl Hash for ProxyView {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.pod, &self.namespace, self.client_kind).hash(state);
    }
}

/// The kind of client, from the metadata `EVENKEEL: {"SCOPE": …}` and `GENERATOR`. It decides the form of resources,
/// not their meaning: an Evenkeel proxy gets each virtual host and each DNS name as a separate resource, a gRPC program
/// a listener for each name it may dial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// Envoy, or any other xDS client: whole route tables, and one table of names.
    #[default]
    Envoy,
    /// An Evenkeel proxy that holds all it may use (`full`).
    EvenkeelFull,
    /// An Evenkeel proxy that requests resources when its workload first uses them (`learned`).
    EvenkeelLearned,
    /// A gRPC program without a proxy (metadata `GENERATOR: grpc`, as Istio's agent writes it).
    Grpc,
}

impl ClientKind {
    /// Whether virtual hosts and names are separate resources.
    pub fn is_evenkeel(self) -> bool {
        matches!(self, Self::EvenkeelFull | Self::EvenkeelLearned)
    }

    /// A gateway cannot know what will be requested, and clients must not be able to make it request resources, so it
    /// gets everything.
    fn of(generator: Option<&str>, scope: Option<&str>, kind: ProxyKind) -> Self {
        match (scope, kind) {
            // A gRPC program is not a sidecar, but Istio's agent writes `sidecar` for it, too.
            (_, ProxyKind::Sidecar) if generator == Some("grpc") => Self::Grpc,
            (None, _) => Self::Envoy,
            (Some("learned"), ProxyKind::Sidecar) => Self::EvenkeelLearned,
            (Some(_), _) => Self::EvenkeelFull,
        }
    }
}

/// The role of a proxy, the first part of its node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    /// The sidecar of one workload.
    Sidecar,
    /// Serves Gateways.
    Router,
}

/// Why a node cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The id is not of Istio's form.
    #[error("node id `{0}` is not `sidecar~IP~POD.NAMESPACE~DOMAIN` or `router~IP~POD.NAMESPACE~DOMAIN`")]
    Id(String),
    /// The id is longer than any Pod's.
    #[error("the node id has {0} bytes, at most {MAX_NODE_ID_BYTES} are accepted")]
    TooLong(usize),
    /// The address is not valid.
    #[error("node id `{id}`: `{address}` is not an IP address")]
    Address {
        /// The whole id.
        id: String,
        /// Its second part.
        address: String,
    },
    /// Metadata and id disagree.
    #[error("node id `{id}` is of namespace `{in_id}`, but metadata NAMESPACE says `{in_metadata}`")]
    Namespace {
        /// The whole id.
        id: String,
        /// Namespace by the id.
        in_id: String,
        /// Namespace by the metadata.
        in_metadata: String,
    },
}

impl ProxyView {
    /// Whether it wants whole route tables and name tables, like Envoy; otherwise each virtual host and name is a
    /// separate resource.
    pub fn wants_whole_tables(&self) -> bool {
        !self.client_kind.is_evenkeel()
    }

    /// The view of a workload's proxy that holds all it may use: that of the node which its agent would send.
    pub fn of_workload(kind: ProxyKind, workload: &Workload) -> Result<Self, NodeError> {
        let kind = match kind {
            ProxyKind::Sidecar => "sidecar",
            ProxyKind::Router => "router",
        };
        let Workload { pod, namespace, .. } = workload;
        let addresses: Vec<String> = workload.addresses.iter().map(ToString::to_string).collect();
        let first = addresses.first().map_or("", String::as_str);
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let labels = workload.labels.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let fields = [
            ("NAMESPACE", text(namespace)),
            ("SERVICE_ACCOUNT", text(&workload.service_account)),
            ("INSTANCE_IPS", text(&addresses.join(","))),
            ("DNS_CAPTURE", text("true")),
            ("LABELS", Value { kind: Some(Kind::StructValue(Struct { fields: labels })) }),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let id = format!("{kind}~{first}~{pod}.{namespace}~{namespace}.svc.cluster.local");
        let view = Self::from_node(&Node { id, metadata: Some(Struct { fields }), ..Default::default() })?;
        Ok(Self { authenticated: true, ..view })
    }

    /// Reads an xDS node: Istio's id `TYPE~IP~POD.NAMESPACE~DOMAIN` and metadata.
    pub fn from_node(node: &Node) -> Result<Self, NodeError> {
        if node.id.len() > MAX_NODE_ID_BYTES {
            return Err(NodeError::TooLong(node.id.len()));
        }
        let malformed = || NodeError::Id(node.id.clone());
        let parts: Vec<&str> = node.id.split('~').collect();
        let [kind, address, name, _domain] = parts.as_slice() else { return Err(malformed()) };
        let kind = match *kind {
            "sidecar" => ProxyKind::Sidecar,
            "router" => ProxyKind::Router,
            _ => return Err(malformed()),
        };
        let (pod, namespace) =
            name.rsplit_once('.').filter(|(p, n)| !p.is_empty() && !n.is_empty()).ok_or_else(malformed)?;
        let main =
            address.parse().map_err(|_| NodeError::Address { id: node.id.clone(), address: (*address).to_owned() })?;

        let metadata = Metadata(node.metadata.as_ref());
        if let Some(stated) = metadata.text("NAMESPACE").filter(|&n| n != namespace) {
            return Err(NodeError::Namespace {
                id: node.id.clone(),
                in_id: namespace.to_owned(),
                in_metadata: stated.to_owned(),
            });
        }
        let mut addresses: Vec<IpAddr> = vec![main];
        let others = metadata.text("INSTANCE_IPS").unwrap_or_default();
        addresses.extend(others.split(',').filter_map(|ip| ip.trim().parse::<IpAddr>().ok()).filter(|ip| *ip != main));
        let bootstrap = metadata.object("PROXY_CONFIG").map(|config| ProxyConfig::of_metadata(&of_struct(config)));
        let bootstrap = bootstrap.unwrap_or_default();
        let client_kind = ClientKind::of(metadata.text("GENERATOR"), metadata.text_in("EVENKEEL", "SCOPE"), kind);
        Ok(Self {
            kind,
            addresses,
            pod: pod.into(),
            namespace: namespace.into(),
            service_account: metadata.text("SERVICE_ACCOUNT").unwrap_or_default().into(),
            labels: metadata.texts("LABELS"),
            locality: node.locality.as_ref().map_or_else(|| "".into(), locality),
            client_kind,
            takes_proxy_protocol: kind == ProxyKind::Router && metadata.takes_proxy_protocol(),
            proxy_config: metadata.proxy_config(),
            has_collector: bootstrap.collector().is_some(),
            has_log_service: bootstrap.log_service().is_some(),
            authenticated: false,
            captures_dns: metadata.is_true("DNS_CAPTURE") && !metadata.is_false("DNS_AUTO_ALLOCATE"),
            interception: metadata.text("INTERCEPTION_MODE").map(InterceptionMode::of_node),
            takes_hybrid_curve: client_kind == ClientKind::Envoy && takes_hybrid_curve(node, &metadata),
            cluster: metadata.text("CLUSTER_ID").unwrap_or_default().into(),
            network: metadata.text("NETWORK").unwrap_or_default().into(),
            peer_labels: (kind == ProxyKind::Sidecar && metadata.is_true("ENABLE_SELF_DISCOVERY"))
                .then(|| metadata.peer_labels()),
        })
    }
}

/// The first Envoy of which Istio lets users name X25519MLKEM768 (`ecdhCurves`).
const FIRST_ENVOY_WITH_HYBRID_CURVE: (u32, u32) = (1, 34);
/// The Istio that has it.
const FIRST_ISTIO_WITH_HYBRID_CURVE: (u32, u32) = (1, 26);

/// Whether an Envoy has X25519MLKEM768: by the version that it reports of itself, or else by that of Istio. Builds for FIPS
/// have their own curves.
fn takes_hybrid_curve(node: &Node, metadata: &Metadata<'_>) -> bool {
    let Some(UserAgentVersionType::UserAgentBuildVersion(build)) = &node.user_agent_version_type else {
        let istio = metadata.text("ISTIO_VERSION").and_then(release);
        return istio.is_some_and(|istio| istio >= FIRST_ISTIO_WITH_HYBRID_CURVE);
    };
    let library = Metadata(build.metadata.as_ref()).text("ssl.version").unwrap_or_default();
    let version = build.version.as_ref().map(|version| (version.major_number, version.minor_number));
    !library.contains("FIPS") && version.is_some_and(|version| version >= FIRST_ENVOY_WITH_HYBRID_CURVE)
}

/// Major and minor number of `1.26.3` or `1.27-alpha.0`.
fn release(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest.get(..end)?.parse().ok()?))
}

/// A node's metadata.
struct Metadata<'a>(Option<&'a Struct>);

impl<'a> Metadata<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        match self.0?.fields.get(name)?.kind.as_ref()? {
            Kind::StringValue(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a flag is set; Istio's agent writes flags as texts.
    fn is_true(&self, name: &str) -> bool {
        match self.0.and_then(|all| all.fields.get(name)?.kind.as_ref()) {
            Some(Kind::BoolValue(value)) => *value,
            Some(Kind::StringValue(text)) => matches!(text.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"),
            _ => false,
        }
    }

    /// Whether a flag is given and not set.
    fn is_false(&self, name: &str) -> bool {
        self.0.is_some_and(|all| all.fields.contains_key(name)) && !self.is_true(name)
    }

    /// The labels that proxies of one local cluster have in common; Istio's default is that of a ReplicaSet's Pods.
    fn peer_labels(&self) -> Vec<Arc<str>> {
        let names = self.text("SELF_DISCOVERY_GROUPING_LABEL_NAMES").unwrap_or_default();
        let names: Vec<Arc<str>> = names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(Into::into).collect();
        if names.is_empty() { vec!["pod-template-hash".into()] } else { names }
    }

    /// A text inside an object.
    fn text_in(&self, name: &str, field: &str) -> Option<&'a str> {
        Metadata(self.object(name)).text(field)
    }

    /// Whether `PROXY_CONFIG` has `gatewayTopology.proxyProtocol`, an empty object.
    fn takes_proxy_protocol(&self) -> bool {
        let topology = Metadata(self.object("PROXY_CONFIG")).object("gatewayTopology");
        Metadata(topology).object("proxyProtocol").is_some()
    }

    /// The node's ProxyConfig as JSON, with its fields in order; empty if there is none. Some fields are
    /// for the agent: a ProxyConfig with nothing else says nothing about the proxy.
    fn proxy_config(&self) -> Arc<str> {
        let Some(object) = self.object("PROXY_CONFIG") else { return "".into() };
        let mut object = of_struct(object);
        let Some(fields) = object.as_object_mut() else { return "".into() };
        let given = fields.len();
        if let Some(tracing) = fields.get_mut("tracing").and_then(serde_json::Value::as_object_mut) {
            tracing.retain(|name, _| !OF_AGENT_IN_TRACING.contains(&name.as_str()));
        }
        let is_empty = |value: &serde_json::Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        fields.retain(|name, value| match name.as_str() {
            "tracing" => !is_empty(value),
            name => !OF_AGENT.contains(&name),
        });
        if given > 0 && fields.is_empty() { "".into() } else { object.to_string().into() }
    }

    fn object(&self, name: &str) -> Option<&'a Struct> {
        match self.0?.fields.get(name)?.kind.as_ref()? {
            Kind::StructValue(inner) => Some(inner),
            _ => None,
        }
    }

    fn texts(&self, name: &str) -> Labels {
        let Some(inner) = self.object(name) else { return BTreeMap::new() };
        let text = |(name, value): (&String, &Value)| match &value.kind {
            Some(Kind::StringValue(text)) => Some((name.clone(), text.clone())),
            _ => None,
        };
        inner.fields.iter().filter_map(text).collect()
    }
}

/// Protobuf's decoder limits the depth.
fn of_struct(object: &Struct) -> serde_json::Value {
    object.fields.iter().map(|(name, value)| (name.clone(), of_value(value))).collect()
}

fn of_value(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        // Integers are written without a fraction, as they are read.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 1e15 => (*number as i64).into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::StructValue(inner)) => of_struct(inner),
        Some(Kind::ListValue(list)) => list.values.iter().map(of_value).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::core::BuildVersion;
    use crate::pb::envoy_type::SemanticVersion;
    use crate::proto::one_field;

    fn node(id: &str, metadata: Option<Struct>) -> Node {
        Node { id: id.to_owned(), metadata, ..Default::default() }
    }

    #[test]
    fn reads_istio_node_ids() {
        let id = "sidecar~10.244.0.3~web-0.shop~shop.svc.cluster.local";
        let view = ProxyView::from_node(&node(id, Some(one_field("INSTANCE_IPS", "10.244.0.3,fd00::3")))).unwrap();
        assert_eq!(view.kind, ProxyKind::Sidecar);
        assert_eq!((&*view.pod, &*view.namespace), ("web-0", "shop"));
        assert_eq!(view.addresses, ["10.244.0.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
    }

    #[test]
    fn evenkeel_proxies_say_how_much_they_want() {
        let check = |id: &str, scope: Option<&str>, expected: ClientKind| {
            let wanted = scope.map(|scope| one_field("SCOPE", scope));
            let value = wanted.map(|wanted| Value { kind: Some(Kind::StructValue(wanted)) });
            let metadata = value.map(|value| Struct { fields: [("EVENKEEL".to_owned(), value)].into() });
            assert_eq!(ProxyView::from_node(&node(id, metadata)).unwrap().client_kind, expected, "{id} {scope:?}");
        };
        let (sidecar, router) = ("sidecar~10.0.0.1~a.shop~c", "router~10.0.0.1~a.shop~c");
        check(sidecar, None, ClientKind::Envoy);
        check(sidecar, Some("full"), ClientKind::EvenkeelFull);
        check(sidecar, Some("learned"), ClientKind::EvenkeelLearned);
        check(router, Some("learned"), ClientKind::EvenkeelFull);
    }

    #[test]
    fn gateways_say_whether_they_stand_behind_a_load_balancer_that_names_clients() {
        let object = |name: &str, inner: Struct| Struct {
            fields: [(name.to_owned(), Value { kind: Some(Kind::StructValue(inner)) })].into(),
        };
        let check = |id: &str, topology: Struct, expected: bool| {
            let metadata = object("PROXY_CONFIG", object("gatewayTopology", topology));
            let view = ProxyView::from_node(&node(id, Some(metadata))).unwrap();
            assert_eq!(view.takes_proxy_protocol, expected, "{id}");
        };
        check("router~10.0.0.1~a.shop~c", object("proxyProtocol", Struct::default()), true);
        check("router~10.0.0.1~a.shop~c", Struct::default(), false);
        check("sidecar~10.0.0.1~a.shop~c", object("proxyProtocol", Struct::default()), false);
    }

    #[test]
    fn envoys_that_know_the_hybrid_curve_are_told_of_it() {
        let check = |version: Option<(u32, u32)>, library: &str, istio: &str, scope: Option<&str>, expected: bool| {
            let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
            let mut fields = one_field("ISTIO_VERSION", istio).fields;
            let inner = scope.map(|scope| Value { kind: Some(Kind::StructValue(one_field("SCOPE", scope))) });
            fields.extend(inner.map(|inner| ("EVENKEEL".to_owned(), inner)));
            let metadata = Struct { fields: [("ssl.version".to_owned(), text(library))].into() };
            let build = version.map(|(major_number, minor_number)| {
                let version = SemanticVersion { major_number, minor_number, patch: 3 };
                UserAgentVersionType::UserAgentBuildVersion(BuildVersion {
                    version: Some(version),
                    metadata: Some(metadata),
                })
            });
            let node = node("sidecar~10.0.0.1~a.shop~c", Some(Struct { fields }));
            let view = ProxyView::from_node(&Node { user_agent_version_type: build, ..node }).unwrap();
            assert_eq!(view.takes_hybrid_curve, expected, "{version:?} {library} {istio} {scope:?}");
        };
        check(Some((1, 34)), "BoringSSL", "1.26.0", None, true);
        check(Some((2, 0)), "BoringSSL", "", None, true);
        check(Some((1, 33)), "BoringSSL", "1.26.0", None, false);
        check(Some((1, 40)), "BoringSSL-FIPS", "1.32.0", None, false);
        check(None, "", "1.26.0", None, true);
        check(None, "", "1.32-alpha.abc", None, true);
        check(None, "", "1.25.4", None, false);
        check(None, "", "unknown", None, false);
        // Evenkeel's proxy offers it by itself.
        check(Some((1, 40)), "", "", Some("full"), false);
    }

    #[test]
    fn agents_say_whether_they_answer_dns() {
        let check = |metadata: Struct, expected: bool| {
            let view = ProxyView::from_node(&node("sidecar~10.0.0.1~a.shop~c", Some(metadata.clone()))).unwrap();
            assert_eq!(view.captures_dns, expected, "{metadata:?}");
        };
        check(Struct::default(), false);
        check(one_field("DNS_CAPTURE", "true"), true);
        check(one_field("DNS_CAPTURE", "false"), false);
        let both = |allocate: &str| {
            let mut metadata = one_field("DNS_CAPTURE", "true");
            metadata.fields.extend(one_field("DNS_AUTO_ALLOCATE", allocate).fields);
            metadata
        };
        check(both("true"), true);
        check(both("false"), false);
        let flag = Value { kind: Some(Kind::BoolValue(true)) };
        check(Struct { fields: [("DNS_CAPTURE".to_owned(), flag)].into() }, true);
    }

    #[test]
    fn a_probe_for_the_agent_is_not_a_setting_of_the_proxy() {
        let check = |config: &str, expected: &str| {
            let fields = config.split(' ').filter(|name| !name.is_empty());
            let inner = Struct { fields: fields.map(|name| (name.to_owned(), Value::default())).collect() };
            let value = Value { kind: Some(Kind::StructValue(inner)) };
            let metadata = Struct { fields: [("PROXY_CONFIG".to_owned(), value)].into() };
            let view = ProxyView::from_node(&node("sidecar~10.0.0.1~a.shop~c", Some(metadata))).unwrap();
            assert_eq!(&*view.proxy_config, expected);
        };
        check("readinessProbe", "");
        check("readinessProbe concurrency", r#"{"concurrency":null}"#);
        check("proxyAdminPort statusPort caCertificatesPem envoyAccessLogService zipkinAddress", "");
        check("", "{}");
    }

    #[test]
    fn nodes_say_what_their_bootstrap_has() {
        fn value(json: &serde_json::Value) -> Value {
            let kind = match json {
                serde_json::Value::Object(fields) => Kind::StructValue(Struct {
                    fields: fields.iter().map(|(name, field)| (name.clone(), value(field))).collect(),
                }),
                serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
                text => Kind::StringValue(text.as_str().unwrap().to_owned()),
            };
            Value { kind: Some(kind) }
        }
        let check = |config: &str, collector: bool, log_service: bool, expected: &str| {
            let config = value(&serde_json::from_str(config).unwrap());
            let metadata = Struct { fields: [("PROXY_CONFIG".to_owned(), config.clone())].into() };
            let view = ProxyView::from_node(&node("sidecar~10.0.0.1~a.shop~c", Some(metadata))).unwrap();
            let found = (view.has_collector, view.has_log_service, &*view.proxy_config);
            assert_eq!(found, (collector, log_service, expected), "{config:?}");
        };
        check(r#"{"tracing":{"zipkin":{"address":"z:9411"},"tlsSettings":{"mode":"SIMPLE"}}}"#, true, false, "");
        check(r#"{"zipkinAddress":"z:9411"}"#, true, false, "");
        check(r#"{"zipkinAddress":"z"}"#, false, false, "");
        check(r#"{"envoyAccessLogService":{"address":"l:1"}}"#, false, true, "");
        // Istio's agents send all of it.
        let sampling = r#"{"tracing":{"sampling":5}}"#;
        check(r#"{"tracing":{"zipkin":{"address":"z:9411"},"sampling":5}}"#, true, false, sampling);
        check(r#"{"concurrency":2,"zipkinAddress":"z:9411"}"#, true, false, r#"{"concurrency":2}"#);
        check("{}", false, false, "{}");
    }

    #[test]
    fn grpc_programs_say_so() {
        let check = |id: &str, generator: &str, expected: ClientKind| {
            let view = ProxyView::from_node(&node(id, Some(one_field("GENERATOR", generator)))).unwrap();
            assert_eq!(view.client_kind, expected, "{id} {generator}");
        };
        check("sidecar~10.0.0.1~a.shop~c", "grpc", ClientKind::Grpc);
        check("sidecar~10.0.0.1~a.shop~c", "other", ClientKind::Envoy);
        check("router~10.0.0.1~a.shop~c", "grpc", ClientKind::Envoy);
    }

    #[test]
    fn refuses_other_nodes() {
        let check = |id: &str, expected: &str| {
            let error = ProxyView::from_node(&node(id, Some(one_field("NAMESPACE", "shop")))).unwrap_err();
            assert!(error.to_string().contains(expected), "{id}: {error}");
        };
        check("", "is not `sidecar~");
        check("waypoint~10.0.0.1~a.b~c", "is not `sidecar~");
        check("sidecar~10.0.0.1~nodot~c", "is not `sidecar~");
        check("sidecar~10.0.0.1~.b~c", "is not `sidecar~");
        check("sidecar~nine~a.shop~c", "`nine` is not an IP address");
        check("sidecar~10.0.0.1~a.other~c", "metadata NAMESPACE says `shop`");
        check(&"x".repeat(MAX_NODE_ID_BYTES + 1), "at most 1024");
    }
}
