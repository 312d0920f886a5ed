//! Extracts tags from metrics' names, as configured (Envoy's `stats_tags`).

use std::fmt;
use std::ops::Range;

use crate::scope::{ScopeCore, push_label, sanitized};

/// How the names and labels of metrics for Prometheus are formed.
#[derive(Debug)]
pub struct Tagging {
    /// The built-in tags that are extracted.
    pub defaults: DefaultTags,
    /// Further tags. Of two with the same label the first that matches applies.
    pub extractors: Vec<Extractor>,
}

/// Built-in tags, such as `envoy_cluster_name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultTags {
    /// All built-in tags.
    All,
    /// Only those with these labels; the values of the others stay in the names.
    Only(Vec<String>),
}

impl DefaultTags {
    fn has(&self, label: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(labels) => labels.iter().any(|known| known == label),
        }
    }
}

/// A configured tag.
pub struct Extractor {
    /// Its label.
    pub label: String,
    /// The tag only applies to names that start with this word and a dot. Such a tag is extracted after the built-in ones.
    pub token: Option<String>,
    /// How its value is found.
    pub find: Find,
}

/// How a tag's value is found.
pub enum Find {
    /// The value is fixed.
    Fixed(String),
    /// The value is found in the name.
    Search(Search),
}

/// Searches a name, as in `/stats`, for a tag.
pub type Search = Box<dyn Fn(&str) -> Option<Found> + Send + Sync>;

/// A match in a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The part that is removed from the name.
    pub removed: Range<usize>,
    /// The value.
    pub value: Range<usize>,
}

impl fmt::Debug for Extractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extractor({})", self.label)
    }
}

/// Returns a label name for a tag: characters that Prometheus forbids become `_`.
pub fn label_name(tag: &str) -> String {
    let name = sanitized(tag).replace(':', "_");
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// The tags found in one name.
#[derive(Default)]
struct Tags {
    labels: Vec<(String, String)>,
    removed: Vec<Range<usize>>,
}

impl Tags {
    fn add(&mut self, label: &str, value: &str, removed: Range<usize>) {
        if self.labels.iter().all(|(known, _)| known != label) {
            self.labels.push((label.to_owned(), value.to_owned()));
            self.removed.push(removed);
        }
    }

    fn extract(&mut self, extractor: &Extractor, name: &str) {
        match &extractor.find {
            Find::Fixed(value) => self.add(&extractor.label, value, 0..0),
            Find::Search(search) => {
                if let Some(found) = search(name)
                    && let Some(value) = name.get(found.value)
                {
                    self.add(&extractor.label, value, found.removed);
                }
            }
        }
    }

    /// Returns the name without the removed parts.
    fn rest(&self, name: &str) -> String {
        let is_kept = |at: usize| self.removed.iter().all(|removed| !removed.contains(&at));
        name.char_indices().filter(|(at, _)| is_kept(*at)).map(|(_, c)| c).collect()
    }

    fn labels(&self) -> String {
        let mut text = String::new();
        self.labels.iter().for_each(|(name, value)| push_label(&mut text, name, value));
        text
    }
}

impl Tagging {
    /// Returns the name and the labels of one metric of a scope. `own`: the scope's name, if it has one in `/stats`.
    ///
    /// Extractors see the name as in `/stats`, and run in Envoy's order: first those without a leading word, among them only
    /// the response codes of the built-in ones; then those with a leading word, the built-in ones first.
    pub(crate) fn apply(&self, scope: &ScopeCore, own: Option<&Name<'_>>, metric: String) -> (String, String) {
        let Some(own) = own else { return self.only_fixed(scope, metric) };
        let (name, tags) = self.find(scope, own, metric);
        (format!("{}{}", own.prefix, sanitized(&name)), tags.labels())
    }

    /// Like [`apply`](Self::apply), but returns the name as in `/stats`, without its tags.
    pub(crate) fn take(
        &self,
        scope: &ScopeCore,
        own: Option<&Name<'_>>,
        metric: String,
    ) -> (String, Vec<(String, String)>) {
        match own {
            Some(own) => {
                let (name, tags) = self.find(scope, own, metric);
                (name, tags.labels)
            }
            None => {
                let (name, labels) = self.only_fixed(scope, metric);
                (name, parsed(&labels))
            }
        }
    }

    /// Returns a name without its tags, and the tags.
    fn find(&self, scope: &ScopeCore, own: &Name<'_>, metric: String) -> (String, Tags) {
        let name = format!("{}{metric}", scope.dotted);
        let mut tags = Tags::default();
        let length = metric.len();
        if let (stem, Some((label, value))) = without_tags(metric)
            && self.defaults.has(label)
        {
            // `_503` is removed completely; of `_5xx` only the digit is the value, and `_xx` stays.
            let at = name.len() - 3;
            let removed = if stem.len() + 4 == length { at - 1..name.len() } else { at..at + 1 };
            tags.add(label, &value, removed);
        }
        for extractor in self.extractors.iter().filter(|extractor| extractor.token.is_none()) {
            tags.extract(extractor, &name);
        }
        for (label, value, removed) in own.own.iter().filter(|(label, ..)| self.defaults.has(label)) {
            tags.add(label, value, removed.clone());
        }
        let token = name.split_once('.').map(|(token, _)| token);
        for extractor in
            self.extractors.iter().filter(|extractor| token.is_some() && extractor.token.as_deref() == token)
        {
            tags.extract(extractor, &name);
        }
        (tags.rest(&name), tags)
    }

    /// Applies the fixed tags to a metric that Envoy does not have.
    fn only_fixed(&self, scope: &ScopeCore, metric: String) -> (String, String) {
        let (metric, label) = without_tags(metric);
        let mut labels = scope.labels.to_string();
        if let Some((name, value)) = label {
            push_label(&mut labels, name, &value);
        }
        for extractor in &self.extractors {
            if let Find::Fixed(value) = &extractor.find
                && parsed(&labels).iter().all(|(name, _)| *name != extractor.label)
            {
                push_label(&mut labels, &extractor.label, value);
            }
        }
        (format!("{}{}", scope.family, sanitized(&metric)), labels)
    }
}

impl Default for Tagging {
    /// Extracts only the built-in tags.
    fn default() -> Self {
        Self { defaults: DefaultTags::All, extractors: Vec::new() }
    }
}

/// A scope's name, with the positions of its own tags. Finding them takes a search, done once for all metrics of the scope.
pub(crate) struct Name<'a> {
    /// The prefix in Prometheus text.
    prefix: &'a str,
    own: Vec<(String, String, Range<usize>)>,
}

