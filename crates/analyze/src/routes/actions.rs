//! What becomes of requests, as the rule of an HTTPRoute.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_model::{
    CorsPolicy, Destination, DestinationState, HashKey, HttpAction, HttpRoute, LbPolicy, Millionths, Mirror, Redirect,
    RedirectPort, Rewrite, Service, StringMatch, WeightedDestination,
};
use serde_json::{Map, Value, json};

use super::conditions::Condition;
use super::writer::Writer;
use super::{headers, retries};

/// Where a rule applies, as far as it matters to what it says.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// The namespace of the route.
    pub(super) namespace: Arc<str>,
    /// The port that is called, if the route is for a single one.
    pub(super) port: Option<u16>,
    /// At a gateway, backends of other namespaces need a grant.
    pub(super) is_gateway: bool,
    /// All ports are the usual ones of their schemes.
    pub(super) has_usual_ports: bool,
}

/// A Service of another namespace that routes lead to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grant {
    pub(super) from_namespace: Arc<str>,
    pub(super) namespace: Arc<str>,
    pub(super) service: Arc<str>,
}

/// Writes rules for one place.
pub(super) struct Rules<'w, 'a> {
    pub(super) writer: &'w mut Writer<'a>,
    pub(super) setting: Setting,
    pub(super) grants: BTreeSet<Grant>,
}

/// The most backends of a rule.
const MAX_BACKENDS: usize = 16;

impl Rules<'_, '_> {
    /// A rule without its conditions. `condition` is its only one, if a prefix has to be replaced.
    pub(super) fn rule(&mut self, route: &HttpRoute, condition: Option<&Condition>) -> Map<String, Value> {
        let span = &route.origin;
        if route.fault.is_some() {
            let help = "leave the VirtualService while the test runs";
            self.writer.refuse(span, "`fault`: the Gateway API injects no faults", help);
        }
        let mut rule = Map::new();
        let mut filters = headers::filters(self.writer, &route.headers, span);
        filters.extend(route.cors.as_ref().and_then(|cors| self.cors(cors, span)));
        match &route.action {
            HttpAction::Route { destinations, rewrite, timeout, retries, mirrors } => {
                filters.extend(rewrite.as_ref().and_then(|rewrite| self.rewrite(rewrite, condition, span)));
                filters.extend(mirrors.iter().filter_map(|mirror| self.mirror(mirror)).collect::<Vec<_>>());
                rule.insert("backendRefs".to_owned(), self.backends(destinations, span).into());
                rule.extend(retries::fields(self.writer, *timeout, retries.as_ref(), span));
            }
            HttpAction::Redirect(redirect) => filters.extend(self.redirect(redirect, condition, span)),
            HttpAction::DirectResponse(response) => {
                let message =
                    format!("`directResponse`: the Gateway API has no responses of the proxy ({})", response.status);
                self.writer.refuse(span, message, "route to a Service that responds, or leave the VirtualService");
            }
        }
        if !filters.is_empty() {
            rule.insert("filters".to_owned(), filters.into());
        }
        rule
    }

    /// Backends with their shares.
    pub(super) fn backends(&mut self, destinations: &[WeightedDestination], span: &Span) -> Vec<Value> {
        if destinations.len() > MAX_BACKENDS {
            let message = format!("`route`: a rule has at most {MAX_BACKENDS} backends");
            self.writer.refuse(span, message, "remove some");
        }
        let is_single = destinations.len() == 1;
        let mut all = Vec::new();
        for weighted in destinations {
            let Some(mut backend) = self.backend(&weighted.destination) else { continue };
            if !is_single && weighted.weight != 1 {
                backend.insert("weight".to_owned(), weighted.weight.into());
            }
            let filters = headers::filters(self.writer, &weighted.headers, &weighted.destination.origin);
            if !filters.is_empty() {
                backend.insert("filters".to_owned(), filters.into());
            }
            all.push(Value::Object(backend));
        }
        all
    }

