//! Bars: what a project promises of a measurement, held against what was measured.

use serde::{Deserialize, Serialize};

use crate::markdown;
use crate::statistics::{number, show_numbers};
use crate::{Limit, Spread, Verdict};

/// A measurement and its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Entry", try_from = "Entry")]
pub struct Bar {
    /// The scenario or run that it belongs to.
    pub scenario: String,
    /// What was measured.
    pub what: String,
    /// Its unit; empty for ratios.
    pub unit: String,
    /// The limit; `None` if the value is only recorded.
    pub limit: Option<Limit>,
    /// The measured value; `None` if its run is missing.
    pub measured: Option<Spread>,
}

/// A bar as results files have it, with the verdict for readers.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    scenario: String,
    what: String,
    unit: String,
    sign: Option<String>,
    limit: Option<f64>,
    measured: Option<Spread>,
    verdict: String,
}

impl From<Bar> for Entry {
    fn from(bar: Bar) -> Self {
        let parts = bar.limit.map(Limit::parts);
        Self {
            verdict: bar.verdict().as_str().to_owned(),
            sign: parts.map(|(sign, _)| sign.to_owned()),
            limit: parts.map(|(_, limit)| limit),
            scenario: bar.scenario,
            what: bar.what,
            unit: bar.unit,
            measured: bar.measured,
        }
    }
}

impl TryFrom<Entry> for Bar {
    type Error = String;

    fn try_from(entry: Entry) -> Result<Self, String> {
        let limit = match (entry.sign.as_deref(), entry.limit) {
            (Some(sign), Some(limit)) => {
                Some(Limit::from_parts(sign, limit).ok_or_else(|| format!("{}: the sign {sign:?}", entry.what))?)
            }
            _ => None,
        };
        let Entry { scenario, what, unit, measured, .. } = entry;
        Ok(Self { scenario, what, unit, limit, measured })
    }
}

impl Bar {
    /// Whether the median is within the limit.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self.measured.map(|spread| spread.median), self.limit)
    }

    /// The median divided by the limit.
    pub fn ratio(&self) -> Option<f64> {
        let limit = self.limit.map(|limit| limit.parts().1).filter(|limit| *limit > 0.0)?;
        Some(self.measured?.median / limit)
    }

    fn row(&self) -> Vec<String> {
        let unit = |text: String| format!("{text} {}", self.unit).trim_end().to_owned();
        let dash = || "–".to_owned();
        vec![
            self.what.clone(),
            self.measured.map_or_else(dash, |spread| unit(show_numbers(spread))),
            self.limit.map(Limit::parts).map_or_else(dash, |(sign, limit)| unit(format!("{sign} {}", number(limit)))),
            self.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
            self.verdict().as_str().to_owned(),
        ]
    }
}

/// All bars as a table of Markdown.
pub fn table(bars: &[Bar]) -> String {
    let rows: Vec<_> = bars.iter().map(Bar::row).collect();
    markdown::table(&["bar", "measured", "limit", "measured ÷ limit", "verdict"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(limit: Option<Limit>, measured: Option<f64>) -> Bar {
        let measured = measured.map(Spread::one);
        Bar { scenario: "full".to_owned(), what: "x".to_owned(), unit: "ms".to_owned(), limit, measured }
    }

    #[test]
    fn a_bar_is_held_missed_or_not_measured() {
        let check = |limit, measured, expected: Verdict, ratio: Option<f64>| {
            let bar = bar(limit, measured);
            assert_eq!((bar.verdict(), bar.ratio()), (expected, ratio));
            let text = serde_json::to_string(&bar).expect("JSON");
            assert_eq!(serde_json::from_str::<Bar>(&text).expect("a bar"), bar, "{text}");
        };
        check(Some(Limit::AtMost(10.0)), Some(5.0), Verdict::Pass, Some(0.5));
        check(Some(Limit::AtMost(10.0)), Some(20.0), Verdict::Miss, Some(2.0));
        check(Some(Limit::AtLeast(10.0)), Some(20.0), Verdict::Pass, Some(2.0));
        check(Some(Limit::Below(0.0)), Some(1.0), Verdict::Miss, None);
        check(Some(Limit::AtMost(0.0)), Some(0.0), Verdict::Pass, None);
        check(None, Some(1.0), Verdict::Recorded, None);
        check(Some(Limit::AtMost(1.0)), None, Verdict::NotMeasured, None);
    }

    #[test]
    fn bars_make_a_table() {
        let spread = Spread { median: 1.25, min: 1.0, max: 2.0 };
        let bars = [
            Bar { measured: Some(spread), ..bar(Some(Limit::AtMost(1.5)), None) },
            Bar { unit: String::new(), ..bar(None, None) },
        ];
        let expected = "\
| bar |            measured |     limit | measured ÷ limit |      verdict |
| --- | ------------------: | --------: | ---------------: | -----------: |
| x   | 1.25 (1.00–2.00) ms | ≤ 1.50 ms |             0.83 |         pass |
| x   |                   – |         – |                – | not measured |
";
        assert_eq!(table(&bars), expected);
    }
}
