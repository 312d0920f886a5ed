//! Expands principals and trust domains in policies to all names of the mesh's trust domain (`trustDomainAliases`).

use crate::{MeshConfig, StringMatch};

/// Parts of a principal: `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
const PRINCIPAL_PARTS: usize = 5;
/// Stands for the mesh's trust domain in every mesh.
const ANY_MESH: &str = "cluster.local";

/// The principals that a value names: with the mesh's own trust domain, or one of its aliases, the same account in all of them.
pub fn principals(value: &StringMatch, mesh: &MeshConfig) -> Vec<StringMatch> {
    match value {
        StringMatch::Exact(text) => each(domains_of(text, mesh), StringMatch::Exact),
        StringMatch::Prefix(text) => each(domains_of(text, mesh), StringMatch::Prefix),
        StringMatch::Suffix(text) => {
            let others = each(other_domains_of(text, mesh), StringMatch::Exact);
            std::iter::once(value.clone()).chain(others).collect()
        }
        StringMatch::Regex(_) | StringMatch::Present => vec![value.clone()],
    }
}

/// The trust domains that a value names: for the mesh's own, or one of its aliases, all of them (Istio's
/// `ExpandTrustDomainAliases`).
pub fn trust_domains(value: &StringMatch, mesh: &MeshConfig) -> Vec<StringMatch> {
    match value {
        StringMatch::Exact(text) if mesh.own_trust_domains().any(|own| own == text) => {
            mesh.own_trust_domains().cloned().map(StringMatch::Exact).collect()
        }
        other => vec![other.clone()],
    }
}

fn each(names: Vec<String>, test: impl Fn(std::sync::Arc<str>) -> StringMatch) -> Vec<StringMatch> {
    names.into_iter().map(|name| test(name.into())).collect()
}

fn domains_of(principal: &str, mesh: &MeshConfig) -> Vec<String> {
    let Some((domain, rest)) = principal.split_once('/') else { return vec![principal.to_owned()] };
    if domain == ANY_MESH || mesh.own_trust_domains().any(|own| **own == *domain) {
        mesh.own_trust_domains().map(|domain| format!("{domain}/{rest}")).collect()
    } else {
        vec![principal.to_owned()]
    }
}

/// Further principals that `*SUFFIX` names, if it has the end of a trust domain of the mesh, as `*-example/ns/shop/sa/web`: the same
/// account in the others (Istio's `ReplaceTrustDomainAliases`).
fn other_domains_of(suffix: &str, mesh: &MeshConfig) -> Vec<String> {
    let Some((domain, rest)) = suffix.split_once('/') else { return Vec::new() };
    let is_principal = suffix.split('/').count() == PRINCIPAL_PARTS && !domain.is_empty();
    if !is_principal || !mesh.own_trust_domains().any(|own| own.ends_with(domain)) {
        return Vec::new();
    }
    mesh.own_trust_domains().filter(|own| !own.ends_with(domain)).map(|own| format!("{own}/{rest}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_name_the_same_accounts() {
        let mesh = MeshConfig {
            trust_domain: "new-td".into(),
            trust_domain_aliases: vec!["old-td".into(), "some".into()],
            ..MeshConfig::default()
        };
        let check = |named: fn(&StringMatch, &MeshConfig) -> Vec<StringMatch>, value: &str, expected: &[&str]| {
            let expected: Vec<StringMatch> = expected.iter().map(|text| StringMatch::from_policy_value(text)).collect();
            assert_eq!(named(&StringMatch::from_policy_value(value), &mesh), expected, "{value}");
        };
        let of_all = ["new-td/ns/a/sa/b", "old-td/ns/a/sa/b", "some/ns/a/sa/b"];
        for domain in ["cluster.local", "new-td", "old-td", "some"] {
            check(principals, &format!("{domain}/ns/a/sa/b"), &of_all);
        }
        check(principals, "other/ns/a/sa/b", &["other/ns/a/sa/b"]);
        check(principals, "old-td/ns/a/*", &["new-td/ns/a/*", "old-td/ns/a/*", "some/ns/a/*"]);
        check(principals, "old-t*", &["old-t*"]);
        check(principals, "*-td/ns/a/sa/b", &["*-td/ns/a/sa/b", "some/ns/a/sa/b"]);
        check(principals, "*/ns/a/sa/b", &["*/ns/a/sa/b"]);
        check(principals, "*/sa/b", &["*/sa/b"]);
        check(principals, "*", &["*"]);
        check(trust_domains, "old-td", &["new-td", "old-td", "some"]);
        check(trust_domains, "other", &["other"]);
        // Istio's documents say so: `cluster.local` is a name like any other here.
        check(trust_domains, "cluster.local", &["cluster.local"]);
        check(trust_domains, "*-td", &["*-td"]);
        check(trust_domains, "*", &["*"]);
    }
}
