//! SVG figures: panels with axes, lines and points, readable on light and dark pages.

mod axis;

use std::fmt::Write;

pub use axis::Axis;

/// The width of one panel including its labels, in pixels.
const PANEL_WIDTH: f64 = 440.0;
/// The height of one panel including its labels, in pixels.
const PANEL_HEIGHT: f64 = 270.0;
/// The margins around a panel's plot: left, right, top, bottom.
const MARGIN: [f64; 4] = [64.0, 18.0, 52.0, 46.0];
/// The height of the title and subtitle above the panels.
const HEAD_HEIGHT: f64 = 62.0;
/// The padding at the left and right of the figure.
const PAD: f64 = 10.0;
/// The approximate width of a character of the small text.
const CHARACTER: f64 = 6.1;

/// Colours that people with red-green colour blindness can distinguish (Okabe and Ito's palette, without yellow).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#444444"];

/// A figure: panels in rows of two.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The title.
    pub title: String,
    /// The conditions of the measurement.
    pub subtitle: String,
    /// The panels.
    pub panels: Vec<Panel>,
}

/// One plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The data.
    pub series: Vec<Series>,
    /// A limit on the vertical axis, and its label.
    pub bar: Option<(f64, String)>,
}

impl Panel {
    /// A panel without a limit.
    pub fn new(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { title: title.to_owned(), x, y, series, bar: None }
    }
}

/// A data series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The points, by x.
    pub points: Vec<(f64, f64)>,
    /// How they are drawn.
    pub style: Style,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line through them.
    Line,
    /// Points without a line.
    Dots,
    /// Points and a line.
    LineAndDots,
}

impl Series {
    /// Creates a series. Points that are not finite are left out.
    pub fn new(name: &str, style: Style, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        Self { name: name.to_owned(), points, style }
    }
}

impl Figure {
    /// The SVG document.
    pub fn svg(&self) -> String {
        let panels: Vec<&Panel> = self.panels.iter().filter(|panel| panel.has_points()).collect();
        let columns = if panels.len() > 1 { 2 } else { 1 };
        let rows = panels.len().div_ceil(columns).max(1);
        // A single panel takes the width of two.
        let panel_width = if columns == 1 { 2.0 * PANEL_WIDTH } else { PANEL_WIDTH };
        let width = 2.0 * PANEL_WIDTH + 2.0 * PAD;
        let height = HEAD_HEIGHT + rows as f64 * PANEL_HEIGHT + PAD;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"11\" fill=\"#333\">"
        );
        let _ = writeln!(
            out,
            "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#fff\" stroke=\"#d8dde3\"/>",
            width - 1.0,
            height - 1.0
        );
        text(&mut out, (PAD + 12.0, 28.0), "font-size=\"17\" font-weight=\"600\" fill=\"#111\"", &self.title);
        text(&mut out, (PAD + 12.0, 47.0), "fill=\"#666\"", &self.subtitle);
        for (index, panel) in panels.into_iter().enumerate() {
            let left = PAD + (index % columns) as f64 * PANEL_WIDTH;
            let top = HEAD_HEIGHT + (index / columns) as f64 * PANEL_HEIGHT;
            panel.draw(&mut out, left, top, panel_width);
        }
        out += "</svg>\n";
        out
    }
}

