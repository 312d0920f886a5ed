//! Why a route does not match a request: the proxy's own matchers, asked one by one.

use evenkeel_runtime_config::matching::{HeaderMatcher, HeaderValueMatcher, query_parameter, split_path};
use evenkeel_runtime_config::route::{PathMatch, RouteMatch};
use evenkeel_runtime_config::route_match::is_grpc;
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::{PlainRequest, RequestView};

/// The conditions of a route that do not hold for a request, in the order that they are written in.
pub fn reasons(wanted: &RouteMatch, request: &PlainRequest, random: u64) -> Vec<String> {
    let (path, query) = split_path(request.path());
    let mut all = Vec::new();
    // A path is asked for as part of the whole match: alone it is a match without the rest.
    let only_path = RouteMatch {
        path: copy(&wanted.path),
        case_sensitive: wanted.case_sensitive,
        headers: Vec::new(),
        query_parameters: Vec::new(),
        fraction_ppm: 1_000_000,
        grpc_only: false,
        dynamic_metadata: Vec::new(),
    };
    if !only_path.matches(request, random) {
        let (path, wanted) = (String::from_utf8_lossy(path), path_text(&wanted.path, wanted.case_sensitive));
        all.push(format!("path {path} is not {wanted}"));
    }
    all.extend(
        wanted.headers.iter().filter(|header| !header.matches(request)).map(|header| header_text(header, request)),
    );
    for parameter in wanted.query_parameters.iter().filter(|parameter| !parameter.matches(query)) {
        let has = query_parameter(query, parameter.name.as_bytes()).map(String::from_utf8_lossy);
        let wanted = parameter.value.as_ref().map_or_else(|| "present".to_owned(), string_text);
        all.push(match has {
            Some(has) => format!("query parameter {} is \"{has}\", not {wanted}", parameter.name),
            None => format!("query parameter {} is absent, must be {wanted}", parameter.name),
        });
    }
    if wanted.grpc_only && !is_grpc(request) {
        all.push("the request is not gRPC".to_owned());
    }
    if random % 1_000_000 >= u64::from(wanted.fraction_ppm) {
        all.push(format!("it takes only {} % of requests, at random", f64::from(wanted.fraction_ppm) / 10_000.0));
    }
    all
}

/// A condition on the path, for people.
pub fn path_text(path: &PathMatch, case_sensitive: bool) -> String {
    let text = match path {
        PathMatch::Prefix(prefix) => format!("below prefix {prefix}"),
        PathMatch::Exact(exact) => format!("exactly {exact}"),
        PathMatch::Regex(regex) => format!("matched by {}", regex.as_str()),
        PathMatch::SeparatedPrefix(prefix) => format!("{prefix} or below it"),
        PathMatch::Connect => "a CONNECT request".to_owned(),
    };
    if case_sensitive { text } else { format!("{text}, in any case") }
}

fn header_text(wanted: &HeaderMatcher, request: &PlainRequest) -> String {
    let name = match &*wanted.name {
        ":method" => "method".to_owned(),
        ":authority" => "authority".to_owned(),
        ":scheme" => "scheme".to_owned(),
        other => format!("header {other}"),
    };
    let has = request.header(&wanted.name).map(|value| String::from_utf8_lossy(&value).into_owned());
    let (is, must) = if wanted.invert { ("is", "must not be") } else { ("is", "must be") };
    let value = match &wanted.value {
        HeaderValueMatcher::Present(true) => "present".to_owned(),
        HeaderValueMatcher::Present(false) => "absent".to_owned(),
        HeaderValueMatcher::String(text) => string_text(text),
        HeaderValueMatcher::Range { start, end } => format!("a number in [{start}, {end})"),
    };
    match has {
        Some(has) => format!("{name} {is} \"{has}\", {must} {value}"),
        None => format!("{name} is absent, {must} {value}"),
    }
}

/// A condition on a text, for people.
pub fn string_text(wanted: &StringMatcher) -> String {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    match wanted {
        StringMatcher::Exact { value, .. } => format!("\"{}\"", text(value)),
        StringMatcher::Prefix { value, .. } => format!("\"{}…\"", text(value)),
        StringMatcher::Suffix { value, .. } => format!("\"…{}\"", text(value)),
        StringMatcher::Contains { value, .. } => format!("\"…{}…\"", text(value)),
        StringMatcher::Regex(regex) => format!("matched by {}", regex.as_str()),
    }
}

fn copy(path: &PathMatch) -> PathMatch {
    match path {
        PathMatch::Prefix(text) => PathMatch::Prefix(text.clone()),
        PathMatch::Exact(text) => PathMatch::Exact(text.clone()),
        PathMatch::Regex(regex) => PathMatch::Regex(regex.clone()),
        PathMatch::SeparatedPrefix(text) => PathMatch::SeparatedPrefix(text.clone()),
        PathMatch::Connect => PathMatch::Connect,
    }
}
