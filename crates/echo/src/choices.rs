//! Values with shares, such as `503:5,404:10`: how a request says which responses it wants.

/// The value that a random number chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<T> {
    /// This one.
    Value(T),
    /// None of the values: their shares are less than all.
    Rest,
    /// The list is wrong.
    Invalid,
}

/// Rounding errors of shares that are all together.
const TOLERANCE: f64 = 0.001;

/// Chooses from a list: one value alone, or values with shares in per cent. `at` is a random number from 0 to 100.
pub fn choose<T>(list: &str, at: f64, parse: impl Fn(&str) -> Option<T>) -> Choice<T> {
    if !list.contains([',', ':']) {
        return parse(list).map_or(Choice::Invalid, Choice::Value);
    }
    let (mut below, mut chosen) = (0.0, Choice::Rest);
    for entry in list.split(',') {
        let parts = entry.split_once(':').and_then(|(value, share)| parse(value).zip(share.parse::<f64>().ok()));
        let Some((value, share)) = parts.filter(|(_, share)| (0.0..=100.0).contains(share)) else {
            return Choice::Invalid;
        };
        below += share;
        if below > 100.0 + TOLERANCE {
            return Choice::Invalid;
        }
        if matches!(chosen, Choice::Rest) && at < below {
            chosen = Choice::Value(value);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_decide() {
        let check = |list: &str, at: f64, expected: Choice<u16>| {
            assert_eq!(choose(list, at, |text| text.parse().ok()), expected, "{list} at {at}");
        };
        check("503", 99.9, Choice::Value(503));
        check("503:50", 49.9, Choice::Value(503));
        check("503:50", 50.0, Choice::Rest);
        check("503:5,404:10.5", 15.4, Choice::Value(404));
        check("503:5,404:10.5", 15.6, Choice::Rest);
        check("503:33.3,404:33.3,500:33.4", 99.99, Choice::Value(500));
        for wrong in ["", "x", "503:x", "503,404", "503:60,404:60", "503:-1", "503:NaN", ","] {
            check(wrong, 10.0, Choice::Invalid);
        }
    }
}