/// Converts a panel's values to positions on the page.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Panel {
    fn has_points(&self) -> bool {
        self.series.iter().any(|series| !series.points.is_empty())
    }

    fn draw(&self, out: &mut String, left: f64, top: f64, width: f64) {
        let [margin_left, margin_right, margin_top, margin_bottom] = MARGIN;
        let frame = Frame {
            left: left + margin_left,
            right: left + width - margin_right,
            top: top + margin_top,
            bottom: top + PANEL_HEIGHT - margin_bottom,
        };
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = self.x.ticks(points().map(|(x, _)| *x));
        let y = self.y.ticks(points().map(|(_, y)| *y).chain(self.bar.iter().map(|(limit, _)| *limit)));
        let place_x = |value: f64| frame.left + x.fraction(value) * (frame.right - frame.left);
        let place_y = |value: f64| frame.bottom - y.fraction(value) * (frame.bottom - frame.top);

        text(out, (left + 12.0, top + 18.0), "font-size=\"13\" font-weight=\"600\" fill=\"#111\"", &self.title);
        self.legend(out, left + 12.0, top + 37.0);
        for (value, label) in y.labels() {
            let at = place_y(value);
            line(out, (frame.left, at), (frame.right, at), "stroke=\"#e6e9ed\"");
            text(out, (frame.left - 7.0, at + 3.5), "text-anchor=\"end\" fill=\"#666\"", &label);
        }
        for (value, label) in x.labels() {
            let at = place_x(value);
            line(out, (at, frame.bottom), (at, frame.bottom + 4.0), "stroke=\"#9aa3ad\"");
            text(out, (at, frame.bottom + 16.0), "text-anchor=\"middle\" fill=\"#666\"", &label);
        }
        line(out, (frame.left, frame.bottom), (frame.right, frame.bottom), "stroke=\"#9aa3ad\"");
        let middle = f64::midpoint(frame.left, frame.right);
        text(out, (middle, frame.bottom + 33.0), "text-anchor=\"middle\" fill=\"#444\"", &self.x.label);
        let (at_x, at_y) = (left + 16.0, f64::midpoint(frame.top, frame.bottom));
        let turned = format!("text-anchor=\"middle\" fill=\"#444\" transform=\"rotate(-90 {at_x:.1} {at_y:.1})\"");
        text(out, (at_x, at_y), &turned, &self.y.label);
        if let Some((limit, name)) = &self.bar {
            let at = place_y(*limit);
            line(out, (frame.left, at), (frame.right, at), "stroke=\"#b00020\" stroke-dasharray=\"5 4\"");
            text(out, (frame.right - 3.0, at - 4.0), "text-anchor=\"end\" fill=\"#b00020\"", name);
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let places: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| (place_x(*x), place_y(*y))).collect();
            series.draw(out, &places, colour);
        }
    }

    fn legend(&self, out: &mut String, mut left: f64, at: f64) {
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()).filter(|(s, _)| !s.points.is_empty()) {
            let _ =
                writeln!(out, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", left + 4.0, at - 3.5);
            text(out, (left + 13.0, at), "", &series.name);
            left += 28.0 + CHARACTER * series.name.chars().count() as f64;
        }
    }
}

impl Series {
    fn draw(&self, out: &mut String, places: &[(f64, f64)], colour: &str) {
        if self.style != Style::Dots && places.len() > 1 {
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\" points=\""
            );
            for (x, y) in places {
                let _ = write!(out, "{x:.1},{y:.1} ");
            }
            out.push_str("\"/>\n");
        }
        if self.style != Style::Line || places.len() == 1 {
            let radius = if places.len() > 200 { 1.6 } else { 2.8 };
            let _ = write!(out, "<g fill=\"{colour}\" fill-opacity=\"0.8\">");
            for (x, y) in places {
                let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
            }
            out.push_str("</g>\n");
        }
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), attributes: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {attributes}/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, at: (f64, f64), attributes: &str, content: &str) {
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" {attributes}>{}</text>", at.0, at.1, escape(content));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<(f64, f64)>, style: Style) -> Panel {
        Panel {
            title: "a < b & \"c\"".to_owned(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            series: vec![Series::new("one", style, points)],
            bar: Some((4.0, "bar".to_owned())),
        }
    }

    fn figure(panels: Vec<Panel>) -> String {
        Figure { title: "t".to_owned(), subtitle: String::new(), panels }.svg()
    }

    #[test]
    fn what_is_drawn_lies_inside_the_page() {
        let svg = figure(vec![panel(vec![(0.0, 1.0), (5.0, 3.0), (f64::NAN, 2.0)], Style::LineAndDots); 3]);
        assert_eq!(svg.matches("<polyline").count(), 3);
        // Two points and one legend entry in each panel.
        assert_eq!(svg.matches("<circle").count(), 9);
        let numbers = |attribute: &str| -> Vec<f64> {
            let begin = format!(" {attribute}=\"");
            let value = |part: &str| part.split('"').next().unwrap_or_default().parse().expect("a number");
            svg.split(&begin).skip(1).map(value).collect()
        };
        for x in ["x", "cx", "x1", "x2"].into_iter().flat_map(numbers) {
            assert!((0.0..=2.0 * (PANEL_WIDTH + PAD)).contains(&x), "x {x}");
        }
        for y in ["y", "cy", "y1", "y2"].into_iter().flat_map(numbers) {
            assert!((0.0..=HEAD_HEIGHT + 2.0 * PANEL_HEIGHT + PAD).contains(&y), "y {y}");
        }
    }

    #[test]
    fn text_cannot_break_out() {
        let svg = figure(vec![panel(vec![(0.0, 1.0)], Style::Dots)]);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
    }

    #[test]
    fn tags_are_balanced() {
        let svg = figure(vec![panel(vec![(0.0, 1.0), (2.0, 2.0)], Style::LineAndDots), panel(vec![], Style::Line)]);
        for tag in ["svg", "g", "text"] {
            let opened = svg.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
