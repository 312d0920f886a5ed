//! ProxyConfig: which requests are traced, and the tags and the collector of their spans.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::destination_rule::ClientTlsSettings;
use super::remote_service::{check_address, check_tls};
use crate::decode::{Context, Decimal, HeaderName};
use crate::formats;

object! {
    /// Which requests are traced, and where their spans go.
    pub struct Tracing {
        /// A collector that takes Zipkin's format.
        zipkin: Option<ZipkinCollector> = "zipkin",
        /// Further tags of spans, by their names.
        custom_tags: BTreeMap<String, CustomTag> = "customTags",
        /// The longest path in a span, in bytes; 256 if not given.
        max_path_tag_length: Option<u32> = "maxPathTagLength",
        /// Percentage of requests that are traced without an explicit request for tracing; 1 if not given.
        sampling: Option<Spanned<Decimal>> = "sampling",
        /// TLS to the collector.
        tls_settings: Option<Spanned<ClientTlsSettings>> = "tlsSettings",
        /// Whether spans have Istio's tags of the workload; they do if not given.
        enable_istio_tags: Option<bool> = "enableIstioTags",
    }
    later: [
        "lightstep" = "Lightstep accepts OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
        "datadog" = "Datadog's agent takes OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
        "stackdriver" = "send spans to an OpenTelemetry collector, which can forward them",
        "openCensusAgent" = "OpenCensus was replaced by OpenTelemetry: name an `opentelemetry` provider in `defaultProviders.tracing`",
    ];
    check: check_tracing;
}

object! {
    /// A collector that takes Zipkin's format.
    pub struct ZipkinCollector {
        /// HOST:PORT of it.
        address: Option<Spanned<String>> = "address",
    }
    check: check_collector;
}

object! {
    /// The value of a tag of spans: one of these.
    pub struct CustomTag {
        /// This text.
        literal: Option<LiteralTag> = "literal",
        /// That of a variable of the proxy's environment.
        environment: Option<EnvironmentTag> = "environment",
        /// That of a header of the request.
        header: Option<HeaderTag> = "header",
    }
    check: check_tag;
}

object! {
    /// A text.
    pub struct LiteralTag {
        /// The text.
        value: String = "value",
    }
}

object! {
    /// A variable of the environment.
    pub struct EnvironmentTag {
        /// Its name.
        name: String = "name",
        /// The value if there is no such variable; without, there is no tag.
        default_value: Option<String> = "defaultValue",
    }
}

object! {
    /// A header of the request.
    pub struct HeaderTag {
        /// Its name.
        name: HeaderName = "name",
        /// The value if there is no such header; without, there is no tag.
        default_value: Option<String> = "defaultValue",
    }
}

object! {
    /// A format string.
    pub struct FormatterTag {
        /// Text with operators of access logs: `%REQ(:METHOD)%`.
        value: Spanned<String> = "value",
    }
    check: check_formatter;
}

fn check_formatter(tag: &FormatterTag, _: &Node, cx: &mut Context) {
    let effect = "the tag is left out";
    cx.at_field("value", |cx| match tag.value.as_str() {
        "" => cx.warning(
            "bad-value",
            &tag.value.span,
            format!("an empty format string; {effect}"),
            "e.g. `%REQ(:METHOD)%`",
        ),
        text => formats::check(text, &tag.value.span, effect, cx),
    });
}

/// The source of a tag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagSource<'a> {
    /// This text.
    Literal(&'a str),
    /// A variable of the proxy's environment, and the default value.
    Environment(&'a str, Option<&'a str>),
    /// A header of the request, and the default value.
    Header(&'a HeaderName, Option<&'a str>),
    /// A format string of access logs.
    Format(&'a str),
}

impl CustomTag {
    /// Returns the source of its value; `None`: the check has reported why it is ignored.
    pub fn usable(&self) -> Option<TagSource<'_>> {
        TagSource::only([
            self.literal.as_ref().map(LiteralTag::source),
            self.environment.as_ref().map(EnvironmentTag::source),
            self.header.as_ref().map(HeaderTag::source),
        ])
    }
}

impl LiteralTag {
    pub(super) fn source(&self) -> TagSource<'_> {
        TagSource::Literal(&self.value)
    }
}

impl EnvironmentTag {
    pub(super) fn source(&self) -> TagSource<'_> {
        TagSource::Environment(&self.name, self.default_value.as_deref())
    }
}

