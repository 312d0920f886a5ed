//! One plot of a figure.

use std::ops::Range;

use plotters::coord::ranged1d::Ranged as _;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, COLOURS, Drawn, FONT, GREY, GRID, INK, LIMIT, Panel, Series, Style};

/// Space for the labels of the axes, in pixels.
const X_LABELS: i32 = 44;
const Y_LABELS: i32 = 62;
/// Space for the title and the legend above the plot.
const HEAD: i32 = 46;
/// The approximate width of a character of the legend.
const CHARACTER: i32 = 6;
/// With more points than this they are drawn smaller.
const MANY: usize = 200;

impl Panel {
    /// Draws it into its part of the figure.
    pub(super) fn draw(&self, area: &Area<'_>) -> Drawn {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = self.x.ticks(points().map(|(x, _)| *x));
        let y = self.y.ticks(points().map(|(_, y)| *y).chain(self.bar.iter().map(|(limit, _)| *limit)));
        area.draw_text(&self.title, &TextStyle::from((FONT, 13)).color(&INK), (12, 6))?;
        self.legend(area)?;
        let mut chart = ChartBuilder::on(&area.margin(HEAD, 0, 0, 18))
            .x_label_area_size(X_LABELS)
            .y_label_area_size(Y_LABELS)
            .build_cartesian_2d(x.clone(), y.clone())?;
        let small = TextStyle::from((FONT, 11)).color(&GREY);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GREY)
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .label_style(small.clone())
            .axis_desc_style(small.clone())
            .draw()?;
        if let Some((limit, name)) = &self.bar {
            let Range { start, end } = x.range();
            chart.draw_series(DashedLineSeries::new([(start, *limit), (end, *limit)], 5, 4, LIMIT.into()))?;
            let place = chart.backend_coord(&(end, *limit));
            let (left, top) = area.get_base_pixel();
            let style = small.color(&LIMIT).pos(Pos::new(HPos::Right, VPos::Bottom));
            area.draw_text(name, &style, (place.0 - left - 3, place.1 - top - 2))?;
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let places = &series.points;
            if series.style != Style::Dots && places.len() > 1 {
                chart.draw_series(LineSeries::new(places.iter().copied(), colour.stroke_width(2)))?;
            }
            if series.style != Style::Line || places.len() == 1 {
                let radius = if places.len() > MANY { 1 } else { 3 };
                chart.draw_series(places.iter().map(|place| Circle::new(*place, radius, colour.filled())))?;
            }
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        let mut left = 12;
        let named = |series: &&Series| !series.points.is_empty();
        let style = TextStyle::from((FONT, 11)).color(&GREY);
        for (colour, series) in COLOURS.iter().cycle().zip(&self.series).filter(|(_, series)| named(series)) {
            area.draw(&Circle::new((left + 4, 33), 4, colour.filled()))?;
            area.draw_text(&series.name, &style, (left + 13, 27))?;
            left += 28 + CHARACTER * i32::try_from(series.name.chars().count()).unwrap_or(0);
        }
        Ok(())
    }
}
