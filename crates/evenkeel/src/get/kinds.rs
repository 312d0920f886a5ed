//! Names of kinds as kubectl has them: plural, singular, short, each also with the group (`gateways.networking.istio.io`).

use anyhow::anyhow;
use evenkeel_api::Kind;
use evenkeel_base::suggest::instead;

/// A kind's short names, as its definition has them.
fn short_names(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Namespace => &["ns"],
        Kind::ServiceAccount => &["sa"],
        Kind::ConfigMap => &["cm"],
        Kind::Pod => &["po"],
        Kind::Service => &["svc"],
        Kind::Ingress => &["ing"],
        Kind::Deployment => &["deploy"],
        Kind::StatefulSet => &["sts"],
        Kind::DaemonSet => &["ds"],
        Kind::Gateway => &["gw"],
        Kind::VirtualService => &["vs"],
        Kind::DestinationRule => &["dr"],
        Kind::ServiceEntry => &["se"],
        Kind::WorkloadEntry => &["we"],
        Kind::WorkloadGroup => &["wg"],
        Kind::PeerAuthentication => &["pa"],
        Kind::AuthorizationPolicy => &["ap"],
        Kind::RequestAuthentication => &["ra"],
        Kind::GatewayClass => &["gc"],
        Kind::KubernetesGateway => &["gtw"],
        Kind::ReferenceGrant => &["refgrant"],
        Kind::ListenerSet => &["lset"],
        Kind::BackendTlsPolicy => &["btlspolicy"],
        _ => &[],
    }
}

/// The plural as Kubernetes guesses it from a kind in lower case; all kinds here follow that rule.
fn plural(singular: &str) -> String {
    let vowel_before_end = singular.chars().rev().nth(1).is_some_and(|letter| "aeiou".contains(letter));
    match singular.strip_suffix('y') {
        Some(stem) if !vowel_before_end => format!("{stem}ies"),
        _ if singular.ends_with('s') => format!("{singular}es"),
        _ => format!("{singular}s"),
    }
}

fn names(kind: Kind) -> Vec<String> {
    let singular = kind.as_str().to_lowercase();
    let mut all = vec![plural(&singular), singular];
    all.extend(short_names(kind).iter().map(|name| (*name).to_owned()));
    all
}

/// The kinds in kubectl's order of precedence: where two groups have a kind of that name, that of the first group is meant.
fn by_group() -> Vec<Kind> {
    let mut all: Vec<Kind> = Kind::ALL.iter().copied().filter(|kind| kind.is_supported()).collect();
    all.sort_by_key(|kind| kind.group());
    all
}

/// The kind that a name means.
fn parse(name: &str) -> anyhow::Result<Kind> {
    let wanted = name.to_lowercase();
    let (short, group) = wanted.split_once('.').map_or((&*wanted, None), |(short, group)| (short, Some(group)));
    let all = by_group();
    let is_it =
        |kind: &&Kind| group.is_none_or(|group| kind.group() == group) && names(**kind).iter().any(|own| own == short);
    all.iter().find(is_it).copied().ok_or_else(|| {
        let plurals: Vec<String> = all.iter().map(|kind| plural(&kind.as_str().to_lowercase())).collect();
        anyhow!("no kind has the name {name}; {}", instead(&wanted, plurals.iter().map(String::as_str)))
    })
}

/// The kinds of a list with commas, each once, in its order.
pub fn parse_list(list: &str) -> anyhow::Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for name in list.split(',') {
        let kind = parse(name)?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_kubectls_names() {
        let check = |list: &str, expected: Result<&[Kind], &str>| match (parse_list(list), expected) {
            (Ok(kinds), Ok(expected)) => assert_eq!(kinds, expected, "{list}"),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{list}: {error}"),
            (found, _) => panic!("{list}: {found:?}"),
        };
        check("gateways,httproutes", Ok(&[Kind::KubernetesGateway, Kind::HttpRoute]));
        check("Gateway,gtw,gateways.gateway.networking.k8s.io", Ok(&[Kind::KubernetesGateway]));
        check("gw,gateways.networking.istio.io", Ok(&[Kind::Gateway]));
        check("gatewayclasses,gc,ingresses,ing", Ok(&[Kind::GatewayClass, Kind::Ingress]));
        check(
            "serviceentries,telemetries,btlspolicy",
            Ok(&[Kind::ServiceEntry, Kind::Telemetry, Kind::BackendTlsPolicy]),
        );
        check("httproute.networking.istio.io", Err("no kind"));
        check("httprouts", Err("did you mean `httproutes`?"));
        check("gateways,", Err("no kind"));
    }
}
