//! Pages for Prometheus, in its text format 0.0.4 and in OpenMetrics 1.0.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use crate::histogram::HistogramSnapshot;
use crate::render::Cell;
use crate::sample::{Reading, Value};
use crate::scope::{ScopeCore, push_label, sanitized};
use crate::tags::{Name, Tagging, without_tags};

/// A format that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0, which has exemplars.
    OpenMetrics,
}

impl Exposition {
    /// Returns the format that a request's `Accept` header prefers; the text format unless OpenMetrics is named.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let (mut open, mut text) = (0.0, 0.0);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let (Some(kind), mut quality, mut version) = (parts.next(), 1.0, None) else { continue };
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match &*name.trim().to_ascii_lowercase() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim()),
                    _ => {}
                }
            }
            let best = match &*kind.to_ascii_lowercase() {
                "application/openmetrics-text" if matches!(version, None | Some("1.0.0" | "0.0.1")) => &mut open,
                "text/plain" | "text/*" => &mut text,
                _ => continue,
            };
            *best = f64::max(*best, quality);
        }
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the page's `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

pub(crate) struct Family<'a> {
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) parts: Vec<Part<'a>>,
}

/// One metric of several scopes, sorted by their labels.
pub(crate) struct Part<'a> {
    pub(crate) cell: Cell,
    pub(crate) labels: Labels,
    pub(crate) scopes: &'a [Arc<ScopeCore>],
}

/// The labels of a part.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Labels {
    /// Those of each scope, and one that was extracted from the metric's own name.
    Own(Option<(&'static str, String)>),
    /// Those that the configuration's tags give the only scope.
    Tagged(String),
}

impl Labels {
    pub(crate) fn of(&self, scope: &ScopeCore) -> String {
        match self {
            Self::Tagged(labels) => labels.clone(),
            Self::Own(label) => {
                let mut labels = scope.labels.to_string();
                if let Some((name, value)) = label {
                    push_label(&mut labels, name, value);
                }
                labels
            }
        }
    }
}

/// Writes the page.
pub(crate) fn write(
    format: Exposition,
    scopes: &[Arc<ScopeCore>],
    reading: &Reading<'_>,
    tagging: Option<&Tagging>,
    wanted: Option<&dyn Fn(&str) -> bool>,
) -> String {
    let groups = groups(scopes);
    let families = match tagging {
        None => families(&groups, reading),
        Some(tagging) => tagged_families(scopes, reading, tagging),
    };
    let mut page = Page { format, reading, out: String::new(), names: HashSet::new() };
    for (name, family) in &families {
        page.family(name, family, &families, wanted);
    }
    if format == Exposition::OpenMetrics {
        page.out.push_str("# EOF\n");
    }
    page.out
}

/// Calls `each` with all families, in the order of their names.
pub(crate) fn families_of(
    scopes: &[Arc<ScopeCore>],
    reading: &Reading<'_>,
    tagging: Option<&Tagging>,
    mut each: impl FnMut(&str, &Family<'_>),
) {
    let groups = groups(scopes);
    let families = match tagging {
        None => families(&groups, reading),
        Some(tagging) => tagged_families(scopes, reading, tagging),
    };
    families.iter().for_each(|(name, family)| each(name, family));
}

/// Groups scopes that have the same metrics under the same names, sorted by their labels.
fn groups(scopes: &[Arc<ScopeCore>]) -> Vec<Vec<Arc<ScopeCore>>> {
    let mut by_family: BTreeMap<&str, Vec<Vec<Arc<ScopeCore>>>> = BTreeMap::new();
    for scope in scopes {
        let groups = by_family.entry(&scope.family).or_default();
        let known = groups.iter_mut().find(|group| group.first().is_some_and(|first| first.shape.same(scope.shape)));
        match known {
            Some(group) => group.push(Arc::clone(scope)),
            None => groups.push(vec![Arc::clone(scope)]),
        }
    }
    let mut groups: Vec<_> = by_family.into_values().flatten().collect();
    for group in &mut groups {
        group.sort_by(|a, b| a.labels.cmp(&b.labels));
        // Names may differ only in characters that Prometheus forbids; a duplicate series would make it reject the whole
        // page.
        group.dedup_by(|a, b| a.labels == b.labels);
    }
    groups
}

fn families<'a>(groups: &'a [Vec<Arc<ScopeCore>>], reading: &Reading<'_>) -> BTreeMap<String, Family<'a>> {
    let mut families = BTreeMap::new();
    for group in groups {
        let Some(first) = group.first() else { continue };
        let statuses: BTreeSet<usize> = group.iter().flat_map(|scope| Cell::statuses(scope, reading)).collect();
        for cell in Cell::of(first).chain(statuses.into_iter().map(Cell::Status)) {
            let (metric, label) = without_tags(cell.name(first));
            let name = format!("{}{}", first.family, sanitized(&metric));
            add(&mut families, name, Part { cell, labels: Labels::Own(label), scopes: group });
        }
    }
    families
}

/// Like `families` when the configuration has tags: each metric of each scope may have another name.
fn tagged_families<'a>(
    scopes: &'a [Arc<ScopeCore>],
    reading: &Reading<'_>,
    tagging: &Tagging,
) -> BTreeMap<String, Family<'a>> {
    let mut families = BTreeMap::new();
    for scope in scopes {
        let own = Name::of(scope);
        let statuses = Cell::statuses(scope, reading).into_iter().map(Cell::Status);
        for cell in Cell::of(scope).chain(statuses) {
            let (name, labels) = tagging.apply(scope, own.as_ref(), cell.name(scope));
            let part = Part { cell, labels: Labels::Tagged(labels), scopes: std::slice::from_ref(scope) };
            add(&mut families, name, part);
        }
    }
    for family in families.values_mut() {
        family.parts.sort_by(|a, b| a.labels.cmp(&b.labels));
        // Without a distinguishing tag two series may be equal; a duplicate would make Prometheus reject the page.
        family.parts.dedup_by(|a, b| a.labels == b.labels);
    }
    families
}