impl<'a> Name<'a> {
    /// Returns `None` if the scope has no name in `/stats`.
    pub(crate) fn of(scope: &'a ScopeCore) -> Option<Self> {
        if scope.dotted.is_empty() {
            return None;
        }
        let labels = parsed(&scope.labels);
        let values: Vec<&str> = labels.iter().map(|(_, value)| value.as_str()).collect();
        let prefixes = ["envoy_", "evenkeel_", ""].into_iter().filter_map(|prefix| {
            let rest = scope.family.strip_prefix(prefix)?;
            Some((&scope.family[..prefix.len()], places(&scope.dotted, rest, &values)?))
        });
        let (prefix, places) = prefixes.into_iter().next()?;
        let own = labels.into_iter().zip(places).map(|((label, value), place)| (label, value, place));
        Some(Self { prefix, own: own.collect() })
    }
}

/// Returns where in `dotted` the values of tags are, including the separators that are removed with them, given the remaining
/// name `rest`.
fn places(dotted: &str, rest: &str, values: &[&str]) -> Option<Vec<Range<usize>>> {
    let remains = |part: &str, rest: &str| sanitized(part) == rest;
    let Some((value, further)) = values.split_first() else { return remains(dotted, rest).then(Vec::new) };
    for (at, _) in dotted.match_indices(value) {
        let starts = (0..=at).rev().filter(|start| {
            let (part, rest) = (dotted.get(..*start), rest.get(..*start));
            part.zip(rest).is_some_and(|(part, rest)| remains(part, rest))
        });
        for start in starts {
            for end in at + value.len()..=dotted.len() {
                let (Some(part), Some(rest)) = (dotted.get(end..), rest.get(start..)) else { continue };
                if let Some(places) = places(part, rest, further) {
                    let later = places.into_iter().map(|place| place.start + end..place.end + end);
                    return Some(std::iter::once(start..end).chain(later).collect());
                }
            }
        }
    }
    None
}

/// Parses labels in Prometheus' syntax, without braces.
pub(crate) fn parsed(labels: &str) -> Vec<(String, String)> {
    let (mut parsed, mut rest) = (Vec::new(), labels);
    while let Some((name, text)) = rest.split_once("=\"") {
        let (mut value, mut chars, mut end) = (String::new(), text.char_indices(), text.len());
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c)) => value.push(c),
                    None => {}
                },
                c => value.push(c),
            }
        }
        parsed.push((name.to_owned(), value));
        rest = text.get(end..).unwrap_or_default().trim_start_matches(',');
    }
    parsed
}

