//! Path rewriting and redirect locations: pure functions over the request and the route that matched.

use std::borrow::Cow;

use evenkeel_base::re2::Regex;

use crate::route::{ForwardAction, PathMatch, RedirectAction, RedirectPath, RouteMatch};
use crate::view::RequestView;

impl ForwardAction {
    /// The path to send upstream; borrowed if the route does not rewrite it.
    pub fn rewrite_path<'p>(&self, matched: &RouteMatch, path: &'p [u8]) -> Cow<'p, [u8]> {
        if let Some(prefix) = &self.prefix_rewrite {
            return rooted(Cow::Owned(replace_matched(matched, path, prefix.as_bytes())));
        }
        match &self.regex_rewrite {
            Some((pattern, substitution)) => rooted(replace_pattern(pattern, substitution.as_bytes(), path)),
            None => Cow::Borrowed(path),
        }
    }
}

impl RedirectAction {
    /// The value of `location`.
    pub fn location(&self, matched: &RouteMatch, request: &impl RequestView) -> Vec<u8> {
        let scheme = self.scheme.as_deref().map_or(request.scheme(), str::as_bytes);
        let host = match &self.host {
            Some(host) => host.as_bytes(),
            None => self.request_host(scheme, request),
        };
        let mut location = Vec::with_capacity(scheme.len() + host.len() + request.path().len() + 16);
        location.extend_from_slice(scheme);
        location.extend_from_slice(b"://");
        location.extend_from_slice(host);
        if let Some(port) = self.port {
            location.extend_from_slice(format!(":{port}").as_bytes());
        }
        self.write_path(&mut location, matched, request.path());
        location
    }

    /// The request's own host, without a port that the new scheme or port makes wrong.
    fn request_host<'r>(&self, scheme: &[u8], request: &'r impl RequestView) -> &'r [u8] {
        let authority = request.authority();
        let after_address = authority.iter().rposition(|&b| b == b']').unwrap_or(0);
        let Some(colon) = authority[after_address..].iter().rposition(|&b| b == b':') else { return authority };
        let (host, port) = authority.split_at(after_address + colon);
        let default_port = match request.scheme() {
            b"https" => &b":443"[..],
            b"http" => b":80",
            _ => b"",
        };
        let wrong = self.port.is_some() || (scheme != request.scheme() && port == default_port);
        if wrong { host } else { authority }
    }

    fn write_path(&self, out: &mut Vec<u8>, matched: &RouteMatch, path: &[u8]) {
        let rewritten = match &self.path {
            RedirectPath::Keep => Cow::Borrowed(path),
            // A query in the new path replaces the request's, and is never stripped.
            RedirectPath::Full(full) if full.contains('?') => {
                out.extend_from_slice(full.as_bytes());
                return;
            }
            RedirectPath::Full(full) => Cow::Owned([full.as_bytes(), query_with_mark(path)].concat()),
            RedirectPath::Prefix(prefix) => Cow::Owned(replace_matched(matched, path, prefix.as_bytes())),
            RedirectPath::Regex(pattern, substitution) => replace_pattern(pattern, substitution.as_bytes(), path),
        };
        // A URL may have an empty path.
        let rewritten =
            if matches!(rewritten.first(), None | Some(b'?' | b'#')) { rewritten } else { rooted(rewritten) };
        let end = rewritten.len() - if self.strip_query { query_with_mark(&rewritten).len() } else { 0 };
        out.extend_from_slice(&rewritten[..end]);
    }
}

/// Ensures that a rewritten path begins with a slash: what the route removed may have been all that kept the rest from
/// being read as part of the host (`@evil.example`, `.evil.example`) or as a URL.
fn rooted(path: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match path.first() {
        Some(b'/') => path,
        _ => Cow::Owned([b"/", &*path].concat()),
    }
}

/// A path as the value of `location`, where one that begins with two slashes would be read as a host (RFC 3986 section
/// 4.2; browsers also treat `\` as `/`). The prefix `/.` does not change which path it denotes.
pub fn path_as_location(path: &[u8]) -> Vec<u8> {
    match path {
        [b'/' | b'\\', b'/' | b'\\', ..] => [b"/.", path].concat(),
        path => path.to_vec(),
    }
}

/// The URL of the same request over https, for `require_tls`.
pub fn https_location(request: &impl RequestView) -> Vec<u8> {
    let action = RedirectAction {
        scheme: Some("https".into()),
        host: None,
        port: None,
        path: RedirectPath::Keep,
        status: 301,
        strip_query: false,
    };
    let any = RouteMatch {
        path: PathMatch::Prefix("/".into()),
        case_sensitive: true,
        headers: Vec::new(),
        query_parameters: Vec::new(),
        fraction_ppm: 1_000_000,
        grpc_only: false,
        dynamic_metadata: Vec::new(),
    };
    action.location(&any, request)
}

/// Replaces the part of the path that the route matched: the prefix, or the whole path for an exact or regex match.
fn replace_matched(matched: &RouteMatch, path: &[u8], replacement: &[u8]) -> Vec<u8> {
    let path_length = path.len() - query_with_mark(path).len();
    let matched_length = match &matched.path {
        PathMatch::Prefix(prefix) | PathMatch::SeparatedPrefix(prefix) => prefix.len().min(path_length),
        PathMatch::Exact(_) | PathMatch::Regex(_) | PathMatch::Connect => path_length,
    };
    [replacement, &path[matched_length..]].concat()
}

/// Replaces every match of the pattern in the path; the query is unchanged.
fn replace_pattern<'p>(pattern: &Regex, substitution: &[u8], path: &'p [u8]) -> Cow<'p, [u8]> {
    let query = query_with_mark(path);
    let bare = &path[..path.len() - query.len()];
    match pattern.replace_all(bare, substitution) {
        Cow::Borrowed(_) => Cow::Borrowed(path),
        Cow::Owned(mut rewritten) => {
            rewritten.extend_from_slice(query);
            Cow::Owned(rewritten)
        }
    }
}

/// The `?query` of a path, or nothing.
fn query_with_mark(path: &[u8]) -> &[u8] {
    match path.iter().position(|&b| b == b'?' || b == b'#') {
        Some(at) => &path[at..],
        None => b"",
    }
}
