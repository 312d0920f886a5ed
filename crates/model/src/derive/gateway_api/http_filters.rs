//! Filters of rules and backends.

use std::sync::Arc;

use evenkeel_api::gateway_api::{
    CorsFilter, FilterType, HeaderModifier, HttpFilter, PathModifier, RedirectScheme, RequestMirror, RequestRedirect,
    UrlRewrite,
};
use evenkeel_base::Spanned;
use evenkeel_base::re2::quote;

use super::super::shared;
use super::backends::Backends;
use crate::{
    CorsPolicy, DestinationState, HeaderOperations, Headers, Millionths, Mirror, Redirect, RedirectPort, Rewrite,
    StringMatch,
};

/// The default of `maxAge`, in seconds.
const DEFAULT_MAX_AGE: u32 = 5;
/// The default status of a redirect.
const DEFAULT_REDIRECT: u16 = 302;

/// What the filters of a rule do.
#[derive(Debug, Default)]
pub(super) struct Filters {
    pub(super) headers: Headers,
    pub(super) redirect: Option<Redirect>,
    pub(super) rewrite: Option<Rewrite>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) cors: Option<CorsPolicy>,
    /// A filter cannot be honoured, so that requests must not pass.
    pub(super) is_refused: bool,
}

/// The filters of a rule whose condition is on this prefix.
pub(super) fn of_rule(written: &[Spanned<HttpFilter>], prefix: &str, backends: &mut Backends<'_, '_>) -> Filters {
    let mut filters = Filters::default();
    for filter in written {
        apply_headers(filter, &mut filters.headers);
        if let Some(redirect) = &filter.request_redirect {
            filters.redirect = Some(redirect_of(redirect, prefix));
        }
        if let Some(rewrite) = &filter.url_rewrite {
            filters.rewrite = Some(rewrite_of(rewrite, prefix));
        }
        if let Some(cors) = &filter.cors {
            filters.cors = Some(cors_of(cors));
        }
        filters.mirrors.extend(filter.request_mirror.as_ref().and_then(|mirror| mirror_of(mirror, backends)));
        if let Some(extension) = &filter.extension_ref {
            let message = format!(
                "the filter {} `{}` of `{}` is not known",
                extension.kind, extension.name.value, extension.group
            );
            backends.warn("unsupported-filter", &filter.span, message, "remove the filter".to_owned());
            filters.is_refused = true;
        }
    }
    filters
}

/// The changes to headers that a backend's filters make; `None`: one of them cannot be honoured for a single backend, as in
/// Istio.
pub(super) fn of_backend(written: &[Spanned<HttpFilter>], backends: &mut Backends<'_, '_>) -> Option<Headers> {
    let mut headers = Headers::default();
    let mut is_refused = false;
    for filter in written {
        apply_headers(filter, &mut headers);
        if !matches!(filter.kind, FilterType::RequestHeaderModifier | FilterType::ResponseHeaderModifier) {
            let message =
                format!("a filter of the type {} is not supported for a single backend", filter.kind.as_str());
            backends.warn("unsupported-filter", &filter.span, message, "move it to the rule".to_owned());
            is_refused = true;
        }
    }
    (!is_refused).then_some(headers)
}

fn apply_headers(filter: &HttpFilter, headers: &mut Headers) {
    if let Some(written) = &filter.request_header_modifier {
        headers.request = operations(written);
    }
    if let Some(written) = &filter.response_header_modifier {
        headers.response = operations(written);
    }
}

fn operations(written: &HeaderModifier) -> HeaderOperations {
    let pair = |header: &evenkeel_api::gateway_api::HeaderValue| (header.name.0.clone(), shared(&header.value));
    HeaderOperations {
        set: written.set.iter().map(pair).collect(),
        add: written.add.iter().map(pair).collect(),
        remove: written.remove.iter().map(|name| name.0.clone()).collect(),
    }
}

/// A new path.
#[derive(Default)]
struct NewPath {
    /// Replaces the path.
    full: Option<Arc<str>>,
    /// Replaces the prefix.
    prefix: Option<Arc<str>>,
    /// Replaces what an expression finds.
    regex: Option<(Arc<str>, Arc<str>)>,
}

