//! Status of the authorities: the state of a rotation, when certificates expire, and alarms about those that expire soon.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::SystemTime;

use evenkeel_admin::authorities::{Alarm, AlarmKind, External, Status};
use evenkeel_ca::rotation::{Ledgers, Observed, Signer, State};

use super::{Authorities, unix};
use crate::metrics::plane;

/// A certificate with less than this share of its lifetime left should have been replaced.
const ALARM_BELOW: f64 = 0.3;
/// Maximum number of alarms remembered and listed.
const MAX_ALARMS: usize = 1000;

/// The alarms that have been logged.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    said: BTreeSet<Alarm>,
}

impl Authorities {
    /// Returns the status of the authorities.
    pub fn status(&self, now: SystemTime) -> Result<Status, super::AuthoritiesError> {
        let current = self.current();
        let ledgers = Ledgers::read(self.store.store())?;
        let at = unix(now);
        let waiting = current.state.waiting(&Observed { ledgers: &ledgers, bundle: &current.version }, at);
        let holders = || ledgers.holders.values().filter(|holder| holder.not_after > at);
        let trusting = holders().filter(|holder| holder.bundle.as_ref() == Some(&current.version)).count();
        let external = self.signers.current().map(|signer| match signer {
            Ok(signer) => External { address: Some(signer.address.clone()), problem: None, trusting },
            Err(problem) => External { address: None, problem: Some(problem), trusting },
        });
        Ok(Status {
            workloads: holders().count(),
            external,
            alarms: self.alarms_at(&ledgers, at),
            state: current.state.clone(),
            bundle: current.version.clone(),
            waiting,
            now: at,
        })
    }

    /// Returns the certificates that expired soon at the last check, half a minute ago at most.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).said.iter().cloned().collect()
    }

    fn alarms_at(&self, ledgers: &Ledgers, now: u64) -> Vec<Alarm> {
        let mut alarms = alarms(&self.current().state, ledgers, now);
        let external = self.store.further_authorities().into_iter().filter(|root| is_near(root.begin, root.end, now));
        alarms.extend(external.map(|root| {
            let not_after = root.end;
            Alarm { kind: AlarmKind::ExternalRoot, of: root.id, identity: None, not_after }
        }));
        alarms
    }

    /// Logs the certificates that expire soon, and counts them in the metrics.
    pub(super) fn look_for_alarms(&self, now: SystemTime) {
        let ledgers = match Ledgers::read(self.store.store()) {
            Ok(ledgers) => ledgers,
            Err(error) => {
                tracing::warn!(%error, "the ledger of certificates cannot be read");
                return;
            }
        };
        let found: BTreeSet<Alarm> = self.alarms_at(&ledgers, unix(now)).into_iter().collect();
        let count = |kind: AlarmKind| {
            i64::try_from(found.iter().filter(|alarm| alarm.kind == kind).count()).unwrap_or(i64::MAX)
        };
        let metrics = &self.metrics.plane;
        metrics.set(plane::Gauge::evenkeel_leaves_expiring, count(AlarmKind::Leaf));
        metrics.set(
            plane::Gauge::evenkeel_authorities_expiring,
            count(AlarmKind::Intermediate) + count(AlarmKind::Root) + count(AlarmKind::ExternalRoot),
        );
        self.count_lifetimes(unix(now));
        let mut known = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        for alarm in found.difference(&known.said) {
            let left = alarm.not_after.saturating_sub(unix(now));
            let identity = alarm.identity.as_deref();
            tracing::warn!(
                kind = alarm.kind.as_str(),
                of = alarm.of,
                identity,
                left_s = left,
                "a certificate has less than 30 % of its life left and was not replaced"
            );
        }
        known.said = found;
    }

    /// Publishes when the certificates of the signing authority expire.
    fn count_lifetimes(&self, now: u64) {
        let current = self.current();
        let (metrics, active) = (&self.metrics.plane, &current.state.active);
        let number = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
        let left = |at: u64| number(at).saturating_sub(number(now));
        metrics.set(plane::Gauge::citadel_server_root_cert_expiry_timestamp, number(active.root_not_after));
        metrics.set(plane::Gauge::citadel_server_root_cert_expiry_seconds, left(active.root_not_after));
        metrics.set(plane::Gauge::citadel_server_cert_chain_expiry_timestamp, number(active.not_after));
        metrics.set(plane::Gauge::citadel_server_cert_chain_expiry_seconds, left(active.not_after));
    }
}

