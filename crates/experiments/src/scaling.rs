//! The cost model: CPU time per request as a function of workers, fitted to what was measured, and the throughput that it
//! predicts for machines with more cores, with its error.

use crate::plan::Experiment;
use crate::record::Record;
use crate::setup::{Proxy, Sidecars};

/// The numbers of cores that are predicted.
pub const CORES: [u32; 3] = [8, 16, 32];
/// A slope of fewer standard errors is taken for chance.
const SIGNIFICANT: f64 = 2.0;
/// The smallest CPU time per request of a prediction, relative to the mean of what was measured: a line that falls does
/// not fall forever.
const LEAST_SHARE: f64 = 0.5;

/// A value measured at a number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Workers.
    pub workers: f64,
    /// CPU µs per request of one sidecar.
    pub cost: f64,
}

/// A line through points, or their mean where the slope may be chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// The cost at the mean number of workers.
    pub mean: f64,
    /// The cost that each worker adds; 0 if it may be chance.
    pub slope: f64,
    /// The standard deviation around the line.
    pub deviation: f64,
    points: f64,
    mean_workers: f64,
    /// The sum of the squared distances of the numbers of workers from their mean.
    breadth: f64,
}

/// A predicted value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Fit {
    /// Fits a line by least squares; `None` for fewer than three points.
    pub fn of(points: &[Point]) -> Option<Self> {
        let count = points.len() as f64;
        if points.len() < 3 {
            return None;
        }
        let mean_of = |value: fn(&Point) -> f64| points.iter().map(value).sum::<f64>() / count;
        let (mean_workers, mean) = (mean_of(|point| point.workers), mean_of(|point| point.cost));
        let breadth: f64 = points.iter().map(|point| (point.workers - mean_workers).powi(2)).sum();
        let product: f64 = points.iter().map(|point| (point.workers - mean_workers) * (point.cost - mean)).sum();
        let deviation = |slope: f64, parameters: f64| {
            let residual = |point: &Point| point.cost - mean - slope * (point.workers - mean_workers);
            let squares: f64 = points.iter().map(|point| residual(point).powi(2)).sum();
            (squares / (count - parameters)).sqrt()
        };
        if breadth > 0.0 {
            let slope = product / breadth;
            let around = deviation(slope, 2.0);
            if slope.abs() > SIGNIFICANT * around / breadth.sqrt() {
                return Some(Self { mean, slope, deviation: around, points: count, mean_workers, breadth });
            }
        }
        Some(Self { mean, slope: 0.0, deviation: deviation(0.0, 1.0), points: count, mean_workers, breadth })
    }

    /// The cost at a number of workers, with the standard error of one measurement there.
    pub fn at(&self, workers: f64) -> Prediction {
        let distance = workers - self.mean_workers;
        let value = (self.mean + self.slope * distance).max(self.mean * LEAST_SHARE);
        let by_slope = if self.slope == 0.0 { 0.0 } else { distance.powi(2) / self.breadth };
        Prediction { value, error: self.deviation * (1.0 + 1.0 / self.points + by_slope).sqrt() }
    }

    /// Requests per second of one sidecar that has so many cores, at this evenness (mean ÷ max of the workers' load).
    pub fn throughput(&self, cores: u32, evenness: f64) -> Prediction {
        let cost = self.at(f64::from(cores));
        let value = f64::from(cores) * 1e6 * evenness / cost.value;
        Prediction { value, error: value * cost.error / cost.value }
    }
}

/// The predictions of a throughput result, a line for each proxy and side.
pub fn lines(record: &Record) -> Vec<String> {
    if record.experiment != Experiment::Throughput {
        return Vec::new();
    }
    let sides = [("cpu_us_client", "client", "outbound"), ("cpu_us_server", "server", "inbound")];
    let mut lines = Vec::new();
    for proxy in [Proxy::Evenkeel, Proxy::Envoy] {
        for (key, side, direction) in sides {
            let fitted = Fitted::of(record, &Question { proxy, key, side });
            lines.extend(fitted.map(|fitted| fitted.line(proxy, direction)));
        }
    }
    lines
}

/// What is predicted.
struct Question<'a> {
    proxy: Proxy,
    key: &'a str,
    side: &'a str,
}

/// The fit of one sidecar of a pair, and its measured evenness.
struct Fitted {
    fit: Fit,
    evenness: f64,
    most_workers: u32,
}

