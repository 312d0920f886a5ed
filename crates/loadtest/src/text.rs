//! A result as text, in Fortio's form.

use std::io::{self, Write};

use crate::go_numbers::{shortest, significant};
use crate::histogram::HistogramData;
use crate::tally::{Sockets, Tally};

/// The numbers of a histogram in a line: `: count 3 avg 2 +/- 0.8165 min 1 max 3 sum 6`.
pub fn counter(out: &mut dyn Write, name: &str, data: &HistogramData) -> io::Result<()> {
    if data.count == 0 {
        return writeln!(out, "{name} : no data");
    }
    let (average, deviation) = (significant(data.avg, 8), significant(data.std_dev, 4));
    let (min, max, sum) = (shortest(data.min), shortest(data.max), significant(data.sum, 9));
    writeln!(out, "{name} : count {} avg {average} +/- {deviation} min {min} max {max} sum {sum}", data.count)
}

/// A histogram: its numbers, ranges and percentiles.
pub fn histogram(out: &mut dyn Write, name: &str, data: &HistogramData) -> io::Result<()> {
    counter(out, name, data)?;
    let Some(ranges) = &data.data else { return Ok(()) };
    writeln!(out, "# range, mid point, percentile, count")?;
    let six = |value| significant(value, 6);
    for (index, range) in ranges.iter().enumerate() {
        let relation = if index == 0 { ">=" } else { ">" };
        let (start, end, middle) = (six(range.start), six(range.end), six(f64::midpoint(range.start, range.end)));
        writeln!(out, "{relation} {start} <= {end} , {middle} , {:.2}, {}", range.percent, range.count)?;
    }
    percentiles(out, data)
}

/// Only the percentiles of a histogram.
pub fn percentiles(out: &mut dyn Write, data: &HistogramData) -> io::Result<()> {
    for percentile in &data.percentiles {
        writeln!(out, "# target {}% {}", shortest(percentile.percentile), significant(percentile.value, 6))?;
    }
    Ok(())
}

/// The sockets of each connection.
pub fn sockets(out: &mut dyn Write, tally: &Tally) -> io::Result<()> {
    writeln!(out, "# Socket and IP used for each connection:")?;
    for (number, Sockets { count, seconds, address }) in &tally.sockets {
        let address = address.map_or_else(|| "nothing".to_owned(), |address| address.to_string());
        write!(out, "[{number}] {count:3} socket used, resolved to {address}, connection timing")?;
        counter(out, "", &numbers(seconds))?;
    }
    Ok(())
}

/// The numbers of a few values.
fn numbers(values: &[f64]) -> HistogramData {
    let (count, sum) = (values.len() as u64, values.iter().sum::<f64>());
    let avg = sum / (count.max(1) as f64);
    let variance = values.iter().map(|value| (value - avg).powi(2)).sum::<f64>() / (count.max(1) as f64);
    let min = values.iter().copied().reduce(f64::min).unwrap_or_default();
    let max = values.iter().copied().reduce(f64::max).unwrap_or_default();
    HistogramData { count, min, max, sum, avg, std_dev: variance.sqrt(), data: None, percentiles: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::{Interval, Percentile};

    #[test]
    fn histograms_look_like_those_of_fortio() {
        let data = HistogramData {
            data: Some(vec![
                Interval { start: 1.0, end: 1.0, percent: 100.0 / 3.0, count: 1 },
                Interval { start: 1.0, end: 3.0, percent: 100.0, count: 2 },
            ]),
            percentiles: vec![Percentile { percentile: 99.9, value: 2.997 }],
            ..numbers(&[1.0, 2.0, 3.0])
        };
        let mut out = Vec::new();
        histogram(&mut out, "Histogram", &data).unwrap();
        let expected = "Histogram : count 3 avg 2 +/- 0.8165 min 1 max 3 sum 6\n\
                        # range, mid point, percentile, count\n\
                        >= 1 <= 1 , 1 , 33.33, 1\n\
                        > 1 <= 3 , 2 , 100.00, 2\n\
                        # target 99.9% 2.997\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