/// Returns the certificates that expire soon. Workloads' certificates that have expired are left out, because their owners
/// are gone or have noticed; authorities are listed whether expired or not.
fn alarms(state: &State, ledgers: &Ledgers, now: u64) -> Vec<Alarm> {
    let authority = |kind: AlarmKind, signer: &Signer, (begin, end): (u64, u64)| {
        let alarm = Alarm { kind, of: signer.id.clone(), identity: None, not_after: end };
        is_near(begin, end, now).then_some(alarm)
    };
    let signers = state.trusted().flat_map(|signer| {
        let is_root = (signer.not_before, signer.not_after) == (signer.root_not_before, signer.root_not_after);
        let own = (!is_root).then(|| authority(AlarmKind::Intermediate, signer, (signer.not_before, signer.not_after)));
        [own.flatten(), authority(AlarmKind::Root, signer, (signer.root_not_before, signer.root_not_after))]
    });
    let leaves = ledgers.holders.iter().filter_map(|(name, holder)| {
        let near = holder.newest_not_after > now && is_near(holder.issued_at, holder.newest_not_after, now);
        let identity = Some(holder.identity.clone());
        near.then(|| Alarm { kind: AlarmKind::Leaf, of: name.clone(), identity, not_after: holder.newest_not_after })
    });
    signers.flatten().chain(leaves).take(MAX_ALARMS).collect()
}

fn is_near(begin: u64, end: u64, now: u64) -> bool {
    let (life, left) = (end.saturating_sub(begin), end.saturating_sub(now));
    (left as f64) < ALARM_BELOW * life as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use evenkeel_ca::rotation::{Origin, Record};
    use evenkeel_model::Snapshot;
    use tokio::sync::watch;

    use super::*;
    use crate::external_signer::SignerOptions;
    use crate::metrics::Metrics;
    use crate::world::World;

    fn signer(end: u64, root_end: u64) -> Signer {
        Signer {
            id: "a".to_owned(),
            key_id: "k".to_owned(),
            origin: Origin::Own,
            parent: None,
            not_before: 0,
            not_after: end,
            root_not_before: 0,
            root_not_after: root_end,
        }
    }

    #[test]
    fn an_alarm_names_the_workload_or_the_authority() {
        let issued = |name: &str, at: u64| Record::Issued {
            name: name.to_owned(),
            identity: format!("spiffe://cluster.local/ns/shop/sa/{name}"),
            signer: "a".to_owned(),
            serial: format!("{name}{at}"),
            bundle: "b".to_owned(),
            at: at * 1000,
            end: at + 100,
            pod: false,
        };
        let ledgers = Ledgers::of([issued("old", 0), issued("renewed", 0), issued("renewed", 50), issued("new", 70)]);
        let check = |of: Signer, now: u64, expected: &[(&str, &str)]| {
            let found = alarms(&State::steady(of, 0), &ledgers, now);
            let found: Vec<_> = found.iter().map(|alarm| (alarm.kind.as_str(), alarm.of.as_str())).collect();
            assert_eq!(found, expected, "{now}");
        };
        check(signer(1000, 1000), 60, &[]);
        check(signer(1000, 1000), 75, &[("leaf", "old")]);
        // An expired certificate has no owner, or one that has noticed.
        check(signer(1000, 1000), 101, &[]);
        check(signer(1000, 1000), 125, &[("leaf", "renewed")]);
        check(signer(1000, 5000), 800, &[("intermediate", "a")]);
        check(signer(5000, 1000), 800, &[("root", "a")]);
        check(signer(1000, 1000), 2000, &[("root", "a")]);
    }

    #[test]
    fn an_alarm_is_in_the_metrics_and_on_the_page_until_the_certificate_is_replaced() {
        let state = tempfile::tempdir().expect("a folder");
        let (_world, world) = watch::channel(Arc::new(World::of(Snapshot::default())));
        let (metrics, now) = (Arc::new(Metrics::default()), SystemTime::now());
        let authorities =
            Authorities::open(state.path().into(), None, SignerOptions::default(), world, metrics.clone(), now)
                .expect("authorities");
        let issue = |serial: &str, at: SystemTime| {
            let record = Record::Issued {
                name: "client-0.shop".to_owned(),
                identity: "spiffe://cluster.local/ns/shop/sa/client".to_owned(),
                signer: authorities.current().active.id().to_owned(),
                serial: serial.to_owned(),
                bundle: "b".to_owned(),
                at: super::super::millis(at),
                end: unix(at) + 1000,
                pod: false,
            };
            authorities.sign(at, |_| Ok::<_, ()>(((), record))).expect("signed");
        };
        let check = |seconds: u64, alarm: bool| {
            authorities.look_for_alarms(now + Duration::from_secs(seconds));
            let named: Vec<String> = authorities.alarms().into_iter().map(|alarm| alarm.of).collect();
            assert_eq!(named, if alarm { vec!["client-0.shop"] } else { vec![] }, "{seconds} s");
            let line = format!("evenkeel_leaves_expiring {}", u8::from(alarm));
            let page = metrics.page(evenkeel_stats::Exposition::Prometheus);
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        };
        issue("1", now);
        check(0, false);
        check(699, false);
        check(701, true);
        issue("2", now + Duration::from_secs(702));
        check(703, false);
    }

    #[test]
    fn less_than_three_tenths_of_a_life_are_an_alarm() {
        let check = |begin, end, now, expected| assert_eq!(is_near(begin, end, now), expected, "{begin} {end} {now}");
        check(0, 100, 0, false);
        check(0, 100, 70, false);
        check(0, 100, 71, true);
        check(0, 100, 200, true);
        check(1000, 2000, 1500, false);
        check(1000, 2000, 1800, true);
    }
}