impl Fitted {
    /// More workers than cores only share the cores, so such rows are left out.
    fn of(record: &Record, question: &Question<'_>) -> Option<Self> {
        let fits = |workers: u32| (1..=record.machine.cores).contains(&workers);
        let rows: Vec<_> = record
            .cells
            .iter()
            .filter(|row| row.cell.table == crate::throughput::MATRIX && row.cell.setup.sidecars == Sidecars::Both)
            .filter(|row| row.cell.setup.has(question.proxy) && !row.cell.setup.exact_balance)
            .filter(|row| fits(row.cell.setup.workers))
            .collect();
        let points = rows.iter().flat_map(|row| {
            let workers = f64::from(row.cell.setup.workers);
            row.series(question.key).into_iter().map(move |cost| Point { workers, cost })
        });
        let fit = Fit::of(&points.collect::<Vec<_>>())?;
        let most_workers = rows.iter().map(|row| row.cell.setup.workers).max()?;
        let busy = format!("busy_max_mean_{}", question.side);
        let ratios: Vec<f64> = rows
            .iter()
            .filter(|row| row.cell.setup.workers == most_workers)
            .flat_map(|row| row.series(&busy))
            .collect();
        let ratio = evenkeel_measure::Spread::of(ratios).map_or(1.0, |spread| spread.median);
        Some(Self { fit, evenness: 1.0 / ratio, most_workers })
    }

    fn line(&self, proxy: Proxy, direction: &str) -> String {
        let each = CORES.map(|cores| {
            let Prediction { value, error } = self.fit.throughput(cores, self.evenness);
            format!("{cores} cores: {value:.0} ± {:.0} requests/s", 2.0 * error)
        });
        let slope = if self.fit.slope == 0.0 {
            "no measurable cost of further workers".to_owned()
        } else {
            format!("{:+.2} µs for each further worker", self.fit.slope)
        };
        format!(
            "Predicted, not measured: {}, one {direction} sidecar of a pair that has all cores ({:.1} µs/request, {slope}; evenness \
             {:.2} at {} workers; ± two standard errors of the fit): {}.",
            proxy.label(),
            self.fit.mean,
            self.evenness,
            self.most_workers,
            each.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs at some numbers of workers, with noise that has no trend.
    fn points(intercept: f64, slope: f64, noise: f64) -> Vec<Point> {
        let signs = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0];
        let workers = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0];
        let cost = |(workers, sign): (f64, f64)| Point { workers, cost: intercept + slope * workers + noise * sign };
        workers.into_iter().zip(signs).map(cost).collect()
    }

    #[test]
    fn the_line_is_found_again_and_its_error_grows_with_the_distance() {
        let check = |intercept: f64, slope: f64, noise: f64, expected: f64| {
            let fit = Fit::of(&points(intercept, slope, noise)).expect("eight points");
            let predicted = fit.at(32.0);
            let difference = (predicted.value - expected).abs();
            assert!(difference <= 2.0 * predicted.error + 1e-9, "{fit:?}: {predicted:?}, {expected}");
            assert!(predicted.error >= fit.at(4.0).error, "{fit:?}");
        };
        check(20.0, 0.0, 0.0, 20.0);
        check(20.0, 1.0, 0.0, 52.0);
        check(20.0, 1.0, 0.5, 52.0);
        // The noise hides such a slope, so the cost stays the mean.
        check(20.0, 0.01, 2.0, 20.03);
        assert_eq!(Fit::of(&points(20.0, 0.01, 2.0)).expect("eight points").slope, 0.0);
        assert_eq!(Fit::of(&points(20.0, 1.0, 0.0)[..2]), None);
    }

    #[test]
    fn throughput_is_cores_by_evenness_by_cost() {
        let fit = Fit::of(&points(20.0, 0.0, 1.0)).expect("eight points");
        let check = |cores: u32, evenness: f64, expected: f64| {
            let predicted = fit.throughput(cores, evenness);
            assert!((predicted.value - expected).abs() < 1.0, "{predicted:?}");
            assert!(predicted.error > 0.0, "{predicted:?}");
        };
        check(1, 1.0, 50_000.0);
        check(32, 1.0, 1_600_000.0);
        check(32, 0.5, 800_000.0);
    }

    #[test]
    fn a_falling_line_does_not_reach_zero() {
        let fit = Fit::of(&points(30.0, -2.0, 0.0)).expect("eight points");
        assert_eq!(fit.at(32.0).value, fit.mean * LEAST_SHARE);
    }
}
