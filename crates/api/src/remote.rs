//! Objects of remote clusters: their names have the cluster before them, `west/web-1`. No object of a cluster, and none in a file, has
//! such a name by itself.

/// Separates the cluster from the name.
const SEPARATOR: char = '/';
/// The name of the source of what the API server of the control plane's own cluster has.
pub const OWN_SOURCE: &str = "kubernetes";
/// Istio's label of what is in a cluster.
pub const CLUSTER_LABEL: &str = "topology.istio.io/cluster";
/// Istio's label of what is in a network; on a Service: of the network that its gateway leads into.
pub const NETWORK_LABEL: &str = "topology.istio.io/network";
/// Istio's label of a Service: the port of its gateway that passes the mesh's TLS on.
pub const GATEWAY_PORT_LABEL: &str = "networking.istio.io/gatewayPort";

/// The name of an object that a remote cluster has under `name`; an empty cluster is the control plane's own.
pub fn name_in(cluster: &str, name: &str) -> String {
    if cluster.is_empty() { name.to_owned() } else { format!("{cluster}{SEPARATOR}{name}") }
}

/// The remote cluster of an object with this name, empty for the control plane's own, and its name there.
pub fn split(name: &str) -> (&str, &str) {
    name.split_once(SEPARATOR).unwrap_or(("", name))
}

/// What stands before the names of workloads that are no Pods, where a remote cluster stands before those of its Pods: a cluster of such
/// a name would have the workloads of others.
const RESERVED: [&str; 3] = ["workloadentry", "workloadgroup", "serviceaccount"];

/// Whether this can be the name of a cluster, which is a key of a Secret: at most 253 letters, digits, `-`, `_` and `.`, and not what
/// stands before other workloads.
pub fn is_cluster_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=evenkeel_base::limits::MAX_HOSTNAME_CHARS).contains(&text.len())
        && text.chars().all(fits)
        && !RESERVED.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_cluster_before_it() {
        let check = |cluster: &str, name: &str, expected: &str| {
            assert_eq!(name_in(cluster, name), expected);
            assert_eq!(split(expected), (cluster, name));
        };
        check("", "web-1", "web-1");
        check("west", "web-1", "west/web-1");
        assert_eq!(
            ["serviceaccount", "workloadgroup", "workloadentry", "workload"].map(is_cluster_name),
            [false, false, false, true]
        );
        assert_eq!(["west", "a_b.c-1", "", "a/b", "a b"].map(is_cluster_name), [true, true, false, false, false]);
    }
}
