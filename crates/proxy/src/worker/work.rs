//! A connection's recent work, and the order to move that may result from it.

/// Looks after which an order to move expires.
const LIFETIME: u32 = 5;
/// Fractional bits of the fixed-point number that holds work, which decays.
const FRACTION_BITS: u32 = 10;

/// A connection's recent work, reduced by a quarter at every sample.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Work {
    recent: u32,
    epoch: u32,
}

impl Work {
    #[inline]
    pub(super) fn add(&mut self, units: u32, epoch: u32) {
        let recent = self.at(epoch);
        *self = Self { recent: recent.saturating_add(units << FRACTION_BITS), epoch };
    }

    /// Adds the work of another connection.
    pub(super) fn absorb(&mut self, other: Self, epoch: u32) {
        *self = Self { recent: self.at(epoch).saturating_add(other.at(epoch)), epoch };
    }

    /// The sample in which work was last done.
    pub(super) fn last(self) -> Option<u32> {
        (self.recent > 0).then_some(self.epoch)
    }

    /// What is left of it in sample `epoch`.
    #[inline]
    pub(super) fn at(self, epoch: u32) -> u32 {
        match epoch.wrapping_sub(self.epoch) {
            0 => self.recent,
            samples => (0..samples.min(64)).fold(self.recent, |recent, _| recent - recent.div_ceil(4)),
        }
    }
}

/// Why a connection has to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its worker has too much load.
    Load,
    /// Its worker has more connections than the other; checked again when it moves.
    Count,
}

/// An order to move to another worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    /// The destination worker.
    pub(super) to: u16,
    pub(super) cause: Cause,
    /// The sample in which the order was given.
    pub(super) epoch: u32,
}

impl Order {
    /// The destination and the cause, unless the order has expired.
    pub(super) fn at(self, epoch: u32) -> Option<(usize, Cause)> {
        (epoch.wrapping_sub(self.epoch) <= LIFETIME).then_some((usize::from(self.to), self.cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_fades() {
        let mut work = Work::default();
        work.add(16, 10);
        assert_eq!(work.at(10), 16 << FRACTION_BITS);
        assert_eq!(work.at(11), 12 << FRACTION_BITS);
        work.add(4, 11);
        assert_eq!(work.at(11), 16 << FRACTION_BITS);
        assert_eq!(work.at(60), 0);
        let mut other = Work::default();
        other.add(8, 60);
        work.absorb(other, 61);
        assert_eq!((work.at(61), work.last()), (6 << FRACTION_BITS, Some(61)));
        work = Work::default();
        assert_eq!((work.at(61), work.last()), (0, None));
        work.add(1, u32::MAX);
        assert_eq!(work.at(0), 3 << (FRACTION_BITS - 2), "the count of samples wraps");
    }
}