impl HeaderTag {
    pub(super) fn source(&self) -> TagSource<'_> {
        TagSource::Header(&self.name, self.default_value.as_deref())
    }
}

impl FormatterTag {
    pub(super) fn source(&self) -> TagSource<'_> {
        TagSource::Format(&self.value)
    }
}

impl TagSource<'_> {
    /// The one source that is given; `None`: there is none, or several, or it has no value.
    pub(super) fn only<const SOURCES: usize>(sources: [Option<Self>; SOURCES]) -> Option<Self> {
        let mut sources = sources.into_iter().flatten();
        let source = sources.next()?;
        (source.has_value() && sources.next().is_none()).then_some(source)
    }

    /// Whether it names something; a format string: whether proxies can read it.
    fn has_value(self) -> bool {
        match self {
            Self::Literal(text) | Self::Environment(text, _) => !text.is_empty(),
            Self::Header(name, _) => !name.0.is_empty(),
            Self::Format(text) => !text.is_empty() && formats::is_format(text),
        }
    }
}

/// Maximum number of custom tags of a proxy.
const MAX_TAGS: usize = 128;
/// Istio's share of requests that are traced, in percent.
pub(super) const DEFAULT_SAMPLING: f64 = 1.0;

impl Tracing {
    /// The tags that can be used, with their names.
    pub fn tags(&self) -> impl Iterator<Item = (&str, TagSource<'_>)> {
        let usable = self.custom_tags.iter().filter_map(|(name, tag)| Some((name.as_str(), tag.usable()?)));
        usable.filter(|(name, _)| !name.is_empty()).take(MAX_TAGS)
    }

    /// Returns the percentage of requests that are traced without an explicit request for tracing: 0 stands for the default,
    /// as in Istio.
    pub fn sampling(&self) -> f64 {
        let said = self.sampling.as_ref().map(|sampling| sampling.value.0).filter(|percent| *percent > 0.0);
        said.unwrap_or(DEFAULT_SAMPLING).min(100.0)
    }
}

fn check_tracing(tracing: &Tracing, node: &Node, cx: &mut Context) {
    if let Some(percent) = tracing.sampling.as_ref().filter(|percent| !(0.0..=100.0).contains(&percent.value.0)) {
        let (now, help) = if percent.value.0 > 100.0 {
            ("all requests are traced", "write a percentage from 0 to 100")
        } else {
            ("it counts as 1", "write a percentage above 0; 0 stands for 1")
        };
        let message = format!("{} is no percentage; {now}", percent.value.0);
        cx.at_field("sampling", |cx| cx.warning("bad-value", &percent.span, message, help));
    }
    if let Some(percent) = tracing.sampling.as_ref().filter(|percent| percent.value.0 == 0.0) {
        let message = "as in Istio, 0 stands for the default: 1 % of requests are traced";
        cx.at_field("sampling", |cx| {
            cx.note("no-effect", &percent.span, message, "to trace none, set `enableTracing: false` for the mesh");
        });
    }
    if tracing.custom_tags.len() > MAX_TAGS || tracing.custom_tags.contains_key("") {
        let message =
            format!("spans have {MAX_TAGS} tags of the owner at most, each with a name; the others are left out");
        let span = node.span_of_path("customTags");
        cx.at_field("customTags", |cx| cx.warning("bad-value", span, message, "remove those that nobody looks for"));
    }
    if tracing.max_path_tag_length == Some(0) {
        let message = "as in Istio, 0 stands for the default, 256";
        let help = "write the number of bytes of a path that spans show";
        cx.at_field("maxPathTagLength", |cx| {
            cx.note("no-effect", node.span_of_path("maxPathTagLength"), message, help)
        });
    }
    check_tls(tracing.tls_settings.as_ref(), cx);
}

fn check_collector(collector: &ZipkinCollector, _: &Node, cx: &mut Context) {
    check_address("address", collector.address.as_ref(), cx);
}

fn check_tag(tag: &CustomTag, node: &Node, cx: &mut Context) {
    if tag.usable().is_none() {
        let message = "a tag has one of `literal`, `environment` and `header`, with a value or a name; it is left out";
        cx.warning("bad-value", &node.span, message, "e.g. `literal: {value: blue}`");
    }
}
