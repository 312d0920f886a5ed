//! SVG figures: panels with axes, lines and points, and bars with error bars; readable on light and dark pages.

mod axis;
mod bars;
mod panel;

use plotters::prelude::*;

pub use axis::Axis;
pub use bars::{BarChart, BarRow};

/// The width of one panel including its labels, in pixels.
const PANEL_WIDTH: u32 = 440;
/// The height of one panel including its labels, in pixels.
const PANEL_HEIGHT: u32 = 270;
/// The height of the title and subtitle above the panels.
const HEAD_HEIGHT: i32 = 62;
/// The padding at the edges of the figure.
const PAD: i32 = 10;
/// The font of all text: whatever the reader's system calls so.
const FONT: &str = "sans-serif";

/// Colours that people with red-green colour blindness can distinguish (Okabe and Ito's palette, without yellow).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x44, 0x44, 0x44),
];
/// Titles.
const INK: RGBColor = RGBColor(0x11, 0x11, 0x11);
/// Labels.
const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// Lines at ticks.
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xed);
/// Limits.
const LIMIT: RGBColor = RGBColor(0xb0, 0x00, 0x20);

/// What a drawing into a text returns. Nothing in it can fail: there is no file and no font to load.
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// An SVG document of this size, on white.
fn document(width: u32, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
        debug_assert!(drawn.is_ok(), "{drawn:?}");
    }
    svg
}

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
        // A single panel takes the width of two.
        let columns = if panels.len() > 1 { 2 } else { 1 };
        let rows = panels.len().div_ceil(columns).max(1);
        let pad = PAD.unsigned_abs();
        let width = 2 * PANEL_WIDTH + 2 * pad;
        let height = HEAD_HEIGHT.unsigned_abs() + u32::try_from(rows).unwrap_or(1) * PANEL_HEIGHT + pad;
        document(width, height, |area| {
            area.draw_text(&self.title, &TextStyle::from((FONT, 17)).color(&INK), (PAD + 12, 14))?;
            area.draw_text(&self.subtitle, &TextStyle::from((FONT, 12)).color(&GREY), (PAD + 12, 38))?;
            let (_, below) = area.split_vertically(HEAD_HEIGHT);
            let cells = below.margin(0, pad, pad, pad).split_evenly((rows, columns));
            panels.iter().zip(&cells).try_for_each(|(panel, cell)| panel.draw(cell))
        })
    }
}

impl Panel {
    fn has_points(&self) -> bool {
        self.series.iter().any(|series| !series.points.is_empty())
    }
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
        // Two points and one legend entry in each panel.
        assert_eq!(svg.matches("<circle").count(), 9);
        let (width, height) =
            (f64::from(2 * PANEL_WIDTH) + 20.0, f64::from(HEAD_HEIGHT) + f64::from(2 * PANEL_HEIGHT) + 10.0);
        let numbers = |attribute: &str| -> Vec<f64> {
            let begin = format!(" {attribute}=\"");
            let value = |part: &str| part.split('"').next().unwrap_or_default().parse().expect("a number");
            svg.split(&begin).skip(1).map(value).collect()
        };
        for x in ["x", "cx", "x1", "x2"].into_iter().flat_map(numbers) {
            assert!((0.0..=width).contains(&x), "x {x}");
        }
        for y in ["y", "cy", "y1", "y2"].into_iter().flat_map(numbers) {
            assert!((0.0..=height).contains(&y), "y {y}");
        }
    }

    #[test]
    fn text_cannot_break_out() {
        let svg = figure(vec![panel(vec![(0.0, 1.0)], Style::Dots)]);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
    }

    #[test]
    fn panels_without_points_are_left_out() {
        let svg = figure(vec![panel(vec![(0.0, 1.0), (2.0, 2.0)], Style::LineAndDots), panel(vec![], Style::Line)]);
        assert_eq!(svg.matches("a &lt; b").count(), 1);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
