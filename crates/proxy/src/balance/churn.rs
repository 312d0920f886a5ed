//! Whether connections come and go, rather than come to stay.

/// Looks that are remembered, a bit each.
const HISTORY: u32 = 10;
/// In so many of them some must have been opened and some closed. Once or twice it may be a crowd that leaves and one that
/// comes.
const MIN_LOOKS: u32 = 3;

/// Follows how many connections are opened and closed. No clock, no threads: one call per look.
#[derive(Debug, Default)]
pub(super) struct Churn {
    looks: u32,
    active: u32,
}

impl Churn {
    /// Takes the newest look in: so many connections were opened since the last, and so many are open now.
    pub(super) fn look(&mut self, opened: u32, active: u32) {
        let closed = self.active.saturating_add(opened).saturating_sub(active);
        self.active = active;
        self.looks = (self.looks << 1 | u32::from(opened > 0 && closed > 0)) & ((1 << HISTORY) - 1);
    }

    /// Whether they come and go.
    pub(super) fn is_on(&self) -> bool {
        self.looks.count_ones() >= MIN_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_leaves_and_one_that_comes_are_no_churn() {
        let check = |looks: &[(u32, u32)], expected: bool| {
            let mut churn = Churn::default();
            let mut active = 1000;
            churn.look(active, active);
            for (opened, closed) in looks {
                active = active + opened - closed;
                churn.look(*opened, active);
            }
            assert_eq!(churn.is_on(), expected, "{looks:?}");
        };
        check(&[(0, 0); 20], false);
        check(&[(64, 0); 20], false);
        check(&[(0, 40); 20], false);
        check(&[(0, 300), (10, 340), (200, 0), (200, 0), (200, 0)], false);
        check(&[(1, 1), (0, 0), (7, 2), (0, 0), (1, 1)], true);
        check(&[[(1, 1); 20], [(0, 0); 20]].concat(), false);
        check(&[[(0, 0), (0, 0), (0, 0), (0, 0), (1, 1)]; 10].concat(), false);
        check(&[[(0, 0), (0, 0), (1, 1)]; 10].concat(), true);
    }
}
