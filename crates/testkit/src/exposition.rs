//! A strict reader of pages for Prometheus: its text format 0.0.4, and OpenMetrics 1.0. It refuses what Prometheus or the reference
//! parser of OpenMetrics would refuse, and what would be read but is bad form.

use std::collections::{BTreeMap, HashSet};

/// A metric family.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name in its `# TYPE` line.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its help text; empty if there is none.
    pub help: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// A sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, with suffixes.
    pub name: String,
    /// Unescaped.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
    /// Labels, value and time of its exemplar.
    pub exemplar: Option<(BTreeMap<String, String>, f64, f64)>,
}

/// Parses a page into families by name; the error says what is wrong with it.
pub fn parse(page: &str, open_metrics: bool) -> Result<BTreeMap<String, Family>, String> {
    let mut body = page.strip_suffix('\n').ok_or("the last line has no end")?;
    if open_metrics {
        body = body.strip_suffix("# EOF").ok_or("no # EOF at the end")?;
        body = body.strip_suffix('\n').unwrap_or(body);
    }
    let mut reader = Reader { open_metrics, ..Reader::default() };
    for line in body.split('\n').filter(|_| !body.is_empty()) {
        reader.line(line).map_err(|reason| format!("{reason}: {line}"))?;
    }
    reader.end_family()?;
    Ok(reader.families)
}

#[derive(Default)]
struct Reader {
    open_metrics: bool,
    families: BTreeMap<String, Family>,
    current: Option<Family>,
    /// Names that no further family or sample may have.
    names: HashSet<String>,
    series: HashSet<(String, BTreeMap<String, String>)>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("no text")?;
            self.enter(name)?;
            let family = self.current.as_mut().ok_or("no family")?;
            if !family.help.is_empty() || !family.kind.is_empty() {
                return Err("a second HELP, or one behind TYPE".to_owned());
            }
            family.help = unescaped(help, self.open_metrics)?;
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("no type")?;
            self.enter(name)?;
            return self.declare(kind);
        }
        if line.starts_with('#') || line.is_empty() {
            return Err("neither a sample nor HELP or TYPE".to_owned());
        }
        let sample = sample(line, self.open_metrics)?;
        let family = self.current.as_mut().ok_or("a sample before any TYPE")?;
        let suffix = sample.name.strip_prefix(&*family.name).ok_or("a sample of another family")?;
        let allowed: &[&str] = match (&*family.kind, self.open_metrics) {
            ("counter", true) => &["_total"],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            ("", _) => return Err("a sample before its TYPE".to_owned()),
            _ => &[""],
        };
        if !allowed.contains(&suffix) {
            return Err(format!("a {} has no such sample", family.kind));
        }
        if family.kind == "counter" && (sample.value.is_nan() || sample.value < 0.0) {
            return Err("a counter below 0".to_owned());
        }
        if sample.exemplar.is_some() && !["_bucket", "_total"].contains(&suffix) {
            return Err("an exemplar here".to_owned());
        }
        if !self.series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err("a series comes twice".to_owned());
        }
        family.samples.push(sample);
        Ok(())
    }

    fn enter(&mut self, name: &str) -> Result<(), String> {
        if self.current.as_ref().is_some_and(|family| family.name == name) {
            return Ok(());
        }
        self.end_family()?;
        check_name(name, true)?;
        let (name, none) = (name.to_owned(), String::new());
        self.current = Some(Family { name, kind: none.clone(), help: none, samples: Vec::new() });
        Ok(())
    }

    fn declare(&mut self, kind: &str) -> Result<(), String> {
        let family = self.current.as_mut().ok_or("no family")?;
        if !family.kind.is_empty() {
            return Err("a second TYPE".to_owned());
        }
        let suffixes: &[&str] = match (kind, self.open_metrics) {
            ("counter", true) => &["", "_total", "_created"],
            ("histogram", true) => &["", "_bucket", "_count", "_sum", "_created"],
            ("histogram", false) => &["", "_bucket", "_count", "_sum"],
            ("gauge", _) | ("counter", false) | ("unknown", true) | ("untyped", false) => &[""],
            _ => return Err("no type of this format".to_owned()),
        };
        kind.clone_into(&mut family.kind);
        for suffix in suffixes {
            if !self.names.insert(format!("{}{suffix}", family.name)) {
                return Err(format!("another family has samples called {}{suffix}", family.name));
            }
        }
        Ok(())
    }

    fn end_family(&mut self) -> Result<(), String> {
        let Some(family) = self.current.take() else { return Ok(()) };
        if family.samples.is_empty() {
            return Err(format!("{} has no samples", family.name));
        }
        if family.kind == "histogram" {
            check_histograms(&family, self.open_metrics).map_err(|reason| format!("{}: {reason}", family.name))?;
        }
        self.families.insert(family.name.clone(), family);
        Ok(())
    }
}