    /// The reference to a service.
    fn backend(&mut self, destination: &Destination) -> Option<Map<String, Value>> {
        let (host, span) = (&destination.host, &destination.origin);
        if let Some(subset) = &destination.subset {
            let help = format!(
                "add a Service whose selector is that of `{host}` with the labels of the subset, and name it here"
            );
            self.writer.refuse(span, format!("`subset: {subset}`: the Gateway API has no subsets"), help);
            return None;
        }
        let service = self.writer.service(host).filter(|_| destination.state == DestinationState::Known);
        let Some(service) = service else {
            let help = "correct it first: what is missing answers 503 here and 500 in the Gateway API";
            self.writer.refuse(span, format!("the destination `{host}` does not exist"), help);
            return None;
        };
        let only = if let [only] = service.ports.as_slice() { Some(only.number) } else { None };
        let Some(port) = destination.port.or(only).or(self.setting.port) else {
            let help = "write `port: {number: …}`";
            self.writer.refuse(span, format!("`{host}` has several ports, and the destination names none"), help);
            return None;
        };
        self.note_sessions(service, port, span);
        let mut backend = Map::new();
        if !self.writer.is_of_kubernetes(service) {
            backend.insert("group".to_owned(), "networking.istio.io".into());
            backend.insert("kind".to_owned(), "Hostname".into());
            backend.insert("name".to_owned(), host.as_str().into());
        } else {
            backend.insert("name".to_owned(), (*service.name).into());
            self.note_namespace(&mut backend, &service.namespace, &service.name);
        }
        backend.insert("port".to_owned(), port.into());
        Some(backend)
    }

    /// Notes what keeps requests of a client together, which stays as it is: it is in another object.
    fn note_sessions(&mut self, service: &Service, port: u16, span: &Span) {
        let (host, namespace) = (&service.host, &*self.setting.namespace);
        let rule = self.writer.snapshot.general_destination_rule(service, namespace);
        let policy = rule.and_then(|rule| rule.policy_for(None, port).load_balancer).and_then(|of| of.policy);
        if let Some(LbPolicy::ConsistentHash(HashKey::Cookie { name, .. }, _)) = policy {
            self.writer.note(
                span,
                format!(
                    "`{host}`: the DestinationRule with `consistentHash.httpCookie` (`{name}`) still applies here; `sessionPersistence` \
                     would differ: its cookie names the endpoint, so that new endpoints move no session, and other cookies do not count"
                ),
            );
        }
        let labels = ["istio.io/persistent-session", "istio.io/persistent-session-header"];
        if let Some(label) = labels.into_iter().find(|label| service.labels.contains_key(*label)) {
            self.writer.note(
                span,
                format!("`{host}`: its label `{label}` still applies here; `sessionPersistence` of the rule would precede it"),
            );
        }
    }

    fn note_namespace(&mut self, backend: &mut Map<String, Value>, namespace: &Arc<str>, service: &Arc<str>) {
        let own = &self.setting.namespace;
        if namespace == own {
            return;
        }
        backend.insert("namespace".to_owned(), (**namespace).into());
        if self.setting.is_gateway {
            let (namespace, service) = (namespace.clone(), service.clone());
            self.grants.insert(Grant { from_namespace: own.clone(), namespace, service });
        }
    }

    fn mirror(&mut self, mirror: &Mirror) -> Option<Value> {
        let backend = self.backend(&mirror.destination)?;
        let mut copy = Map::new();
        copy.insert("backendRef".to_owned(), backend.into());
        let Millionths(share) = mirror.share;
        if share % 10_000 != 0 {
            copy.insert("fraction".to_owned(), json!({"numerator": share, "denominator": Millionths::ALL.0}));
        } else if mirror.share != Millionths::ALL {
            copy.insert("percent".to_owned(), (share / 10_000).into());
        }
        Some(json!({"type": "RequestMirror", "requestMirror": copy}))
    }

