//! Picks any host with equal probability. Weights are ignored, as in Envoy.

use std::rc::Rc;

use super::balancer::{Balancer, Pick};
use crate::host::Host;

#[derive(Debug)]
struct RandomChoice(Vec<Rc<Host>>);

/// Random.
pub(super) fn new(hosts: Vec<Rc<Host>>) -> Box<dyn Balancer> {
    Box::new(RandomChoice(hosts))
}

impl Balancer for RandomChoice {
    fn pick(&self, pick: &Pick<'_>) -> Option<&Rc<Host>> {
        self.0.get(pick.random.below(self.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{hosts, spread};
    use super::*;
    use crate::random::Random;

    #[test]
    fn all_have_the_same_chance() {
        let random = Random::seeded(5);
        let seen = spread(&*new(hosts(&[1, 2, 7])), 3, 30_000, &random);
        assert!(seen.iter().all(|seen| seen.abs_diff(10_000) < 400), "{seen:?}");
        assert!(new(Vec::new()).pick(&Pick { hash: 0, attempt: 0, random: &random }).is_none());
    }
}
