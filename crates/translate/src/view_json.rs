//! What of a view does not follow from its workload, as JSON: another version of this program compares what it would send to the proxy.

use evenkeel_api::istio::InterceptionMode;
use serde_json::{Value, json};

use crate::view::{ClientKind, ProxyView};

const KINDS: [(ClientKind, &str); 4] = [
    (ClientKind::Envoy, "envoy"),
    (ClientKind::EvenkeelFull, "full"),
    (ClientKind::EvenkeelLearned, "learned"),
    (ClientKind::Grpc, "grpc"),
];
const MODES: [InterceptionMode; 3] = [InterceptionMode::Redirect, InterceptionMode::Tproxy, InterceptionMode::None];

impl ProxyView {
    /// What its workload does not say.
    pub fn to_json(&self) -> Value {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.client_kind).map(|(_, name)| *name);
        json!({
            "addresses": self.addresses,
            "serviceAccount": &*self.service_account,
            "labels": self.labels,
            "locality": &*self.locality,
            "clientKind": kind,
            "takesProxyProtocol": self.takes_proxy_protocol,
            "proxyConfig": &*self.proxy_config,
            "hasCollector": self.has_collector,
            "hasLogService": self.has_log_service,
            "authenticated": self.authenticated,
            "capturesDns": self.captures_dns,
            "interception": self.interception.map(InterceptionMode::as_str),
            "takesHybridCurve": self.takes_hybrid_curve,
            "cluster": &*self.cluster,
            "network": &*self.network,
            "peerLabels": self.peer_labels.as_ref().map(|labels| labels.iter().map(|label| &**label).collect::<Vec<_>>()),
        })
    }

    /// The view with what [`Self::to_json`] has said; what is not there stays.
    #[must_use]
    pub fn with_json(self, json: &Value) -> Self {
        let text = |name: &str| json[name].as_str().map(std::sync::Arc::from);
        let flag = |name: &str, own: bool| json[name].as_bool().unwrap_or(own);
        let read = |name: &str| Some(json[name].clone()).filter(|value| !value.is_null());
        let kind = KINDS.iter().find(|(_, name)| json["clientKind"] == *name).map(|(kind, _)| *kind);
        let mode = MODES.into_iter().find(|mode| json["interception"] == mode.as_str());
        let peers = read("peerLabels").and_then(|labels| serde_json::from_value::<Vec<String>>(labels).ok());
        Self {
            addresses: read("addresses").and_then(|all| serde_json::from_value(all).ok()).unwrap_or(self.addresses),
            service_account: text("serviceAccount").unwrap_or(self.service_account),
            labels: read("labels").and_then(|all| serde_json::from_value(all).ok()).unwrap_or(self.labels),
            locality: text("locality").unwrap_or(self.locality),
            client_kind: kind.unwrap_or(self.client_kind),
            takes_proxy_protocol: flag("takesProxyProtocol", self.takes_proxy_protocol),
            proxy_config: text("proxyConfig").unwrap_or(self.proxy_config),
            has_collector: flag("hasCollector", self.has_collector),
            has_log_service: flag("hasLogService", self.has_log_service),
            authenticated: flag("authenticated", self.authenticated),
            captures_dns: flag("capturesDns", self.captures_dns),
            interception: mode.or(self.interception),
            takes_hybrid_curve: flag("takesHybridCurve", self.takes_hybrid_curve),
            cluster: text("cluster").unwrap_or(self.cluster),
            network: text("network").unwrap_or(self.network),
            peer_labels: peers.map(|labels| labels.into_iter().map(Into::into).collect()).or(self.peer_labels),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::core::Node;

    #[test]
    fn a_view_is_the_same_after_it_was_written_and_read() {
        let node = |id: &str| Node { id: id.to_owned(), ..Node::default() };
        let plain = ProxyView::from_node(&node("sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local")).expect("a view");
        assert_eq!(plain.clone().with_json(&Value::Null), plain);
        let full = ProxyView {
            addresses: vec![[10, 0, 0, 2].into()],
            service_account: "web".into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            locality: "a/b".into(),
            client_kind: ClientKind::EvenkeelLearned,
            takes_proxy_protocol: true,
            proxy_config: "{}".into(),
            has_collector: true,
            has_log_service: true,
            authenticated: true,
            captures_dns: true,
            interception: Some(InterceptionMode::Tproxy),
            takes_hybrid_curve: true,
            cluster: "west".into(),
            network: "n2".into(),
            peer_labels: Some(vec!["app".into()]),
            ..plain.clone()
        };
        assert_eq!(plain.with_json(&full.to_json()), full);
    }
}
