//! Whether connections come and go, rather than come to stay.

/// Looks a connection lives at most to count as one that comes and goes.
const BRIEF_LOOKS: u32 = 10;
/// Looks that are remembered, a bit each.
const HISTORY: u32 = 10;
/// In so many of them most that went must just have come. Once or twice it may be somebody who tried.
const MIN_LOOKS: u32 = 3;

/// Follows which connections were open for how long. No clock, no threads: one call per look.
#[derive(Debug, Default)]
pub(super) struct Churn {
    looks: u32,
    /// Connections closed since the last look: those that had just come, and others.
    brief: u32,
    others: u32,
}

impl Churn {
    /// A connection was closed that was open for so many looks.
    pub(super) fn closed(&mut self, looks: u32) {
        match looks <= BRIEF_LOOKS {
            true => self.brief += 1,
            false => self.others += 1,
        }
    }

    /// Takes the newest look in.
    pub(super) fn look(&mut self) {
        let most = self.brief > self.others;
        (self.brief, self.others) = (0, 0);
        self.looks = (self.looks << 1 | u32::from(most)) & ((1 << HISTORY) - 1);
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
    fn connections_that_stay_for_a_while_are_no_churn() {
        // Of each look: how long those were open that have closed.
        let check = |looks: &[&[u32]], expected: bool| {
            let mut churn = Churn::default();
            for closed in looks {
                closed.iter().for_each(|looks| churn.closed(*looks));
                churn.look();
            }
            assert_eq!(churn.is_on(), expected, "{looks:?}");
        };
        check(&[&[][..]; 20], false);
        check(&[&[11, 100, u32::MAX][..]; 20], false);
        check(&[&[1, 2, 20, 30][..]; 20], false);
        check(&[&[1, 2, 3, 30][..]; 20], true);
        check(&[&[0], &[], &[]], false);
        check(&[&[0, 0, 0, 0], &[1], &[]], false);
        check(&[&[0], &[100], &[3], &[], &[10]], true);
        check(&[[&[1][..]; 20], [&[][..]; 20]].concat(), false);
        check(&[[&[][..], &[], &[], &[], &[1]]; 10].concat(), false);
        check(&[[&[][..], &[], &[1]]; 10].concat(), true);
    }
}
