//! Detects whether most connections are short-lived (churn).

/// A connection that lived for at most this many samples is short-lived.
const BRIEF_LOOKS: u32 = 10;
/// Looks remembered, one bit each.
const HISTORY: u32 = 10;
/// Number of samples in which most closed connections must have been short-lived. Fewer may be a single client's experiment.
const MIN_LOOKS: u32 = 3;

/// Tracks how long closed connections were open. It has no clock and no threads: one call per sample.
#[derive(Debug, Default)]
pub(super) struct Churn {
    samples: u32,
    /// Connections closed since the last sample: short-lived ones, and others.
    brief: u32,
    others: u32,
}

impl Churn {
    /// Records that a connection was closed after this many samples.
    pub(super) fn closed(&mut self, samples: u32) {
        if samples <= BRIEF_LOOKS { self.brief += 1 } else { self.others += 1 }
    }

    /// Ends the current sample.
    pub(super) fn observe(&mut self) {
        let most = self.brief > self.others;
        (self.brief, self.others) = (0, 0);
        self.samples = (self.samples << 1 | u32::from(most)) & ((1 << HISTORY) - 1);
    }

    /// Whether connections churn.
    pub(super) fn is_on(&self) -> bool {
        self.samples.count_ones() >= MIN_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_stay_for_a_while_are_no_churn() {
        // For each sample: the ages of the connections that closed in it.
        let check = |samples: &[&[u32]], expected: bool| {
            let mut churn = Churn::default();
            for closed in samples {
                closed.iter().for_each(|samples| churn.closed(*samples));
                churn.observe();
            }
            assert_eq!(churn.is_on(), expected, "{samples:?}");
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
