//! Conditions on a request, over finitely many classes of each attribute; and the search for a request that meets them.

/// Maximum number of steps of one search; with more, nothing is decided.
const MAX_STEPS: usize = 400_000;

/// A set of classes of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set(Vec<u64>);

impl Set {
    /// Returns the classes for which `is_in` is true, of `count` classes.
    pub fn of(count: usize, is_in: impl Fn(usize) -> bool) -> Self {
        let mut words = vec![0; count.div_ceil(64)];
        for at in (0..count).filter(|at| is_in(*at)) {
            words[at / 64] |= 1 << (at % 64);
        }
        Self(words)
    }

    fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
    }

    fn without(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a & !b).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn first(&self) -> Option<usize> {
        let at = self.0.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.0[at].trailing_zeros() as usize)
    }
}

/// A condition.
#[derive(Debug, Clone)]
pub enum Formula {
    /// Always or never.
    Const(bool),
    /// The attribute is in one of these classes.
    Is(usize, Set),
    /// All of them.
    And(Vec<Formula>),
    /// One of them.
    Or(Vec<Formula>),
    /// Not it.
    Not(Box<Formula>),
}

/// A search that takes too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the policies have too many combinations to be decided about")]
pub struct TooLong;

/// The value of a formula when attributes are restricted; `Open` names a condition that is still undecided.
enum Known<'f> {
    Yes,
    No,
    Open(usize, &'f Set),
}

impl Formula {
    fn known<'f>(&'f self, domains: &[Set]) -> Known<'f> {
        match self {
            Self::Const(true) => Known::Yes,
            Self::Const(false) => Known::No,
            Self::Is(attribute, set) => match domains.get(*attribute) {
                None => Known::No,
                Some(domain) if domain.and(set).is_empty() => Known::No,
                Some(domain) if domain.without(set).is_empty() => Known::Yes,
                Some(_) => Known::Open(*attribute, set),
            },
            Self::Not(inner) => match inner.known(domains) {
                Known::Yes => Known::No,
                Known::No => Known::Yes,
                open => open,
            },
            Self::And(all) => {
                let mut open = None;
                for one in all {
                    match one.known(domains) {
                        Known::No => return Known::No,
                        Known::Yes => {}
                        found => open = open.or(Some(found)),
                    }
                }
                open.unwrap_or(Known::Yes)
            }
            Self::Or(all) => {
                let mut open = None;
                for one in all {
                    match one.known(domains) {
                        Known::Yes => return Known::Yes,
                        Known::No => {}
                        found => open = open.or(Some(found)),
                    }
                }
                open.unwrap_or(Known::No)
            }
        }
    }

    /// A class of each attribute that meets the condition, or none if nothing does. `counts`: how many classes each
    /// attribute has.
    pub fn solve(&self, counts: &[usize]) -> Result<Option<Vec<usize>>, TooLong> {
        let domains: Vec<Set> = counts.iter().map(|count| Set::of(*count, |_| true)).collect();
        let mut stack = vec![domains];
        for _ in 0..MAX_STEPS {
            let Some(domains) = stack.pop() else { return Ok(None) };
            match self.known(&domains) {
                Known::No => {}
                Known::Yes => match domains.iter().map(Set::first).collect() {
                    Some(found) => return Ok(Some(found)),
                    None => continue,
                },
                Known::Open(attribute, set) => {
                    // The last is tried first.
                    for part in [domains[attribute].without(set), domains[attribute].and(set)] {
                        let mut next = domains.clone();
                        next[attribute] = part;
                        stack.push(next);
                    }
                }
            }
        }
        Err(TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(attribute: usize, classes: &[usize]) -> Formula {
        Formula::Is(attribute, Set::of(5, |at| classes.contains(&at)))
    }

    fn holds(formula: &Formula, at: &[usize]) -> bool {
        match formula {
            Formula::Const(value) => *value,
            Formula::Is(attribute, set) => !set.and(&Set::of(5, |class| class == at[*attribute])).is_empty(),
            Formula::And(all) => all.iter().all(|one| holds(one, at)),
            Formula::Or(all) => all.iter().any(|one| holds(one, at)),
            Formula::Not(inner) => !holds(inner, at),
        }
    }

    /// A formula from a stream of numbers.
    fn random(next: &mut dyn FnMut() -> usize, depth: usize) -> Formula {
        let several = |next: &mut dyn FnMut() -> usize| -> Vec<Formula> {
            let count = next() % 4;
            (0..count).map(|_| random(next, depth - 1)).collect()
        };
        match if depth == 0 { 0 } else { next() % 5 } {
            0 | 4 => {
                let (attribute, mask) = (next() % 3, next());
                Formula::Is(attribute, Set::of(5, |class| mask >> class & 1 == 1))
            }
            1 => Formula::And(several(next)),
            2 => Formula::Or(several(next)),
            _ => Formula::Not(Box::new(random(next, depth - 1))),
        }
    }

    #[test]
    fn the_search_agrees_with_trying_everything() {
        let mut seed = 7_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let mut met = [0, 0];
        for _ in 0..20_000 {
            let formula = random(&mut next, 4);
            let points = (0..125).map(|n| vec![n % 5, n / 5 % 5, n / 25]);
            let expected = points.clone().any(|at| holds(&formula, &at));
            let found = formula.solve(&[5, 5, 5]).expect("small");
            assert_eq!(found.is_some(), expected, "{formula:?}");
            assert!(found.is_none_or(|at| holds(&formula, &at)), "{formula:?}");
            met[usize::from(expected)] += 1;
        }
        assert!(met[0] > 1000 && met[1] > 1000, "{met:?}");
        // A thousand exceptions are no thousand factors.
        let mut all = vec![is(0, &[0, 1])];
        all.extend((0..1000).map(|_| Formula::Not(Box::new(Formula::And(vec![is(0, &[0]), is(1, &[1, 2])])))));
        assert!(Formula::And(all).solve(&[5, 5, 5]).expect("small").is_some());
    }
}