/// Each series' buckets come one after the other, and then its sum and its count.
fn check_histograms(family: &Family, open_metrics: bool) -> Result<(), String> {
    let mut samples = family.samples.iter().peekable();
    while let Some(first) = samples.peek() {
        let mut labels = first.labels.clone();
        labels.remove("le");
        let (mut last, mut count) = (f64::NEG_INFINITY, 0.0);
        while let Some(bucket) = samples.next_if(|sample| sample.name.ends_with("_bucket")) {
            let mut own = bucket.labels.clone();
            let le = own.remove("le").ok_or("a bucket without le")?;
            let bound = number(&le)?;
            if own != labels || bound <= last || bucket.value < count {
                return Err(format!("bucket {le} of {labels:?} is out of order"));
            }
            if open_metrics && bound.is_finite() && !le.contains(['.', 'e']) {
                return Err(format!("le={le} has no point"));
            }
            if let Some((_, value, _)) = &bucket.exemplar
                && !(*value > last && *value <= bound)
            {
                return Err(format!("the exemplar of bucket {le} is not in it: {value}"));
            }
            (last, count) = (bound, bucket.value);
        }
        let sum = samples.next().filter(|sample| sample.name.ends_with("_sum")).ok_or("no sum")?;
        let total = samples.next().filter(|sample| sample.name.ends_with("_count")).ok_or("no count")?;
        if last != f64::INFINITY || total.value != count || sum.labels != labels || total.labels != labels {
            return Err(format!("{labels:?} does not add up"));
        }
    }
    Ok(())
}

fn sample(line: &str, open_metrics: bool) -> Result<Sample, String> {
    let (series, exemplar) = match line.split_once(" # ") {
        Some(parts) if !open_metrics => return Err(format!("an exemplar in the text format: {}", parts.1)),
        Some((series, exemplar)) => (series, Some(exemplar)),
        None => (line, None),
    };
    let end = series.find(['{', ' ']).ok_or("no value")?;
    let (name, rest) = series.split_at(end);
    check_name(name, true)?;
    let (labels, rest) = labels(rest)?;
    let value = number(rest.strip_prefix(' ').ok_or("no space before the value")?)?;
    let exemplar = exemplar.map(|text| {
        let (labels, rest) = self::labels(text)?;
        if labels.iter().map(|(name, value)| name.chars().count() + value.chars().count()).sum::<usize>() > 128 {
            return Err("an exemplar with more than 128 characters".to_owned());
        }
        let (value, time) = rest.trim_start().split_once(' ').ok_or("an exemplar without time")?;
        Ok((labels, number(value)?, number(time)?))
    });
    Ok(Sample { name: name.to_owned(), labels, value, exemplar: exemplar.transpose()? })
}

/// Labels in braces, if there are any, and what follows.
fn labels(text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((labels, text)) };
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("no label")?;
        check_name(name, false)?;
        let (mut escaped, mut end) = (false, None);
        for (at, c) in after.char_indices() {
            match c {
                '"' if !escaped => {
                    end = Some(at);
                    break;
                }
                _ => escaped = c == '\\' && !escaped,
            }
        }
        let end = end.ok_or("a label without end")?;
        if labels.insert(name.to_owned(), unescaped(&after[..end], true)?).is_some() {
            return Err(format!("label {name} comes twice"));
        }
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok((labels, rest.strip_prefix('}').ok_or("no closing brace")?)),
        }
    }
}

fn unescaped(text: &str, quotes: bool) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\\') => out.push('\\'),
                Some('n') => out.push('\n'),
                Some('"') if quotes => out.push('"'),
                other => return Err(format!("an escape of {other:?}")),
            },
            '"' if quotes => return Err("a quote that is not escaped".to_owned()),
            c => out.push(c),
        }
    }
    Ok(out)
}

fn check_name(name: &str, metric: bool) -> Result<(), String> {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || metric && c == ':';
    let is_good = name.starts_with(starts) && name.chars().all(|c| starts(c) || c.is_ascii_digit());
    if is_good && (metric || !name.starts_with("__")) { Ok(()) } else { Err(format!("{name:?} is no name")) }
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            text.parse().map_err(|_| format!("{text:?} is no number"))
        }
        _ => Err(format!("{text:?} is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a A \\\"b\\\"\\\\\\n.\n# TYPE a counter\na_total{x=\"1\\\"\\\\\\n,}\"} 2 # {trace_id=\"ab\"} 1 1.500\n\
                        # TYPE h histogram\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 7.5\nh_count 3\n# EOF\n";

    #[test]
    fn reads_a_page() {
        let families = parse(GOOD, true).unwrap();
        assert_eq!(families["a"].help, "A \"b\"\\\n.");
        assert_eq!(families["a"].samples[0].labels["x"], "1\"\\\n,}");
        assert_eq!(families["a"].samples[0].exemplar.as_ref().unwrap().2, 1.5);
        assert_eq!(families["h"].samples[2].value, 7.5);
    }

    #[test]
    fn refuses_what_is_wrong() {
        for (from, to, reason) in [
            ("# EOF\n", "", "no # EOF"),
            ("# EOF\n", "\n# EOF\n", "neither"),
            ("a_total", "a", "no such sample"),
            ("} 2", "} -2", "below 0"),
            ("\"1\\\"", "\"1\"", "brace"),
            ("# TYPE h", "# TYPE a", "second TYPE"),
            ("h histogram\n", "h histogram\nh_sum{a=\"\"} 1\n", "no count"),
            ("le=\"1.0\"", "le=\"1\"", "no point"),
            ("h_count 3", "h_count 4", "add up"),
            ("{le=\"1.0\"} 1", "{le=\"1.0\"} 4", "order"),
            ("h_sum 7.5\n", "h_sum 7.5\nh_sum 7.5\n", "twice"),
            ("# TYPE h", "# TYPE a_total gauge\na_total 1\n# TYPE h", "another family"),
        ] {
            let page = GOOD.replacen(from, to, 1);
            let error = parse(&page, true).expect_err(&page);
            assert!(error.contains(reason), "{error}, not {reason}\n{page}");
        }
        assert!(parse("# TYPE a counter\na 1 # {} 1 1\n", false).is_err());
        assert!(parse("# TYPE a counter\na 1\n", false).is_ok());
    }
}
