//! The formats of metrics pages, and one page made of several.

use evenkeel_xds::pb::io::prometheus::client::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use http::HeaderValue;
use prost::Message;

/// A format of metrics, from the poorest to the richest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0, which has exemplars.
    OpenMetrics,
    /// Prometheus' protobuf format, which has native histograms, too.
    Protobuf,
}

impl Format {
    /// Returns the format that a scraper prefers.
    pub(crate) fn preferred(accept: Option<&str>) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.unwrap_or_default().split(',') {
            let quality = range.split(';').find_map(|part| part.trim().strip_prefix("q="));
            let quality: f32 = quality.map_or(1.0, |text| text.trim().parse().unwrap_or(0.0));
            if let Some(format) = Self::of_type(range.trim())
                && (quality, format) > best
                && quality > 0.0
            {
                best = (quality, format);
            }
        }
        best.1
    }

    /// Returns the format of this media type.
    pub(crate) fn of_type(media_type: &str) -> Option<Self> {
        let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*kind {
            "text/plain" => Some(Self::Text),
            "application/openmetrics-text" => Some(Self::OpenMetrics),
            "application/vnd.google.protobuf" if media_type.contains("delimited") => Some(Self::Protobuf),
            _ => None,
        }
    }

    /// Returns the `Accept` header for this format, or a poorer one.
    pub(crate) const fn accept(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain;version=0.0.4",
            Self::OpenMetrics => "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            Self::Protobuf => {
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                 application/openmetrics-text;version=1.0.0;q=0.7,text/plain;version=0.0.4;q=0.5"
            }
        })
    }

    /// Returns the `Content-Type` of a page.
    pub(crate) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        })
    }
}

/// A page with metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsPage {
    pub(crate) format: Format,
    pub(crate) body: Vec<u8>,
}

/// A counter of the agent's own, with its values by a label.
pub(crate) struct OwnCounter {
    /// Its name without `_total`.
    pub(crate) name: &'static str,
    /// The label's name; empty: there is none.
    pub(crate) label: &'static str,
    /// Values of the label, and the counts.
    pub(crate) values: Vec<(&'static str, u64)>,
}

/// Makes one page of several, in the poorest of their formats. `None`: one is in protobuf and another is not, and no conversion leads from
/// one to the other.
pub(crate) fn merged(pages: Vec<MetricsPage>, own: &[OwnCounter], without: Format) -> Option<MetricsPage> {
    let format = pages.iter().map(|page| page.format).min().unwrap_or(without);
    let is_mixed = pages.iter().any(|page| page.format == Format::Protobuf) && format != Format::Protobuf;
    if is_mixed {
        return None;
    }
    let mut body = Vec::new();
    for page in pages {
        match format {
            Format::Protobuf => body.extend_from_slice(&page.body),
            _ => body.extend_from_slice(text(page, format).as_bytes()),
        }
    }
    match format {
        Format::Protobuf => own.iter().for_each(|counter| _ = family(counter).encode_length_delimited(&mut body)),
        _ => own.iter().for_each(|counter| body.extend_from_slice(lines(counter, format).as_bytes())),
    }
    if format == Format::OpenMetrics {
        body.extend_from_slice(END.as_bytes());
    }
    Some(MetricsPage { format, body })
}

/// The end mark of OpenMetrics.
const END: &str = "# EOF\n";

/// Returns a text page in this text format, without an end mark and with a line break at the end.
fn text(page: MetricsPage, format: Format) -> String {
    let mut text = String::from_utf8_lossy(&page.body).into_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match (page.format, format) {
        (Format::OpenMetrics, Format::Text) => classic(&text),
        (Format::OpenMetrics, _) => {
            text.lines().filter(|line| *line != "# EOF").map(|line| format!("{line}\n")).collect()
        }
        _ => text,
    }
}

/// A page of OpenMetrics without what the classic format does not know: exemplars, units, and the end mark. A counter's name there is that of
/// its samples.
fn classic(page: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(comment) if comment == "EOF" || comment.starts_with("UNIT ") => None,
        Some(comment) => {
            let mut words = comment.splitn(3, ' ');
            let (what, name, rest) = (words.next()?, words.next()?, words.next().unwrap_or_default());
            let kind = match (what, rest) {
                ("TYPE", "counter") => return Some(format!("# TYPE {name}_total counter\n")),
                ("TYPE", "unknown") => "untyped",
                ("TYPE", "info" | "stateset") => "gauge",
                _ => rest,
            };
            Some(format!("# {what} {name} {kind}\n"))
        }
        None => Some(format!("{}\n", line.split(" # {").next().unwrap_or(line))),
    };
    page.lines().filter_map(line).collect()
}