fn add<'a>(families: &mut BTreeMap<String, Family<'a>>, name: String, part: Part<'a>) {
    let Some(first) = part.scopes.first() else { return };
    let kind = match part.cell {
        Cell::Counter(_) | Cell::Status(_) => Kind::Counter,
        Cell::Gauge(_) => Kind::Gauge,
        Cell::Histogram(_) => Kind::Histogram,
    };
    let help = part.cell.metric(first).map_or("", |metric| metric.help.trim());
    let family = families.entry(name).or_insert_with(|| Family { kind, help, parts: Vec::new() });
    // One family has one type; a second type under the same name would make the whole page unreadable.
    if family.kind == kind {
        family.parts.push(part);
    }
}

struct Page<'r> {
    format: Exposition,
    reading: &'r Reading<'r>,
    out: String,
    /// Sample names of OpenMetrics that are already used.
    names: HashSet<String>,
}

impl Page<'_> {
    fn family(
        &mut self,
        name: &str,
        family: &Family<'_>,
        all: &BTreeMap<String, Family<'_>>,
        wanted: Option<&dyn Fn(&str) -> bool>,
    ) {
        let mut is_first = true;
        for part in &family.parts {
            for scope in part.scopes {
                let Some(value) = part.cell.value(scope, self.reading) else { continue };
                let labels = part.labels.of(scope);
                if wanted.is_some_and(|wanted| !wanted(&format!("{name}{}", braced(&labels)))) {
                    continue;
                }
                if std::mem::take(&mut is_first) && !self.head(name, family, all) {
                    return;
                }
                let per_unit = part.cell.metric(scope).map_or(1, |metric| metric.per_unit);
                self.sample(name, &labels, &value, per_unit);
            }
        }
    }

    /// Writes the family's `#` lines; returns false when OpenMetrics cannot tell its names from another family's.
    fn head(&mut self, name: &str, family: &Family<'_>, all: &BTreeMap<String, Family<'_>>) -> bool {
        let (mut called, mut kind) = (name, family.kind.name());
        if self.format == Exposition::OpenMetrics {
            if family.kind == Kind::Counter {
                // A counter's samples end in `_total`, which is not part of its family's name. A counter with another name
                // keeps that name and has no type; so does one whose family would have the name of another.
                let stem = name.strip_suffix("_total").filter(|stem| !stem.is_empty() && !all.contains_key(*stem));
                (called, kind) = stem.map_or((name, "unknown"), |stem| (stem, "counter"));
            }
            let suffixes: &[&str] = match kind {
                "counter" => &["", "_total", "_created"],
                "histogram" => &["", "_bucket", "_count", "_sum", "_created"],
                _ => &[""],
            };
            let names: Vec<String> = suffixes.iter().map(|suffix| format!("{called}{suffix}")).collect();
            if names.iter().any(|name| self.names.contains(name)) {
                return false;
            }
            self.names.extend(names);
        }
        if !family.help.is_empty() {
            let mut help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            if self.format == Exposition::OpenMetrics {
                help = help.replace('"', "\\\"");
            }
            // Writing to a String cannot fail.
            let _ = writeln!(self.out, "# HELP {called} {help}");
        }
        let _ = writeln!(self.out, "# TYPE {called} {kind}");
        true
    }

    fn sample(&mut self, name: &str, labels: &str, value: &Value, per_unit: u32) {
        let braced = braced(labels);
        let _ = match value {
            Value::Counter(value) if per_unit > 1 => {
                writeln!(self.out, "{name}{braced} {}", *value as f64 / f64::from(per_unit))
            }
            Value::Counter(value) => writeln!(self.out, "{name}{braced} {value}"),
            Value::Gauge(value) => writeln!(self.out, "{name}{braced} {value}"),
            Value::Histogram(value) => {
                self.histogram(name, labels, value);
                Ok(())
            }
        };
    }

    fn histogram(&mut self, name: &str, labels: &str, value: &HistogramSnapshot) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut cumulative = 0u64;
        for (at, count) in value.buckets.iter().enumerate() {
            cumulative = cumulative.wrapping_add(*count);
            let bound = value.bounds.get(at).map_or_else(|| "+Inf".to_owned(), |bound| self.bound(*bound));
            let _ = write!(self.out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {cumulative}");
            if self.format == Exposition::OpenMetrics
                && let Some(taken) = value.exemplars.get(at).copied().flatten()
            {
                taken.write(&mut self.out);
            }
            self.out.push('\n');
        }
        let _ = writeln!(self.out, "{name}_sum{} {}", braced(labels), value.sum);
        let _ = writeln!(self.out, "{name}_count{} {cumulative}", braced(labels));
    }

    /// Formats a bound as OpenMetrics requires, which is as Go does, and with a point: `1.0`, `1e+06`.
    fn bound(&self, bound: f64) -> String {
        let plain = bound.to_string();
        if self.format == Exposition::Prometheus {
            return plain;
        }
        let scientific = format!("{bound:e}");
        let split = scientific.split_once('e').and_then(|(digits, power)| Some((digits, power.parse::<i32>().ok()?)));
        match split {
            Some((digits, power)) if !(-4..6).contains(&power) => {
                let sign = if power < 0 { '-' } else { '+' };
                format!("{digits}e{sign}{:02}", power.abs())
            }
            _ if plain.contains('.') => plain,
            _ => format!("{plain}.0"),
        }
    }
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}
