//! Limits of what is measured. They are printed with each run, and never asserted in a test: shared machines are noisy.

/// The limit of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// It may be as great.
    AtMost(f64),
    /// It may be as small.
    AtLeast(f64),
    /// It has to be less.
    Below(f64),
}

/// A value compared with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is within the limit.
    Pass,
    /// It is not.
    Miss,
    /// There is no limit.
    Recorded,
    /// There is no value.
    NotMeasured,
}

impl Limit {
    /// Its sign and its number.
    pub fn parts(self) -> (&'static str, f64) {
        match self {
            Self::AtMost(limit) => ("≤", limit),
            Self::AtLeast(limit) => ("≥", limit),
            Self::Below(limit) => ("<", limit),
        }
    }

    /// The limit with this sign and number; `None` for another sign.
    pub fn from_parts(sign: &str, limit: f64) -> Option<Self> {
        let all = [Self::AtMost(limit), Self::AtLeast(limit), Self::Below(limit)];
        all.into_iter().find(|one| one.parts().0 == sign)
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Below(limit) => value < limit,
        }
    }
}

impl Verdict {
    /// Compares what was measured with the limit.
    pub fn of(measured: Option<f64>, limit: Option<Limit>) -> Self {
        match (measured, limit) {
            (None, _) => Self::NotMeasured,
            (Some(_), None) => Self::Recorded,
            (Some(value), Some(limit)) if limit.holds(value) => Self::Pass,
            (Some(_), Some(_)) => Self::Miss,
        }
    }

    /// As it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Miss => "MISS",
            Self::Recorded => "recorded",
            Self::NotMeasured => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Limit::{AtLeast, AtMost, Below};
    use super::*;

    #[test]
    fn values_pass_on_their_side_of_the_limit() {
        let check = |value: f64, limit: Limit, expected: Verdict| {
            assert_eq!(Verdict::of(Some(value), Some(limit)), expected, "{value} {limit:?}");
        };
        check(1.5, AtMost(1.6), Verdict::Pass);
        check(1.6, AtMost(1.6), Verdict::Pass);
        check(1.7, AtMost(1.6), Verdict::Miss);
        check(3.1, AtLeast(3.0), Verdict::Pass);
        check(3.0, AtLeast(3.0), Verdict::Pass);
        check(2.9, AtLeast(3.0), Verdict::Miss);
        check(0.9, Below(1.0), Verdict::Pass);
        check(1.0, Below(1.0), Verdict::Miss);
        assert_eq!(Verdict::of(None, Some(AtMost(1.0))).as_str(), "not measured");
        assert_eq!(Verdict::of(Some(1.0), None).as_str(), "recorded");
    }
}
