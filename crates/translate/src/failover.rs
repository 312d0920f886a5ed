//! Priorities of endpoints by their distance from the client, as in istiod.

use std::sync::Arc;

use evenkeel_model::service::Distribution;
use evenkeel_model::{Endpoint, LocalityLb, Service, TrafficPolicy, ZoneAwareLb};

use crate::context::Context;
use crate::load_balancer::parts;

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const SUB_ZONE: &str = "topology.istio.io/subzone";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The distance of an endpoint: by labels, then by locality. Endpoints of equal rank have the same priority.
pub type Rank = (usize, u8);

/// Ranks endpoints for one client.
#[derive(Debug, Default)]
pub struct EndpointRanking {
    /// Labels that should match, the most important first, with the client's values.
    labels: Vec<(Arc<str>, Arc<str>)>,
    by_locality: bool,
    /// Only regions count, not zones and sub-zones: zone-aware balancing divides requests among them.
    by_region: bool,
    /// The client's locality.
    from: Arc<str>,
    /// The region to fail over to from the client's region.
    next_region: Option<Arc<str>>,
}

impl EndpointRanking {
    /// The ranking for `policy`. All endpoints have equal rank without outlier detection, which is needed to leave a
    /// priority (as in Istio), and with explicit locality shares.
    ///
    /// A service's `trafficDistribution` holds if its rule says nothing of localities, and needs no outlier detection.
    pub fn new(context: Context<'_>, service: &Service, policy: &TrafficPolicy) -> Self {
        let balancer = policy.load_balancer.as_ref();
        let zones = balancer.and_then(|balancer| balancer.zones());
        // The settings leave out the mesh's for such a service, see `Context::settings`.
        let ruled = zones.is_some() || balancer.is_some_and(|balancer| balancer.locality.is_some());
        let preferred: &[&str] = match service.distribution {
            Distribution::Any => &[],
            Distribution::SameZone => &[REGION, ZONE],
            Distribution::SameNode => &[REGION, ZONE, SUB_ZONE, HOSTNAME],
        };
        if !ruled && !preferred.is_empty() {
            let from: Arc<str> = context.locality().into();
            let own = |label: &str| match label {
                HOSTNAME => context.node(),
                _ => topology(&from, label).unwrap_or_default().into(),
            };
            let labels = preferred.iter().map(|label| (Arc::from(*label), own(label))).collect();
            return Self { labels, ..Self::default() };
        }
        if let Some(zones) = zones {
            return Self::by_zones(context, zones);
        }
        let none = LocalityLb::default();
        let setting = policy.load_balancer.as_ref().and_then(|lb| lb.locality.as_ref()).unwrap_or(&none);
        if policy.outlier_detection.is_none() || setting.disabled || !setting.distribute.is_empty() {
            return Self::default();
        }
        let from: Arc<str> = context.locality().into();
        Self {
            labels: wanted_labels(context, &from, &setting.failover_priority),
            by_locality: setting.failover_priority.is_empty() || !setting.failover.is_empty(),
            by_region: false,
            next_region: next_region(&from, &setting.failover),
            from,
        }
    }

    /// The ranking under zone-aware balancing: by labels, then the client's own region before the others. It needs no
    /// outlier detection.
    fn by_zones(context: Context<'_>, setting: &ZoneAwareLb) -> Self {
        let from: Arc<str> = context.locality().into();
        Self {
            labels: wanted_labels(context, &from, &setting.failover_priority),
            by_locality: true,
            by_region: true,
            next_region: next_region(&from, &setting.failover),
            from,
        }
    }

    /// The rank of one endpoint.
    pub fn rank(&self, endpoint: &Endpoint) -> Rank {
        let differs = |(name, value): &(Arc<str>, Arc<str>)| {
            let own = match &**name {
                HOSTNAME => Some(&*endpoint.node).filter(|node| !node.is_empty()),
                _ => endpoint.labels.get(&**name).map(String::as_str),
            };
            own.or_else(|| topology(&endpoint.locality, name)).unwrap_or_default() != &**value
        };
        let agreeing = self.labels.iter().position(differs).unwrap_or(self.labels.len());
        let distance = if self.by_locality { self.distance(&endpoint.locality) } else { 0 };
        (self.labels.len() - agreeing, distance)
    }