/// Extracts the tags from a metric's own name as Envoy's extractors do: `…_rq_503` and `…_rq_5xx`.
pub(crate) fn without_tags(metric: String) -> (String, Option<(&'static str, String)>) {
    if let Some((stem, last)) = metric.rsplit_once('_')
        && last.len() == 3
    {
        let digits = last.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 3 {
            return (stem.to_owned(), Some(("envoy_response_code", last.to_owned())));
        }
        if digits == 1 && last.ends_with("xx") {
            return (format!("{stem}_xx"), Some(("envoy_response_code_class", last[..1].to_owned())));
        }
    }
    (metric, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, ScopeName};

    #[test]
    fn finds_where_tags_are_in_names() {
        let check = |dotted: &str, rest: &str, values: &[&str], expected: Option<&[&str]>| {
            let found = places(dotted, rest, values);
            let texts = found.map(|places| places.into_iter().map(|place| &dotted[place]).collect::<Vec<_>>());
            assert_eq!(texts.as_deref(), expected, "{dotted} {rest}");
        };
        check("server.", "server_", &[], Some(&[]));
        check("cluster.a.", "cluster_", &["a"], Some(&["a."]));
        check("cluster.cluster.", "cluster_", &["cluster"], Some(&["cluster."]));
        check("cluster.outbound|80||a.b.", "cluster_", &["outbound|80||a.b"], Some(&["outbound|80||a.b."]));
        check("workers.worker_3.", "workers_", &["3"], Some(&["worker_3."]));
        check("listener.0.0.0.0_80.worker_0.", "listener_worker_", &["0.0.0.0_80", "0"], Some(&["0.0.0.0_80.", "0."]));
        check("listener.[__]_80.ssl.", "listener_ssl_", &["[__]_80"], Some(&["[__]_80."]));
        check("cluster.a.", "cluster_", &["b"], None);
        check("cluster.a.", "other_", &["a"], None);
    }

    #[test]
    fn labels_are_read_as_they_were_written() {
        for labels in [&[][..], &[("a", "x")], &[("a", "x\"y\\z\n,b=\"1\""), ("b", "")]] {
            let mut text = String::new();
            labels.iter().for_each(|(name, value)| push_label(&mut text, name, value));
            let expected: Vec<_> =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(parsed(&text), expected, "{text}");
        }
    }

    crate::layout! {
        /// A test scope.
        pub mod cluster {
            counters { upstream_rq_5xx, x_total }
            gauges {}
            histograms {}
            statuses Some("upstream_rq_")
        }
    }

    /// Returns an extractor for a tag whose value follows `word=` up to a semicolon.
    fn search(label: &str, token: Option<&str>) -> Extractor {
        let word = format!("{label}=");
        let find = move |name: &str| {
            let at = name.find(&word)?;
            let value = at + word.len();
            let end = value + name.get(value..)?.find(';')?;
            Some(Found { removed: at..end + 1, value: value..end })
        };
        Extractor { label: label.to_owned(), token: token.map(str::to_owned), find: Find::Search(Box::new(find)) }
    }

    #[test]
    fn names_lose_what_tags_take_out() {
        let check = |cluster: &str, defaults: DefaultTags, extractors: Vec<Extractor>, expected: &[&str]| {
            let registry = Registry::new();
            let scope = registry.scope::<cluster::Stats>(ScopeName::tagged("cluster", "envoy_cluster_name", cluster));
            scope.writer().status(503);
            let labelled = ScopeName::labelled("own_", vec![("a", "b".to_owned())]);
            let own = registry.scope::<cluster::Stats>(labelled);
            registry.tag(Tagging { defaults, extractors });
            let page = registry.prometheus_text();
            let lines = page.lines().filter(|line| !line.starts_with('#') && !line.contains("5xx"));
            let mut lines: Vec<&str> = lines.collect();
            lines.sort_unstable();
            assert_eq!(lines, expected, "{cluster}\n{page}");
            drop((scope, own));
        };
        let fixed = |label: &str| Extractor { label: label.into(), token: None, find: Find::Fixed("f".into()) };
        let none = || DefaultTags::Only(Vec::new());
        let [own, own_xx] = ["own_x_total{a=\"b\"} 0", "own_upstream_rq_xx{a=\"b\",envoy_response_code_class=\"5\"} 0"];
        check(
            "t=v;c",
            DefaultTags::All,
            vec![search("t", None)],
            &[
                "envoy_cluster_upstream_rq_xx{envoy_response_code_class=\"5\",t=\"v\",envoy_cluster_name=\"t=v;c\"} 0",
                "envoy_cluster_upstream_rq{envoy_response_code=\"503\",t=\"v\",envoy_cluster_name=\"t=v;c\"} 1",
                "envoy_cluster_x_total{t=\"v\",envoy_cluster_name=\"t=v;c\"} 0",
                own_xx,
                own,
            ],
        );
        check(
            "t=v;c",
            none(),
            vec![search("t", Some("cluster")), search("t", None), search("u", Some("listener"))],
            &["envoy_cluster_c_upstream_rq_503{t=\"v\"} 1", "envoy_cluster_c_x_total{t=\"v\"} 0", own_xx, own],
        );
        check(
            "c",
            DefaultTags::Only(vec!["envoy_cluster_name".into()]),
            vec![fixed("envoy_cluster_name"), fixed("a")],
            &[
                "envoy_cluster_c_upstream_rq_503{envoy_cluster_name=\"f\",a=\"f\"} 1",
                "envoy_cluster_c_x_total{envoy_cluster_name=\"f\",a=\"f\"} 0",
                "own_upstream_rq_xx{a=\"b\",envoy_response_code_class=\"5\",envoy_cluster_name=\"f\"} 0",
                "own_x_total{a=\"b\",envoy_cluster_name=\"f\"} 0",
            ],
        );
    }
}
