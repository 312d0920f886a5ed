//! The StatsD protocol: a line for each metric, several lines in a datagram.
//!
//! Names are Envoy's, with `_` for blanks and for characters that end a name in the protocol (`:`, `|`, `@`): Envoy sends
//! them unchanged, and servers misread them. Counters are the increase since the last flush (`|c`), gauges are values (`|g`).
//!
//! Envoy sends each value of a histogram when it is recorded, one datagram each. Our histograms only have buckets, which are
//! shared by all requests since the last flush: there is a line for each bucket with new values, with a value of the bucket,
//! and a sample rate that says how many values there were (`:7.5|ms|@0.25` are four). With one such bucket the value is the
//! mean of the new values, so that the sum is exact; otherwise it is the bucket's middle.
//!
//! In DogStatsD's form, tags are no part of names, but behind the type: `|#envoy.cluster_name:a`.

use std::fmt::Write;

use super::change::{Change, Interval};

/// Maximum size of a datagram in bytes: an Ethernet packet, less the headers of IPv6 and UDP and some room for tunnels.
/// StatsD's own documentation recommends it, and all servers read several lines from a datagram.
const MAX_DATAGRAM_BYTES: usize = 1432;

/// A name, and its tags in DogStatsD's form.
#[derive(Debug)]
pub(super) struct Series<'s> {
    pub(super) name: &'s str,
    pub(super) tags: Vec<(String, &'s str)>,
}

/// Packs lines into datagrams. `send` gets a datagram and the number of its lines.
pub(super) struct Datagrams<S> {
    datagram: String,
    lines: u64,
    /// For one metric.
    scratch: String,
    send: S,
}

impl<S: FnMut(&[u8], u64)> Datagrams<S> {
    pub(super) fn new(send: S) -> Self {
        Self { datagram: String::with_capacity(MAX_DATAGRAM_BYTES), lines: 0, scratch: String::new(), send }
    }

    /// Adds a metric.
    pub(super) fn add(&mut self, prefix: &str, series: &Series<'_>, change: &Change) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        append(prefix, series, change, &mut scratch);
        scratch.lines().for_each(|line| self.add_line(line));
        self.scratch = scratch;
    }

    /// Adds a line; one that is too long for a datagram with others gets its own.
    fn add_line(&mut self, line: &str) {
        if !self.datagram.is_empty() && self.datagram.len() + 1 + line.len() > MAX_DATAGRAM_BYTES {
            self.flush();
        }
        if !self.datagram.is_empty() {
            self.datagram.push('\n');
        }
        self.datagram.push_str(line);
        self.lines += 1;
    }

    fn flush(&mut self) {
        (self.send)(self.datagram.as_bytes(), self.lines);
        self.datagram.clear();
        self.lines = 0;
    }

    /// Sends the rest.
    pub(super) fn finish(mut self) {
        if !self.datagram.is_empty() {
            self.flush();
        }
    }
}

/// Appends the lines of a metric.
fn append(prefix: &str, series: &Series<'_>, change: &Change, out: &mut String) {
    let mut line = |value: &dyn std::fmt::Display, kind: &str| {
        push_name(prefix, out);
        out.push('.');
        push_name(series.name, out);
        // Writing to a String cannot fail.
        let _ = write!(out, ":{value}|{kind}");
        for (number, (name, value)) in series.tags.iter().enumerate() {
            out.push_str(if number == 0 { "|#" } else { "," });
            push_tag(name, out);
            out.push(':');
            push_tag(value, out);
        }
        out.push('\n');
    };
    match change {
        Change::Counter { delta, .. } => line(delta, "c"),
        // A gauge with a sign would be added to what the server has.
        Change::Gauge(value) => line(&(*value).max(0), "g"),
        Change::Histogram(interval) => {
            for (value, count) in values(interval) {
                match count {
                    1 => line(&value, "ms"),
                    count => line(&value, &format!("ms|@{}", 1.0 / count as f64)),
                }
            }
        }
    }
}

fn push_name(name: &str, out: &mut String) {
    let is_kept = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, ':' | '|' | '@');
    out.extend(name.chars().map(|c| if is_kept(c) { c } else { '_' }));
}

