//! `envoy.type.v3.FractionalPercent`, compiled.

/// A fraction of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    /// Numerator.
    pub numerator: u32,
    /// Denominator; never 0.
    pub denominator: u32,
}

impl Fraction {
    /// No request.
    pub const NONE: Self = Self { numerator: 0, denominator: 100 };
    /// All requests.
    pub const ALL: Self = Self { numerator: 100, denominator: 100 };

    /// Whether a request is included. `random` is called only if that is not certain.
    pub fn covers(self, random: impl FnOnce() -> u64) -> bool {
        match self.numerator {
            0 => false,
            all if all >= self.denominator => true,
            some => random() % u64::from(self.denominator.max(1)) < u64::from(some),
        }
    }

    /// As parts per million, at most all of them.
    pub fn parts_per_million(self) -> u32 {
        let parts = u64::from(self.numerator) * 1_000_000 / u64::from(self.denominator.max(1));
        u32::try_from(parts.min(1_000_000)).unwrap_or(1_000_000)
    }

    /// Limits the numerator.
    pub fn at_most(self, numerator: u32) -> Self {
        Self { numerator: self.numerator.min(numerator), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_parts_per_million() {
        let check = |numerator, denominator, expected| {
            assert_eq!(Fraction { numerator, denominator }.parts_per_million(), expected, "{numerator}/{denominator}");
        };
        check(0, 100, 0);
        check(30, 100, 300_000);
        check(7, 10_000, 700);
        check(3, 1_000_000, 3);
        check(u32::MAX, 100, 1_000_000);
    }

    #[test]
    fn a_share_is_drawn_only_where_it_matters() {
        let of = |numerator, denominator| Fraction { numerator, denominator };
        for (fraction, random, expected) in [
            (of(0, 100), None, false),
            (of(100, 100), None, true),
            (of(150, 100), None, true),
            (of(30, 100), Some(129), true),
            (of(30, 100), Some(130), false),
            (of(1, 1_000_000), Some(3_000_000), true),
            (of(1, 1_000_000), Some(1), false),
            (of(30, 100).at_most(20), Some(20), false),
            (of(30, 100).at_most(50), Some(29), true),
        ] {
            assert_eq!(fraction.covers(|| random.unwrap()), expected, "{fraction:?} {random:?}");
        }
    }
}
