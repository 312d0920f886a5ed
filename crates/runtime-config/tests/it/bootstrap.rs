//! Bootstrap files.

use evenkeel_runtime_config::bootstrap::{Ads, Bootstrap};
use evenkeel_runtime_config::{Builder, Environment, Rejection, Source};
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

use crate::input;

const CLUSTERS: &str = r#"
    - name: xds-grpc
      type: STRICT_DNS
      connect_timeout: 1s
      typed_extension_protocol_options: &http2
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      upstream_connection_options: { tcp_keepalive: { keepalive_time: 300 } }
      load_assignment: { cluster_name: xds-grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: control-plane.test, port_value: 15012 } } } }] }] }
    - name: sds-grpc
      typed_extension_protocol_options: *http2
      load_assignment: { cluster_name: sds-grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: ./sds.sock } } } }] }] }
"#;

const DYNAMIC: &str = "
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{ envoy_grpc: { cluster_name: xds-grpc } }]
  lds_config: { ads: {}, resource_api_version: V3 }
  cds_config: { ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s }
";

fn read(text: &str) -> Result<Bootstrap, Rejection> {
    let any = input::resource("envoy.config.bootstrap.v3.Bootstrap", text);
    let message: pb::Bootstrap = evenkeel_xds::unpack(&any).expect("just packed");
    Bootstrap::new(&message, &Environment::process())
}

#[test]
fn a_sidecars_bootstrap() {
    let text = format!(
        "node: {{ id: \"sidecar~10.0.0.1~a.b~b.svc.cluster.local\", cluster: a.b, metadata: {{ NAMESPACE: b }} }}
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 15000 }} }} }}
cluster_manager: {{ upstream_bind_config: {{ socket_options: [{{ description: mark, level: 1, name: 36, int_value: 1337, state: STATE_PREBIND }}] }} }}
{DYNAMIC}
static_resources:
  clusters:{CLUSTERS}"
    );
    let bootstrap = read(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(bootstrap.admin, Some("127.0.0.1:15000".parse().unwrap()));
    assert_eq!(bootstrap.ads, Some(Ads { cluster: "xds-grpc".into(), delta: true }));
    assert_eq!((bootstrap.lds, bootstrap.cds), (Some(Source::Ads), Some(Source::Ads)));
    assert_eq!(bootstrap.bind.socket_options[0].value, 1337);
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    builder.set_default_bind(bootstrap.bind);
    for cluster in &bootstrap.clusters {
        builder.set_static_cluster(cluster).unwrap_or_else(|error| panic!("{error}"));
    }
    let config = builder.build();
    // The other waits for DNS.
    assert_eq!(config.clusters.len(), 1);
    assert_eq!(config.clusters["sds-grpc"].bind.socket_options.len(), 1);
}

#[test]
fn mistakes_are_named_with_their_path() {
    let dns = "{ envoy_grpc: { cluster_name: nowhere } }";
    for (text, expected) in [
        (
            "node: { id: n }\noverload_manager: {}\nadmin: { profile_path: /tmp/x }".to_owned(),
            vec!["admin.profile_path: not supported", "overload_manager: not supported"],
        ),
        (
            "node: { id: n }\nstatic_resources: { clusters: [{ name: c, close_connections_on_host_health_failure: true }] }".into(),
            vec!["static_resources.clusters[0].close_connections_on_host_health_failure: not supported"],
        ),
        (
            "node: { id: n }\ndynamic_resources: { lds_config: { ads: {} } }".into(),
            vec!["dynamic_resources.lds_config.ads: needs dynamic_resources.ads_config"],
        ),
        (
            format!(
                "node: {{ id: n }}\ndynamic_resources: {{ ads_config: {{ api_type: GRPC, grpc_services: [{dns}] }} }}"
            ),
            vec!["dynamic_resources: there is no static cluster \"nowhere\" to connect to"],
        ),
        (
            "node: { id: n }\ndynamic_resources: { ads_config: { api_type: REST } }".into(),
            vec!["dynamic_resources.ads_config.api_type: must be GRPC or DELTA_GRPC (or their aggregated forms)"],
        ),
    ] {
        let rejection = read(&text).unwrap_err();
        let got: Vec<String> = rejection.problems.iter().map(ToString::to_string).collect();
        assert_eq!(got, expected, "{text}");
        assert!(rejection.to_string().starts_with("Bootstrap \"n\": "));
    }
}
