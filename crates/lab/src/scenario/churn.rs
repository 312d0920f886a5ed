//! Changes endpoints and services together, in a random order that the seed determines.

use std::collections::BTreeMap;

use super::ticks::Ticks;
use crate::changes::ChangeKind;
use crate::error::LabError;
use crate::mesh::{self, Address};
use crate::results::Results;
use crate::testbed::Testbed;

/// The most endpoints of a service.
const MAX_ENDPOINTS: usize = 6;
/// The number of attempts to find a service without a pending change.
const ATTEMPTS: usize = 16;

pub async fn run(mut testbed: Testbed) -> Result<Results, LabError> {
    let changes = testbed.options.changes;
    testbed.progress.begin("changing", changes as u64);
    let mut population = Population::new(&testbed);
    let begin = testbed.mark()?;
    let mut ticks = Ticks::new(testbed.options.interval);
    for number in 0..changes {
        ticks.next(&mut testbed, |_| ()).await?;
        population.change(&mut testbed)?;
        testbed.progress.at(number as u64 + 1);
    }
    testbed.wait_settled().await?;
    let cost = testbed.cost_since(begin)?;
    Ok(testbed.results("churn", cost))
}

/// The current services, and the random generator.
struct Population {
    services: BTreeMap<usize, Vec<Address>>,
    next_service: usize,
    next_endpoint: usize,
    random: Random,
}

impl Population {
    fn new(testbed: &Testbed) -> Self {
        let services = (0..testbed.options.services).map(|service| (service, mesh::first_endpoints(service).to_vec()));
        Self {
            services: services.collect(),
            next_service: testbed.first_free_service(),
            next_endpoint: 0,
            random: Random::new(testbed.options.seed),
        }
    }

    /// Makes one change. Of ten changes, three add an endpoint, three remove one, two add a service and two remove one.
    fn change(&mut self, testbed: &mut Testbed) -> Result<(), LabError> {
        let die = self.random.below(10);
        let Some(service) = self.quiet_service(testbed).filter(|_| die < 8) else { return self.add_service(testbed) };
        let endpoints = self.services.get(&service).map_or(0, Vec::len);
        match die {
            0..3 if endpoints < MAX_ENDPOINTS => self.add_endpoint(testbed, service),
            0..6 if endpoints > 1 => self.remove_endpoint(testbed, service),
            0..6 => self.add_endpoint(testbed, service),
            _ => {
                self.services.remove(&service);
                testbed.change(ChangeKind::RemoveService, service, None, &[])?;
                Ok(())
            }
        }
    }

    /// Returns a service without a pending change.
    fn quiet_service(&mut self, testbed: &Testbed) -> Option<usize> {
        (0..ATTEMPTS).find_map(|_| {
            let place = self.random.below(self.services.len());
            self.services.keys().nth(place).copied().filter(|service| !testbed.fleet.tracker().is_changing(*service))
        })
    }

    fn add_service(&mut self, testbed: &mut Testbed) -> Result<(), LabError> {
        let service = self.next_service;
        self.next_service += 1;
        let endpoints = mesh::first_endpoints(service).to_vec();
        testbed.change(ChangeKind::AddService, service, None, &endpoints)?;
        self.services.insert(service, endpoints);
        Ok(())
    }

    fn add_endpoint(&mut self, testbed: &mut Testbed, service: usize) -> Result<(), LabError> {
        let new = mesh::further_endpoint(self.next_endpoint);
        self.next_endpoint += 1;
        let Some(endpoints) = self.services.get_mut(&service) else { return Ok(()) };
        endpoints.push(new);
        testbed.change(ChangeKind::AddEndpoint, service, Some(new), endpoints)?;
        Ok(())
    }

    fn remove_endpoint(&mut self, testbed: &mut Testbed, service: usize) -> Result<(), LabError> {
        let Some(endpoints) = self.services.get_mut(&service) else { return Ok(()) };
        let gone = endpoints.remove(self.random.below(endpoints.len()));
        testbed.change(ChangeKind::RemoveEndpoint, service, Some(gone), endpoints)?;
        Ok(())
    }
}

/// A xorshift64 generator, which is good enough for choosing changes.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let throw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(throw(1), throw(1));
        assert_ne!(throw(1), throw(2));
        let mut seen = throw(0);
        seen.sort();
        seen.dedup();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}
