//! Bars with error bars: medians, and the least and the greatest round.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, COLOURS, Drawn, FONT, GREY, INK, document};
use crate::Spread;

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct BarRow {
    /// Its label.
    pub label: String,
    /// Its length and its error bar.
    pub spread: Spread,
    /// Bars of one group have one colour.
    pub group: usize,
}

/// A chart of horizontal bars.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    /// The title.
    pub title: String,
    /// The unit, below the title.
    pub unit: String,
    /// Digits after the point.
    pub digits: usize,
    /// From top to bottom.
    pub rows: Vec<BarRow>,
}

const LABELS: i32 = 330;
const BARS: i32 = 420;
const VALUES: i32 = 150;
const ROW: i32 = 24;
const HEAD: i32 = 52;
/// From a bar to the edge of its row.
const GAP: i32 = 4;

impl BarChart {
    /// The chart alone.
    pub fn svg(&self) -> String {
        Self::all(std::slice::from_ref(self))
    }

    /// Charts below each other in one document.
    pub fn all(charts: &[Self]) -> String {
        let height = charts.iter().map(Self::height).sum::<i32>();
        document((LABELS + BARS + VALUES).unsigned_abs(), height.unsigned_abs(), |area| {
            let mut top = 0;
            charts.iter().try_for_each(|chart| {
                let drawn = chart.draw(area, top);
                top += chart.height();
                drawn
            })
        })
    }

    fn height(&self) -> i32 {
        HEAD + ROW * i32::try_from(self.rows.len()).unwrap_or(0) + 10
    }

    fn draw(&self, area: &Area<'_>, top: i32) -> Drawn {
        area.draw_text(&self.title, &TextStyle::from((FONT, 15)).color(&INK), (8, top + 6))?;
        let unit = format!("{}; the lines are from the least to the greatest round", self.unit);
        area.draw_text(&unit, &TextStyle::from((FONT, 12)).color(&GREY), (8, top + 28))?;
        let greatest = self.rows.iter().map(|row| row.spread.max).fold(f64::MIN_POSITIVE, f64::max);
        let mut at = top + HEAD;
        for row in &self.rows {
            self.draw_row(area, at, &|value| LABELS + (value / greatest * f64::from(BARS)).round() as i32, row)?;
            at += ROW;
        }
        Ok(())
    }

    fn draw_row(&self, area: &Area<'_>, top: i32, x: &dyn Fn(f64) -> i32, row: &BarRow) -> Drawn {
        let Spread { median, min, max } = row.spread;
        let middle = top + ROW / 2;
        let label = TextStyle::from((FONT, 12)).color(&GREY).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(&row.label, &label, (LABELS - 8, middle))?;
        let colour = COLOURS[row.group % COLOURS.len()];
        area.draw(&Rectangle::new([(LABELS, top + GAP), (x(median), top + ROW - GAP)], colour.filled()))?;
        let lines = [
            [(x(min), middle), (x(max), middle)],
            [(x(min), middle - GAP), (x(min), middle + GAP)],
            [(x(max), middle - GAP), (x(max), middle + GAP)],
        ];
        lines.into_iter().try_for_each(|line| area.draw(&PathElement::new(line, INK.stroke_width(1))))?;
        let value = TextStyle::from((FONT, 12)).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&format!("{median:.*}", self.digits), &value, (x(max) + 8, middle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_to_scale_with_their_spread() {
        let row = |label: &str, median: f64| BarRow {
            label: label.to_owned(),
            spread: Spread { median, min: median / 2.0, max: median * 2.0 },
            group: 0,
        };
        let rows = vec![row("Evenkeel <mesh>", 50.0), row("direct", 25.0)];
        let svg = BarChart { title: "a & b".to_owned(), unit: "ms".to_owned(), digits: 1, rows }.svg();
        for expected in ["a &amp; b", "Evenkeel &lt;mesh&gt;", "width=\"210\"", "width=\"105\"", "\n50.0\n", "#0072B2"]
        {
            assert!(svg.contains(expected), "{expected} is missing in {svg}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