/// A tag ends at a comma; what ends metrics and lines ends it, too.
fn push_tag(text: &str, out: &mut String) {
    let is_kept = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, ',' | '|' | '#');
    out.extend(text.chars().map(|c| if is_kept(c) { c } else { '_' }));
}

/// Values that stand for those of an interval, each with their number.
fn values(interval: &Interval) -> Vec<(f64, u64)> {
    let used = interval.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    let mut values: Vec<_> = used.map(|(at, count)| (middle(interval.bounds, at), *count)).collect();
    if let [(value, count)] = &mut *values {
        *value = interval.sum / *count as f64;
    }
    // Thousandths of a millisecond are the most that is meant.
    values.iter_mut().for_each(|(value, _)| *value = (*value * 1e3).round() / 1e3);
    values
}

/// A value of the bucket: its middle, or its lower bound if it has no upper one.
fn middle(bounds: &[f64], bucket: usize) -> f64 {
    let lower = bucket.checked_sub(1).and_then(|below| bounds.get(below)).copied().unwrap_or(0.0);
    bounds.get(bucket).map_or(lower, |upper| f64::midpoint(lower, *upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[u64], sum: f64) -> Change {
        Change::Histogram(Interval { bounds: &[1.0, 5.0, 10.0], buckets: buckets.to_vec(), sum })
    }

    #[test]
    fn a_metric_has_these_lines() {
        for (name, change, expected) in [
            (
                "cluster.a.upstream_rq_total",
                Change::Counter { value: 9, delta: 4 },
                "envoy.cluster.a.upstream_rq_total:4|c\n",
            ),
            ("a", Change::Counter { value: 9, delta: 0 }, "envoy.a:0|c\n"),
            ("a", Change::Gauge(7), "envoy.a:7|g\n"),
            ("a", Change::Gauge(-7), "envoy.a:0|g\n"),
            ("cluster.outbound|80||a.b.x y:z@\n", Change::Gauge(1), "envoy.cluster.outbound_80__a.b.x_y_z__:1|g\n"),
            ("h", histogram(&[0, 0, 0, 0], 0.0), ""),
            ("h", histogram(&[0, 1, 0, 0], 4.0), "envoy.h:4|ms\n"),
            ("h", histogram(&[0, 0, 4, 0], 30.0), "envoy.h:7.5|ms|@0.25\n"),
            ("h", histogram(&[0, 0, 0, 1], 99.5), "envoy.h:99.5|ms\n"),
            ("h", histogram(&[2, 1, 0, 4], 60.0), "envoy.h:0.5|ms|@0.5\nenvoy.h:3|ms\nenvoy.h:10|ms|@0.25\n"),
            ("h", histogram(&[3, 0, 0, 0], 1.0), "envoy.h:0.333|ms|@0.3333333333333333\n"),
        ] {
            let mut lines = String::new();
            append("envoy", &Series { name, tags: Vec::new() }, &change, &mut lines);
            assert_eq!(lines, expected, "{name} {change:?}");
        }
    }

    #[test]
    fn tags_are_behind_the_type() {
        for (tags, expected) in [
            (vec![("envoy.cluster_name", "outbound|80||a,b")], "envoy.n:4|c|#envoy.cluster_name:outbound_80__a_b\n"),
            (vec![("a", "b:1"), ("c", "")], "envoy.n:4|c|#a:b:1,c:\n"),
        ] {
            let tags = tags.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let mut lines = String::new();
            append("envoy", &Series { name: "n", tags }, &Change::Counter { value: 9, delta: 4 }, &mut lines);
            assert_eq!(lines, expected);
        }
    }

    #[test]
    fn lines_share_datagrams() {
        for (lengths, expected) in [
            (&[][..], &[][..]),
            (&[10], &[(10, 1)]),
            (&[10, 20], &[(31, 2)]),
            (&[700, 731, 5], &[(1432, 2), (5, 1)]),
            (&[700, 732, 5], &[(700, 1), (738, 2)]),
            (&[2000, 5, 2000], &[(2000, 1), (5, 1), (2000, 1)]),
        ] {
            let mut sent = Vec::new();
            let mut datagrams = Datagrams::new(|datagram: &[u8], lines| sent.push((datagram.len(), lines)));
            lengths.iter().for_each(|length| datagrams.add_line(&"x".repeat(*length)));
            datagrams.finish();
            assert_eq!(sent, expected, "{lengths:?}");
        }
    }
}