    /// 0 to 2: by zone and sub-zone within the region; 3: another region; 4: one that the setting does not name.
    fn distance(&self, locality: &str) -> u8 {
        let (own, other) = (parts(&self.from), parts(locality));
        match own.iter().zip(other).take_while(|(own, other)| **own == *other).count() {
            3 => 0,
            1 | 2 if self.by_region => 0,
            2 => 1,
            1 => 2,
            _ => match &self.next_region {
                Some(next) if **next != *other[0] => 4,
                _ => 3,
            },
        }
    }
}

/// The labels of `failoverPriority`, with the values that endpoints should have.
fn wanted_labels(context: Context<'_>, from: &str, names: &[Arc<str>]) -> Vec<(Arc<str>, Arc<str>)> {
    let wanted = names.iter().map(|label| match label.split_once('=') {
        Some((name, value)) => (name.into(), value.into()),
        None => (label.clone(), topology(from, label).map_or_else(|| context.label(label), Arc::from)),
    });
    wanted.collect()
}

/// The region that `failover` names for the client's.
fn next_region(from: &str, failover: &[(Arc<str>, Arc<str>)]) -> Option<Arc<str>> {
    let region = parts(from)[0];
    failover.iter().find(|(from, _)| **from == *region).map(|(_, to)| to.clone())
}

/// The part of a locality for the name of a topology label.
fn topology<'l>(locality: &'l str, label: &str) -> Option<&'l str> {
    let [region, zone, sub_zone] = parts(locality);
    match label {
        REGION => Some(region),
        ZONE => Some(zone),
        SUB_ZONE => Some(sub_zone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranking(from: &str, labels: &[(&str, &str)], by_locality: bool, next_region: Option<&str>) -> EndpointRanking {
        EndpointRanking {
            labels: labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            by_locality,
            by_region: false,
            from: from.into(),
            next_region: next_region.map(Into::into),
        }
    }

    #[test]
    fn localities_rank_by_what_they_share() {
        let check = |next_region, expected: [u8; 6]| {
            let ranking = ranking("r1/z1/s1", &[], true, next_region);
            let all = ["r1/z1/s1", "r1/z1/s2", "r1/z2/s1", "r2/z1/s1", "r3", ""];
            assert_eq!(all.map(|locality| ranking.distance(locality)), expected, "{next_region:?}");
        };
        check(None, [0, 1, 2, 3, 3, 3]);
        check(Some("r3"), [0, 1, 2, 4, 3, 4]);
        assert_eq!(ranking("", &[], true, None).distance(""), 0);
    }

    #[test]
    fn labels_rank_by_the_first_that_differs() {
        let labels = [("version", "v1"), (ZONE, "z1"), ("app", "")];
        let check = |own: &[(&str, &str)], locality: &str, by_locality, expected: Rank| {
            let endpoint = Endpoint {
                labels: own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
                locality: locality.into(),
                ..endpoint()
            };
            assert_eq!(ranking("r1/z1", &labels, by_locality, None).rank(&endpoint), expected, "{own:?} {locality}");
        };
        check(&[("version", "v1")], "r1/z1", false, (0, 0));
        check(&[("version", "v1"), ("app", "x")], "r1/z1", false, (1, 0));
        check(&[("version", "v1")], "r1/z2", false, (2, 0));
        check(&[("version", "v2")], "r1/z1", false, (3, 0));
        check(&[], "r2/z1", true, (3, 3));
    }

    fn endpoint() -> Endpoint {
        Endpoint {
            address: evenkeel_model::EndpointAddress::Ip([127, 0, 0, 1].into()),
            port: 80,
            ready: true,
            draining: false,
            failing: false,
            node: "".into(),
            labels: Default::default(),
            host_name: None,
            workload_name: "w".into(),
            namespace: "n".into(),
            identity: None,
            locality: "".into(),
            cluster: "".into(),
            network: "".into(),
            weight: 1,
            mtls: false,
        }
    }
}