/// `prefix` is what the rule's condition matches, without a slash at its end. What replaces it and what follows are joined by
/// one slash.
fn new_path(written: Option<&PathModifier>, prefix: &str) -> NewPath {
    let Some(written) = written else { return NewPath::default() };
    if let Some(full) = &written.replace_full_path {
        return NewPath { full: Some(shared(full)), ..NewPath::default() };
    }
    let replacement = written.replace_prefix_match.as_deref().unwrap_or_default().trim_end_matches('/');
    match (prefix, replacement) {
        ("/", _) => NewPath { prefix: Some(format!("{replacement}/").into()), ..NewPath::default() },
        // The slash after the prefix remains alone.
        (prefix, "") => {
            let pattern = format!("^{}/*", quote(prefix));
            NewPath { regex: Some((pattern.into(), "/".into())), ..NewPath::default() }
        }
        (_, replacement) => NewPath { prefix: Some(shared(replacement)), ..NewPath::default() },
    }
}

fn redirect_of(written: &RequestRedirect, prefix: &str) -> Redirect {
    let path = new_path(written.path.as_ref(), prefix);
    let port = match (written.port, written.scheme) {
        (Some(port), _) => RedirectPort::Number(port.0),
        (None, Some(_)) => RedirectPort::ProtocolDefault,
        (None, None) => RedirectPort::Request,
    };
    Redirect {
        uri: path.full,
        prefix: path.prefix,
        uri_regex: path.regex,
        authority: written.hostname.as_ref().map(|host| shared(host.as_str())),
        scheme: written.scheme.map(|scheme: RedirectScheme| shared(scheme.as_str())),
        port: Some(port),
        // The decoder has checked that it is a redirect status.
        code: written.status_code.as_ref().and_then(|code| u16::try_from(code.value).ok()).unwrap_or(DEFAULT_REDIRECT),
    }
}

fn rewrite_of(written: &UrlRewrite, prefix: &str) -> Rewrite {
    let path = new_path(written.path.as_ref(), prefix);
    let full = path.full.map(|full| (shared("/.*"), shared(&full.replace('\\', "\\\\"))));
    Rewrite {
        uri: path.prefix,
        authority: written.hostname.as_ref().map(|host| shared(host.as_str())),
        uri_regex: full.or(path.regex),
    }
}

/// A mirror that cannot be used is left out: requests do not depend on it.
fn mirror_of(written: &RequestMirror, backends: &mut Backends<'_, '_>) -> Option<Mirror> {
    let effect = std::mem::replace(&mut backends.effect, "no copies are sent there");
    let destination = backends.destination(written.backend_ref.target());
    backends.effect = effect;
    let of_fraction = written.fraction.as_ref().map(|fraction| {
        let denominator = fraction.denominator.unwrap_or(100).max(1);
        f64::from(fraction.numerator) * 100.0 / f64::from(denominator)
    });
    let percent = written.percent.as_ref().map(|percent| f64::from(percent.value)).or(of_fraction);
    let share = percent.map_or(Millionths::ALL, Millionths::from_percent);
    let is_used = destination.state == DestinationState::Known && share > Millionths(0);
    is_used.then_some(Mirror { destination, share })
}

fn cors_of(written: &CorsFilter) -> CorsPolicy {
    let joined = |texts: &[Spanned<String>]| -> Arc<str> {
        shared(&texts.iter().map(|text| text.as_str()).collect::<Vec<_>>().join(","))
    };
    CorsPolicy {
        allow_origins: written.allow_origins.iter().map(|origin| origin_of(origin)).collect(),
        allow_methods: joined(&written.allow_methods),
        allow_headers: joined(&written.allow_headers),
        expose_headers: joined(&written.expose_headers),
        max_age: Some(u64::from(written.max_age.unwrap_or(DEFAULT_MAX_AGE))),
        allow_credentials: written.allow_credentials,
        forwards_unmatched: false,
    }
}

/// An origin; a wildcard stands for any text.
fn origin_of(written: &str) -> StringMatch {
    match written.split_once('*') {
        None => StringMatch::Exact(shared(written)),
        Some((before, after)) => StringMatch::Regex(format!("{}.*{}", quote(before), quote(after)).into()),
    }
}