    fn rewrite(&mut self, rewrite: &Rewrite, condition: Option<&Condition>, span: &Span) -> Option<Value> {
        let mut written = Map::new();
        if rewrite.uri_regex.is_some() {
            let help = "replace a prefix (`rewrite.uri`) or the whole path instead, or leave the VirtualService";
            self.writer.refuse(
                span,
                "`rewrite.uriRegexRewrite`: the Gateway API does not rewrite by expressions",
                help,
            );
        }
        if let Some(host) = rewrite.authority.as_deref().and_then(|host| self.hostname(host, "rewrite.authority", span))
        {
            written.insert("hostname".to_owned(), host.into());
        }
        if let Some(path) = rewrite.uri.as_deref().and_then(|uri| self.replaced(uri, "rewrite.uri", condition, span)) {
            written.insert("path".to_owned(), path);
        }
        (!written.is_empty()).then(|| json!({"type": "URLRewrite", "urlRewrite": written}))
    }

    /// A host that a filter sets.
    fn hostname(&mut self, host: &str, field: &str, span: &Span) -> Option<String> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label = |label: &str| {
            !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
        };
        if host.len() <= 253 && host.split('.').all(is_label) {
            return Some(host.to_owned());
        }
        let help = "write a name in lower case; a redirect has the port in `port`";
        self.writer.refuse(span, format!("`{field}: {host}` is not a host name without a port"), help);
        None
    }

    /// What replaces the part of the path that a condition matches.
    fn replaced(&mut self, uri: &str, field: &str, condition: Option<&Condition>, span: &Span) -> Option<Value> {
        let original = condition.and_then(|condition| condition.original.uri.as_ref());
        let prefix = match original {
            Some(StringMatch::Exact(_)) => return Some(json!({"type": "ReplaceFullPath", "replaceFullPath": uri})),
            Some(StringMatch::Prefix(prefix)) => prefix.trim_end_matches('/'),
            _ => "",
        };
        let read = condition.and_then(|condition| condition.read.uri.as_ref());
        if !matches!(read, None | Some(StringMatch::Prefix(_))) {
            let message = format!("`{field}`: only a `PathPrefix` of whole parts between slashes can be replaced");
            let help =
                "with --path-parts prefixes are written as `PathPrefix`, which also matches a little differently";
            self.writer.refuse(span, message, help);
            return None;
        }
        let ends_in_slash = match original {
            Some(StringMatch::Prefix(written)) => written.ends_with('/') || written.is_empty(),
            _ => true,
        };
        let replacement = uri.trim_end_matches('/');
        // A path has one slash between what replaces the prefix and what follows it.
        let is_equal = if ends_in_slash {
            uri.strip_suffix('/') == Some(replacement)
        } else {
            !replacement.is_empty() && replacement == uri
        };
        if !is_equal && prefix.is_empty() {
            let message = format!("`{field}: {uri}` in the place of `/` joins what follows without a slash");
            self.writer.refuse(span, message, "end it with a slash");
            return None;
        }
        if !is_equal {
            let message =
                format!("`{field}: {uri}`: what replaces the prefix and what follows are joined by exactly one slash");
            self.writer.differs(span, message, "check that the program takes these paths");
        }
        let replacement = if replacement.is_empty() { "/" } else { replacement };
        Some(json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": replacement}))
    }

    fn redirect(&mut self, redirect: &Redirect, condition: Option<&Condition>, span: &Span) -> Option<Value> {
        let mut written = Map::new();
        if let Some(scheme) = &redirect.scheme {
            written.insert("scheme".to_owned(), (**scheme).into());
        }
        let host = redirect.authority.as_deref();
        if let Some(host) = host.and_then(|host| self.hostname(host, "redirect.authority", span)) {
            written.insert("hostname".to_owned(), host.into());
        }
        self.redirect_port(redirect, &mut written, span);
        if let Some(uri) = &redirect.uri {
            written.insert("path".to_owned(), json!({"type": "ReplaceFullPath", "replaceFullPath": &**uri}));
        }
        let prefix = redirect.prefix.as_deref();
        if let Some(path) = prefix.and_then(|prefix| self.replaced(prefix, "redirect.prefixRewrite", condition, span)) {
            written.insert("path".to_owned(), path);
        }
        written.insert("statusCode".to_owned(), redirect.code.into());
        Some(json!({"type": "RequestRedirect", "requestRedirect": written}))
    }

    /// Without a port the Gateway API means that of the scheme, if there is one, or else the listener's.
    fn redirect_port(&mut self, redirect: &Redirect, written: &mut Map<String, Value>, span: &Span) {
        let has_scheme = redirect.scheme.is_some();
        let port = match (redirect.port, has_scheme) {
            (Some(RedirectPort::Number(port)), _) => Some(port),
            (Some(RedirectPort::Request), false) => None,
            (Some(RedirectPort::Request), true) => match self.setting.port {
                Some(port) => Some(port),
                None => {
                    let help = "write `port`";
                    self.writer.refuse(
                        span,
                        "`redirect.derivePort: FROM_REQUEST_PORT` beside `scheme` has no equal",
                        help,
                    );
                    None
                }
            },
            (Some(RedirectPort::ProtocolDefault) | None, true) => None,
            (Some(RedirectPort::ProtocolDefault) | None, false) => {
                if !self.setting.has_usual_ports {
                    let message = "`redirect`: the Gateway API adds the port of the listener, if it is not 80 or 443";
                    self.writer.refuse(span, message, "write `scheme`, or `port`");
                }
                None
            }
        };
        if let Some(port) = port {
            written.insert("port".to_owned(), port.into());
        }
    }

    fn cors(&mut self, cors: &CorsPolicy, span: &Span) -> Option<Value> {
        if cors.forwards_unmatched {
            let help = "write `unmatchedPreflights: IGNORE`, if the program need not see these requests";
            let message =
                "`corsPolicy`: preflight requests of other origins are forwarded, and by a CORS filter they are not";
            self.writer.refuse(span, message, help);
        }
        let mut written = Map::new();
        let mut origins: Vec<Value> = Vec::new();
        for origin in &cors.allow_origins {
            match origin {
                StringMatch::Exact(origin) => origins.push((**origin).into()),
                _ => {
                    let help =
                        "list the origins, or write a wildcard in the CORS filter (`https://*.example.com`) yourself";
                    self.writer.refuse(
                        span,
                        "`corsPolicy.allowOrigins`: a CORS filter has no prefixes and expressions",
                        help,
                    );
                }
            }
        }
        // A star among others allows all.
        if origins.len() > 1 && origins.iter().any(|origin| origin == "*") {
            origins = vec!["*".into()];
        }
        let texts = |joined: &str| -> Vec<Value> {
            joined.split(',').filter(|text| !text.is_empty()).map(Value::from).collect()
        };
        let lists = [
            ("allowOrigins", origins),
            ("allowMethods", texts(&cors.allow_methods)),
            ("allowHeaders", texts(&cors.allow_headers)),
            ("exposeHeaders", texts(&cors.expose_headers)),
        ];
        for (field, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            written.insert(field.to_owned(), list.into());
        }
        match cors.max_age.map(u32::try_from) {
            Some(Ok(seconds)) => {
                written.insert("maxAge".to_owned(), seconds.into());
            }
            Some(Err(_)) => self.writer.refuse(span, "`corsPolicy.maxAge` is out of range", "shorten it"),
            None => {
                self.writer.note(span, "`corsPolicy`: a CORS filter says `maxAge: 5`, which browsers assume without it")
            }
        }
        if let Some(allowed) = cors.allow_credentials {
            written.insert("allowCredentials".to_owned(), allowed.into());
        }
        Some(json!({"type": "CORS", "cors": written}))
    }
}

/// Whether a rule needs a single condition, because it replaces what that matches.
pub(super) fn replaces_match(route: &HttpRoute) -> bool {
    match &route.action {
        HttpAction::Route { rewrite, .. } => rewrite.as_ref().is_some_and(|rewrite| rewrite.uri.is_some()),
        HttpAction::Redirect(redirect) => redirect.prefix.is_some(),
        HttpAction::DirectResponse(_) => false,
    }
}
