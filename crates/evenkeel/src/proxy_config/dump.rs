//! A proxy's configuration as `/config_dump` has it (`envoy.admin.v3.ConfigDump`), by the kinds of its resources. Stock Envoy's
//! has the same form.

use serde_json::Value as Json;

/// The page with everything, endpoints included.
pub const PAGE: &str = "/config_dump?include_eds";

/// Where a kind of resources is in the dump.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// The end of the section's type.
    dump: &'static str,
    /// The lists of the section.
    lists: &'static [&'static str],
    /// Where the resource is in an entry of a list.
    path: &'static [&'static str],
}

/// Clusters.
pub const CLUSTERS: Section = Section {
    dump: "ClustersConfigDump",
    lists: &["static_clusters", "dynamic_active_clusters", "dynamic_warming_clusters"],
    path: &["cluster"],
};
/// Listeners of the bootstrap.
pub const STATIC_LISTENERS: Section =
    Section { dump: "ListenersConfigDump", lists: &["static_listeners"], path: &["listener"] };
/// Listeners that the control plane sends.
pub const LISTENERS: Section =
    Section { dump: "ListenersConfigDump", lists: &["dynamic_listeners"], path: &["active_state", "listener"] };
/// Route configurations.
pub const ROUTES: Section = Section {
    dump: "RoutesConfigDump",
    lists: &["static_route_configs", "dynamic_route_configs"],
    path: &["route_config"],
};
/// Certificates and roots that are in use.
pub const SECRETS: Section =
    Section { dump: "SecretsConfigDump", lists: &["static_secrets", "dynamic_active_secrets"], path: &["secret"] };
/// Secrets that the proxy waits for.
pub const WARMING_SECRETS: Section =
    Section { dump: "SecretsConfigDump", lists: &["dynamic_warming_secrets"], path: &["secret"] };
/// Configurations of filters that came on their own.
pub const EXTENSIONS: Section = Section { dump: "EcdsConfigDump", lists: &["ecds_filters"], path: &["ecds_filter"] };

/// The resources of a kind, in the dump's order.
pub fn resources(dump: &Json, section: Section) -> Vec<&Json> {
    let of_kind = |config: &&Json| text(config, "@type").ends_with(section.dump);
    let configs = list(dump, "configs").filter(of_kind);
    let entries = configs.flat_map(|config| section.lists.iter().flat_map(move |name| list(config, name)));
    entries.filter_map(|entry| section.path.iter().try_fold(entry, |value, key| value.get(key))).collect()
}

/// The bootstrap.
pub fn bootstrap(dump: &Json) -> Option<&Json> {
    list(dump, "configs").find(|config| text(config, "@type").ends_with("BootstrapConfigDump"))?.get("bootstrap")
}

/// The entries of a list; none if it is absent.
pub fn list<'a>(value: &'a Json, key: &str) -> impl Iterator<Item = &'a Json> {
    value.get(key).and_then(Json::as_array).into_iter().flatten()
}

/// A text; empty if it is absent.
pub fn text<'a>(value: &'a Json, key: &str) -> &'a str {
    value.get(key).and_then(Json::as_str).unwrap_or_default()
}

/// The object that a resource was made of, `NAME.NAMESPACE`, as Istio's control plane and this project's write it into
/// `metadata.filter_metadata.istio.config`; empty if there is none.
pub fn origin(resource: &Json) -> String {
    let config = resource.pointer("/metadata/filter_metadata/istio/config").and_then(Json::as_str).unwrap_or_default();
    // /apis/GROUP/VERSION/namespaces/NAMESPACE/KIND/NAME
    let mut parts = config.rsplit('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(name), Some(_), Some(namespace)) => format!("{name}.{namespace}"),
        _ => String::new(),
    }
}

/// A socket's address; of a pipe its path.
pub fn address(value: &Json) -> (String, Option<u16>) {
    if let Some(socket) = value.get("socket_address") {
        let port = socket.get("port_value").and_then(Json::as_u64).and_then(|port| u16::try_from(port).ok());
        return (text(socket, "address").to_owned(), port);
    }
    if let Some(pipe) = value.get("pipe") {
        return (format!("unix://{}", text(pipe, "path")), None);
    }
    let internal = value.get("envoy_internal_address");
    (internal.map(|internal| text(internal, "server_listener_name").to_owned()).unwrap_or_default(), None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_are_found_by_their_kind() {
        let dump = json!({"configs": [
            {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
             "static_clusters": [{"cluster": {"name": "agent"}}],
             "dynamic_active_clusters": [{"version_info": "1", "cluster": {"name": "web"}}, {"no": "cluster"}]},
            {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
             "dynamic_listeners": [{"name": "a", "active_state": {"listener": {"name": "a"}}}, {"name": "b", "error_state": {}}]},
        ]});
        let names = |section| resources(&dump, section).into_iter().map(|one| text(one, "name")).collect::<Vec<_>>();
        assert_eq!(names(CLUSTERS), ["agent", "web"]);
        assert_eq!(names(LISTENERS), ["a"]);
        assert!(names(ROUTES).is_empty() && bootstrap(&dump).is_none());
    }

    #[test]
    fn origins_and_addresses_are_short() {
        let check = |config: &str, expected: &str| {
            let resource = json!({"metadata": {"filter_metadata": {"istio": {"config": config}}}});
            assert_eq!(origin(&resource), expected, "{config}");
        };
        check("/apis/networking.istio.io/v1/namespaces/shop/virtual-service/web", "web.shop");
        check("", "");
        assert_eq!(origin(&json!({})), "");
        let check =
            |value: Json, expected: &str, port: Option<u16>| assert_eq!(address(&value), (expected.to_owned(), port));
        check(json!({"socket_address": {"address": "::1", "port_value": 80}}), "::1", Some(80));
        check(json!({"pipe": {"path": "/run/a"}}), "unix:///run/a", None);
        check(json!({"envoy_internal_address": {"server_listener_name": "inner"}}), "inner", None);
    }
}
