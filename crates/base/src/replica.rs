//! Matching of the names that users give for a replica.

/// How specifically a name matches; the greater, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameMatch {
    /// The name is the beginning of the pod's name.
    Prefix,
    /// The name is the workload's name.
    Workload,
    /// The name is the pod's name.
    Pod,
}

/// Matches `wanted` with a replica. It may be POD, WORKLOAD or the beginning of POD, each with an optional suffix
/// `.NAMESPACE`, as proxies are named, and an optional prefix `TYPE/`, as `kubectl` accepts it.
pub fn match_name(wanted: &str, pod: &str, namespace: &str, workload: &str) -> Option<NameMatch> {
    let wanted = wanted.rsplit_once('/').map_or(wanted, |(_, name)| name);
    let here = wanted.strip_suffix(namespace).and_then(|rest| rest.strip_suffix('.'));
    [Some(wanted), here].into_iter().flatten().filter_map(|name| match_one(name, pod, workload)).max()
}

fn match_one(name: &str, pod: &str, workload: &str) -> Option<NameMatch> {
    match name {
        "" => None,
        name if name == pod => Some(NameMatch::Pod),
        name if name == workload => Some(NameMatch::Workload),
        name => pod.starts_with(name).then_some(NameMatch::Prefix),
    }
}

/// The workload of a pod, by the pod's name: `WORKLOAD-HASH-SUFFIX`, or `WORKLOAD-NUMBER`.
pub fn workload_of(pod: &str) -> &str {
    match pod.rsplit_once('-') {
        Some((workload, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => workload,
        Some((rest, _)) => rest.rsplit_once('-').map_or(pod, |(workload, _)| workload),
        None => pod,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_printed_is_understood() {
        let check = |wanted: &str, expected: Option<NameMatch>| {
            assert_eq!(match_name(wanted, "web-5d4f-x2x4z", "shop", "web"), expected, "{wanted}");
        };
        for wanted in ["web-5d4f-x2x4z", "web-5d4f-x2x4z.shop", "pod/web-5d4f-x2x4z"] {
            check(wanted, Some(NameMatch::Pod));
        }
        for wanted in ["web", "web.shop", "deployment/web", "deploy/web.shop"] {
            check(wanted, Some(NameMatch::Workload));
        }
        for wanted in ["web-5d", "web-", "we", "web-5d4f.shop"] {
            check(wanted, Some(NameMatch::Prefix));
        }
        for wanted in ["", ".shop", "web.other", "eb", "web-5d4f-x2x4z-more", "shop"] {
            check(wanted, None);
        }
    }

    #[test]
    fn a_pod_says_its_workload() {
        let check = |pod: &str, expected: &str| assert_eq!(workload_of(pod), expected);
        check("web-5d4f-x2x4z", "web");
        check("web-v1-5d4f-x2x4z", "web-v1");
        check("db-0", "db");
        check("istio-ingressgateway", "istio-ingressgateway");
        check("alone", "alone");
    }
}