fn lines(counter: &OwnCounter, format: Format) -> String {
    let OwnCounter { name, label, values } = counter;
    // OpenMetrics names the family without the suffix of its samples.
    let family = if format == Format::OpenMetrics { (*name).to_owned() } else { format!("{name}_total") };
    let sample = |(value, count): &(&str, u64)| match *label {
        "" => format!("{name}_total {count}\n"),
        label => format!("{name}_total{{{label}=\"{value}\"}} {count}\n"),
    };
    format!("# TYPE {family} counter\n{}", values.iter().map(sample).collect::<String>())
}

fn family(counter: &OwnCounter) -> MetricFamily {
    let metric = |(value, count): &(&str, u64)| {
        let pair = LabelPair { name: Some(counter.label.to_owned()), value: Some((*value).to_owned()) };
        Metric {
            label: (!counter.label.is_empty()).then_some(pair).into_iter().collect(),
            counter: Some(Counter { value: Some(*count as f64), ..Counter::default() }),
            ..Metric::default()
        }
    };
    MetricFamily {
        name: Some(format!("{}_total", counter.name)),
        r#type: Some(MetricType::Counter.into()),
        metric: counter.values.iter().map(metric).collect(),
        ..MetricFamily::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_say_which_format_they_prefer() {
        let check =
            |accept: Option<&str>, expected: Format| assert_eq!(Format::preferred(accept), expected, "{accept:?}");
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        check(None, Format::Text);
        check(Some("*/*"), Format::Text);
        check(Some("text/plain;version=0.0.4"), Format::Text);
        check(Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1"), Format::OpenMetrics);
        check(Some("text/plain, application/openmetrics-text;q=0.9"), Format::Text);
        check(Some(&format!("{protobuf},application/openmetrics-text;version=1.0.0;q=0.8")), Format::Protobuf);
        check(Some(&format!("{protobuf};q=0")), Format::Text);
        check(Some("application/vnd.google.protobuf;encoding=text"), Format::Text);
    }

    #[test]
    fn openmetrics_becomes_the_classic_format() {
        let page = "# HELP jobs Jobs done.\n# TYPE jobs counter\n# UNIT jobs things\n\
                    jobs_total{a=\"b\"} 3 # {trace_id=\"x\"} 1.0 2\njobs_created 1\n\
                    # TYPE build info\nbuild_info{v=\"1\"} 1\n# TYPE x unknown\nx 1\n# EOF\n";
        let expected = "# HELP jobs Jobs done.\n# TYPE jobs_total counter\njobs_total{a=\"b\"} 3\njobs_created 1\n\
                        # TYPE build gauge\nbuild_info{v=\"1\"} 1\n# TYPE x untyped\nx 1\n";
        assert_eq!(classic(page), expected);
    }

    /// The page made of these, with one counter of the agent's own.
    fn page_of(pages: &[(Format, &str)]) -> Option<(Format, Vec<u8>)> {
        let pages = pages.iter().map(|(format, body)| MetricsPage { format: *format, body: body.as_bytes().to_vec() });
        let own = [OwnCounter { name: "own", label: "of", values: vec![("a", 2)] }];
        merged(pages.collect(), &own, Format::Text).map(|page| (page.format, page.body))
    }

    #[test]
    fn pages_in_any_formats_become_one() {
        use Format::{OpenMetrics, Protobuf, Text};
        let check = |pages: &[(Format, &str)], expected: Option<(Format, &str)>| {
            let found = page_of(pages).map(|(format, body)| (format, String::from_utf8(body).expect("text")));
            assert_eq!(found, expected.map(|(format, body)| (format, body.to_owned())), "{pages:?}");
        };
        let own = "# TYPE own_total counter\nown_total{of=\"a\"} 2\n";
        check(&[], Some((Text, own)));
        check(&[(Text, "a 1"), (Text, "b 2\n")], Some((Text, &format!("a 1\nb 2\n{own}"))));
        let [a, b] = [(OpenMetrics, "# TYPE a counter\na_total 1\n# EOF\n"), (OpenMetrics, "b 2\n# EOF\n")];
        let own_open = "# TYPE own counter\nown_total{of=\"a\"} 2\n# EOF\n";
        check(&[a, b], Some((OpenMetrics, &format!("# TYPE a counter\na_total 1\nb 2\n{own_open}"))));
        check(&[a, (Text, "b 2\n")], Some((Text, &format!("# TYPE a_total counter\na_total 1\nb 2\n{own}"))));
        check(&[(Protobuf, ""), (Text, "b 2\n")], None);
        let (format, body) = page_of(&[(Protobuf, "")]).expect("a page");
        let family = MetricFamily::decode_length_delimited(&*body).expect("a family");
        assert_eq!((format, family.name(), family.metric.len()), (Protobuf, "own_total", 1));
        assert_eq!(family.metric[0].counter.as_ref().and_then(|counter| counter.value), Some(2.0));
    }
}
