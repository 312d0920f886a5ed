//! Users' objects, as text.

use crate::TestCa;

/// The Gateway of [`whole_service`]s.
pub const GATEWAY: &str = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\n\
    spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}\n";

/// Service number `n` as users write one: two endpoints, a VirtualService for the mesh and the Gateway `g`, and a
/// DestinationRule. `n` is below 39,000.
pub fn whole_service(n: usize) -> String {
    let host = format!("s{n}.shop.example.com");
    let (high, low) = (n / 250, n % 250 + 1);
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{hosts: [{host}], addresses: [10.{a}.{low}.1], ports: [{{number: 80, name: http, protocol: HTTP}}], \
         resolution: STATIC, location: MESH_INTERNAL, endpoints: [{{address: 192.0.{high}.{low}}}, {{address: 198.51.{high}.{low}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{hosts: [{host}], gateways: [mesh, g], http: [{{match: [{{headers: {{x-user: {{exact: a}}}}}}], \
         route: [{{destination: {{host: {host}}}}}], timeout: 3s, retries: {{attempts: 2}}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: s{n}, namespace: shop}}\n\
         spec: {{host: {host}, trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN}}, connectionPool: {{tcp: {{maxConnections: 10}}}}, \
         outlierDetection: {{consecutive5xxErrors: 5}}}}}}\n",
        a = 100 + high,
    )
}

/// A Secret with a certificate for a name, its key and the root, under the names of `kubernetes.io/tls`.
pub fn tls_secret(ca: &TestCa, namespace: &str, name: &str, host: &str) -> String {
    let identity = ca.for_dns(&[host]);
    secret(
        namespace,
        name,
        &[("tls.crt", &identity.cert_pem), ("tls.key", &identity.key_pem), ("ca.crt", &ca.root_pem())],
    )
}

/// A Secret with these texts.
pub fn secret(namespace: &str, name: &str, texts: &[(&str, &str)]) -> String {
    let quoted = |text: &str| text.replace('\n', "\\n");
    let entries: String = texts.iter().map(|(key, text)| format!("  {key}: \"{}\"\n", quoted(text))).collect();
    let data = if entries.is_empty() { String::new() } else { format!("stringData:\n{entries}") };
    format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\n{data}")
}
