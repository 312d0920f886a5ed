//! Bars with error bars as SVG: medians, and the least and the greatest round.

use std::fmt::Write as _;

use evenkeel_measure::Spread;

/// One bar.
pub struct Bar {
    /// Its label.
    pub label: String,
    /// Its length and its error bar.
    pub spread: Spread,
}

/// A chart of bars.
pub struct Chart {
    /// The title.
    pub title: String,
    /// The unit, below the title.
    pub unit: String,
    /// Digits after the point.
    pub digits: usize,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

const LABELS: f64 = 330.0;
const BARS: f64 = 420.0;
const VALUES: f64 = 150.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 52.0;
/// Colours by the proxy that a label names.
const COLOURS: [(&str, &str); 2] = [("Evenkeel", "#1f77b4"), ("Envoy", "#d62728")];
const OTHER_COLOUR: &str = "#888888";

impl Chart {
    /// Its height in SVG units.
    pub fn height(&self) -> f64 {
        HEAD + ROW * self.bars.len() as f64 + 10.0
    }

    /// Its width in SVG units.
    pub fn width() -> f64 {
        LABELS + BARS + VALUES
    }

    /// The chart alone in an `svg` element.
    pub fn svg(&self) -> String {
        let (width, height) = (Self::width(), self.height());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n{}</svg>\n",
            self.group(0.0)
        )
    }

    /// The chart at a height inside another `svg` element.
    pub fn group(&self, top: f64) -> String {
        let mut out = format!("<g transform=\"translate(0 {top})\">\n");
        let (title, unit) = (escaped(&self.title), escaped(&self.unit));
        let _ = writeln!(out, "<text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"600\">{title}</text>");
        let _ = writeln!(
            out,
            "<text x=\"8\" y=\"38\" fill=\"#666\">{unit}; the lines are from the least to the greatest round</text>"
        );
        let greatest = self.bars.iter().map(|bar| bar.spread.max).fold(f64::MIN_POSITIVE, f64::max);
        for (index, bar) in self.bars.iter().enumerate() {
            self.row(&mut out, HEAD + ROW * index as f64, greatest, bar);
        }
        out.push_str("</g>\n");
        out
    }

    fn row(&self, out: &mut String, top: f64, greatest: f64, bar: &Bar) {
        let x = |value: f64| LABELS + value / greatest * BARS;
        let (middle, text) = (top + ROW / 2.0, top + ROW / 2.0 + 4.0);
        let Spread { median, min, max } = bar.spread;
        let (label, width, colour) = (escaped(&bar.label), x(median) - LABELS, colour(&bar.label));
        let _ = writeln!(out, "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{label}</text>", LABELS - 8.0);
        let _ = writeln!(
            out,
            "<rect x=\"{LABELS}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            top + 4.0,
            ROW - 8.0
        );
        let (left, right) = (x(min), x(max));
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {middle}H{right:.1}M{left:.1} {}v8M{right:.1} {}v8\" stroke=\"#000\" fill=\"none\"/>",
            middle - 4.0,
            middle - 4.0
        );
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{text}\">{median:.*}</text>", right + 8.0, self.digits);
    }
}

fn colour(label: &str) -> &'static str {
    COLOURS.iter().find(|(name, _)| label.contains(name)).map_or(OTHER_COLOUR, |(_, colour)| colour)
}

/// Text inside an element or an attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_to_scale_with_their_spread() {
        let bar = |label: &str, median: f64| Bar {
            label: label.to_owned(),
            spread: Spread { median, min: median / 2.0, max: median * 2.0 },
        };
        let bars = vec![bar("Evenkeel <mesh>", 50.0), bar("direct", 25.0)];
        let svg = Chart { title: "a & b".to_owned(), unit: "ms".to_owned(), digits: 1, bars }.svg();
        for expected in
            ["a &amp; b", "Evenkeel &lt;mesh&gt;", "width=\"210.0\"", "width=\"105.0\"", ">50.0<", "#1f77b4"]
        {
            assert!(svg.contains(expected), "{expected} is missing in {svg}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
