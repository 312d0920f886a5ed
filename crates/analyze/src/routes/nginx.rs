//! Annotations of ingress-nginx as filters and conditions.

use std::collections::BTreeMap;

use evenkeel_api::Object;
use evenkeel_base::re2::quote;
use evenkeel_base::{Span, Spanned};
use serde_json::{Map, Value, json};

use super::nginx_table::{PREFIX, Treatment, treatment};
use super::writer::Writer;

/// The methods, the headers and the age that ingress-nginx allows scripts without annotations for them.
const CORS_METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const CORS_HEADERS: &str =
    "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
const CORS_MAX_AGE: u32 = 1_728_000;

/// What the annotations of an Ingress say.
#[derive(Debug, Clone, Default)]
pub(super) struct NginxSettings<'a> {
    values: BTreeMap<&'a str, &'a Spanned<String>>,
}

/// How requests are shared with another Ingress.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Canary {
    /// Conditions, any of which sends a request there: entries of `headers`.
    pub(super) always: Vec<Value>,
    /// Conditions, any of which keeps a request away.
    pub(super) never: Vec<Value>,
    /// The share of the rest, and the whole.
    pub(super) weight: u32,
    pub(super) total: u32,
}

/// What becomes of a path.
pub(super) struct NginxPath {
    /// The condition on it.
    pub(super) condition: Value,
    /// `path` of a URLRewrite.
    pub(super) rewrite: Option<Value>,
}

impl<'a> NginxSettings<'a> {
    /// The annotations of an Ingress; each that has no equal is a finding.
    pub(super) fn read(writer: &mut Writer<'_>, object: &'a Object) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in &object.annotations {
            let Some(short) = name.strip_prefix(PREFIX) else { continue };
            // What is switched off protects nothing.
            let is_off = value.as_str() == "false" || value.is_empty();
            match treatment(short) {
                Some(Treatment::Written) => {
                    values.insert(short, value);
                }
                Some(Treatment::Needless(why)) => writer.note(&value.span, format!("`{short}` is left out: {why}")),
                Some(Treatment::Dropped(_) | Treatment::Refused(_)) if is_off => {}
                Some(Treatment::Dropped(help)) => {
                    writer.differs(
                        &value.span,
                        format!("`{short}` has no equal and is left out"),
                        format!("in its place: {help}"),
                    );
                }
                Some(Treatment::Refused(help)) => {
                    writer.refuse(
                        &value.span,
                        format!("`{short}` has no equal in a route"),
                        format!("in its place: {help}"),
                    );
                }
                None => {
                    let message = format!("`{short}` is not a known annotation of ingress-nginx");
                    writer.refuse(&value.span, message, "correct its name, or remove it");
                }
            }
        }
        Self { values }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).map(|value| value.as_str()).filter(|value| !value.is_empty())
    }

    fn span(&self, name: &str) -> Span {
        self.values.get(name).map(|value| value.span.clone()).unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// Whether requests of plain HTTP are sent to HTTPS, for hosts with a certificate.
    pub(super) fn redirects_to_https(&self) -> bool {
        self.text("ssl-redirect") != Some("false")
    }

    /// Whether paths are expressions.
    pub(super) fn uses_regex(&self) -> bool {
        self.is_on("use-regex") || self.text("rewrite-target").is_some()
    }

    /// Further hosts.
    pub(super) fn aliases(&self) -> Vec<String> {
        let text = self.text("server-alias").unwrap_or_default();
        text.split([',', ' ']).filter(|host| !host.is_empty()).map(str::to_owned).collect()
    }

    /// A path that is an expression, or is matched as nginx matches one without a type.
    pub(super) fn path(&self, writer: &mut Writer<'_>, path: &str, span: &Span) -> NginxPath {
        let target = self.text("rewrite-target");
        if let Some(target) = target.filter(|target| target.contains('$')) {
            return self.captured(writer, path, target, span);
        }
        let condition = json!({"type": "RegularExpression", "value": from_start(path)});
        let rewrite = target.map(|target| json!({"type": "ReplaceFullPath", "replaceFullPath": target}));
        NginxPath { condition, rewrite }
    }

    /// A target with groups: only what follows a prefix can be taken over.
    fn captured(&self, writer: &mut Writer<'_>, path: &str, target: &str, span: &Span) -> NginxPath {
        let endings = [("(/|$)(.*)", "$2", true), ("/(.*)", "$1", false), ("/?(.*)", "$1", false)];
        let is_plain = |text: &str| {
            super::conditions::is_plain(&format!("{text}/")) && !text.contains(['(', ')', '*', '+', '$', '.'])
        };
        let found = endings.into_iter().find_map(|(ending, group, is_whole)| {
            let prefix = path.strip_suffix(ending).filter(|prefix| is_plain(prefix))?;
            Some((
                prefix,
                target.strip_suffix(group).filter(|rest| !rest.contains('$'))?,
                is_whole || prefix.is_empty(),
            ))
        });
        let Some((prefix, replacement, is_whole)) = found.filter(|found| found.1.starts_with('/')) else {
            let message =
                format!("`rewrite-target: {target}` for the path `{path}`: the Gateway API only replaces a prefix");
            let help = "write the path as `/prefix(/|$)(.*)` and the target as `/other/$2`";
            writer.refuse(&self.span("rewrite-target"), message, help);
            return NginxPath { condition: json!({"type": "PathPrefix", "value": "/"}), rewrite: None };
        };
        let prefix = if prefix.is_empty() { "/" } else { prefix };
        if prefix != "/" {
            let also = if is_whole { "" } else { ", and it matches whole parts between slashes" };
            let message = format!("the path `{path}` becomes `PathPrefix: {prefix}`, which does not ignore case{also}");
            writer.differs(span, message, "check that clients write the path so");
        }
        let replacement = match replacement.trim_end_matches('/') {
            "" => "/",
            other => other,
        };
        let rewrite = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": replacement});
        NginxPath { condition: json!({"type": "PathPrefix", "value": prefix}), rewrite: Some(rewrite) }
    }

    /// The filters of every rule of the Ingress, with the new path of one of them.
    pub(super) fn filters(&self, writer: &mut Writer<'_>, path: Option<Value>) -> Vec<Value> {
        let mut filters = Vec::new();
        if let Some(prefix) = self.text("x-forwarded-prefix") {
            let set = json!([{"name": "X-Forwarded-Prefix", "value": prefix}]);
            filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}}));
        }
        if self.is_on("enable-cors") {
            filters.push(json!({"type": "CORS", "cors": self.cors(writer)}));
        }
        let mut rewrite = Map::new();
        if let Some(host) = self.text("upstream-vhost") {
            if host.contains(['$', ':']) {
                let help = "write a name without a port and without variables";
                writer.refuse(&self.span("upstream-vhost"), "`upstream-vhost` is not the name of a host", help);
            }
            rewrite.insert("hostname".to_owned(), host.into());
        }
        rewrite.extend(path.map(|path| ("path".to_owned(), path)));
        if !rewrite.is_empty() {
            filters.push(json!({"type": "URLRewrite", "urlRewrite": rewrite}));
        }
        filters
    }

    fn cors(&self, writer: &mut Writer<'_>) -> Value {
        let list = |text: &str| -> Vec<Value> {
            text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(Value::from).collect()
        };
        let mut cors = Map::new();
        let origins = self.text("cors-allow-origin").unwrap_or("*");
        // A star among others allows all, and a CORS filter takes it alone.
        let is_any = origins.split(',').any(|origin| origin.trim() == "*");
        cors.insert("allowOrigins".to_owned(), list(if is_any { "*" } else { origins }).into());
        cors.insert("allowMethods".to_owned(), list(self.text("cors-allow-methods").unwrap_or(CORS_METHODS)).into());
        cors.insert("allowHeaders".to_owned(), list(self.text("cors-allow-headers").unwrap_or(CORS_HEADERS)).into());
        if let Some(exposed) = self.text("cors-expose-headers") {
            cors.insert("exposeHeaders".to_owned(), list(exposed).into());
        }
        // nginx answers `*` itself, with which browsers take no credentials. A CORS filter answers the caller's origin.
        let credentials = !is_any && self.text("cors-allow-credentials") != Some("false");
        cors.insert("allowCredentials".to_owned(), credentials.into());
        let age = self.text("cors-max-age").map_or(Ok(CORS_MAX_AGE), str::parse::<u32>);
        if age.is_err() {
            writer.refuse(&self.span("cors-max-age"), "`cors-max-age` is not a number of seconds", "such as 600");
        }
        cors.insert("maxAge".to_owned(), age.unwrap_or(CORS_MAX_AGE).into());
        cors.into()
    }

    /// The redirect that takes the place of backends.
    pub(super) fn redirect(&self, writer: &mut Writer<'_>) -> Option<Value> {
        let kinds = [
            ("permanent-redirect", "permanent-redirect-code", 301),
            ("temporal-redirect", "temporal-redirect-code", 302),
        ];
        let (name, code, usual) = kinds.into_iter().find(|kind| self.text(kind.0).is_some())?;
        let code = self.text(code).map_or(Some(usual), |text| text.parse::<u16>().ok());
        let code = code.filter(|code| matches!(code, 301 | 302 | 303 | 307 | 308));
        let url = self.text(name).unwrap_or_default();
        let redirect = code.and_then(|code| redirect_to(url, code));
        if redirect.is_none() {
            let message = format!("`{name}: {url}` is no redirect of the Gateway API");
            writer.refuse(&self.span(name), message, "expected http://HOST[:PORT][/PATH] without variables and query, and one of the codes 301, 302, 303, 307, 308");
        }
        redirect
    }

    /// A rule that leads requests for `/` to another path.
    pub(super) fn app_root(&self) -> Option<Value> {
        let root = self.text("app-root")?;
        let path = json!({"type": "ReplaceFullPath", "replaceFullPath": root});
        let filter = json!({"type": "RequestRedirect", "requestRedirect": {"path": path, "statusCode": 302}});
        Some(json!({"matches": [{"path": {"type": "Exact", "value": "/"}}], "filters": [filter]}))
    }

    /// The protocol of the backends.
    pub(super) fn note_protocol(&self, writer: &mut Writer<'_>) {
        match self.text("backend-protocol").map(str::to_ascii_uppercase).as_deref() {
            None | Some("HTTP" | "AUTO_HTTP") => {}
            Some("GRPC") => {
                let help = "name the port `grpc-…`, or set `appProtocol: grpc`";
                writer.differs(
                    &self.span("backend-protocol"),
                    "`backend-protocol: GRPC` is said by the port of the Service",
                    help,
                );
            }
            Some(other) => {
                let help = "in its place: a BackendTLSPolicy for the Service";
                writer.refuse(
                    &self.span("backend-protocol"),
                    format!("`backend-protocol: {other}` has no equal in a route"),
                    help,
                );
            }
        }
    }

    /// `sessionPersistence` of the rules.
    pub(super) fn persistence(&self, writer: &mut Writer<'_>) -> Option<Value> {
        self.text("affinity").filter(|affinity| *affinity == "cookie")?;
        let name = self.text("session-cookie-name").unwrap_or("INGRESSCOOKIE");
        let age = self.text("session-cookie-max-age").or_else(|| self.text("session-cookie-expires"));
        let mut persistence =
            Map::from_iter([("sessionName".to_owned(), Value::from(name)), ("type".to_owned(), "Cookie".into())]);
        if let Some(age) = age {
            let seconds = age.parse::<u64>().ok().filter(|seconds| (1..=99_999).contains(seconds));
            let Some(seconds) = seconds else {
                writer.refuse(
                    &self.span("session-cookie-max-age"),
                    "the age of the session's cookie is not a number of seconds",
                    "up to 99999",
                );
                return None;
            };
            persistence.insert("absoluteTimeout".to_owned(), format!("{seconds}s").into());
            persistence.insert("cookieConfig".to_owned(), json!({"lifetimeType": "Permanent"}));
        }
        writer.differs(
            &self.span("affinity"),
            "`affinity` becomes `sessionPersistence`, which is in the experimental channel of the Gateway API; the sessions of clients \
             begin again, as its cookies are others",
            "install the experimental channel's definitions, or an API server drops the field",
        );
        Some(persistence.into())
    }

    /// How requests are shared, if the Ingress is a canary.
    pub(super) fn canary(&self, writer: &mut Writer<'_>) -> Option<Canary> {
        if !self.is_on("canary") {
            return None;
        }
        let mut canary = Canary { total: 100, ..Canary::default() };
        let exact = |name: &str, value: &str| json!({"name": name, "value": value});
        let regex = |name: &str, value: &str| json!({"type": "RegularExpression", "name": name, "value": value});
        if let Some(header) = self.text("canary-by-header") {
            match (self.text("canary-by-header-value"), self.text("canary-by-header-pattern")) {
                (Some(value), _) => canary.always.push(exact(header, value)),
                (None, Some(pattern)) => canary.always.push(regex(header, &format!(".*({pattern}).*"))),
                (None, None) => {
                    canary.always.push(exact(header, "always"));
                    canary.never.push(exact(header, "never"));
                }
            }
        }
        if let Some(cookie) = self.text("canary-by-cookie") {
            let holds = |value: &str| format!("(.*;\\s*)?{}={value}(;.*)?", quote(cookie));
            canary.always.push(regex("cookie", &holds("always")));
            canary.never.push(regex("cookie", &holds("never")));
        }
        for (name, place) in [("canary-weight", &mut canary.weight), ("canary-weight-total", &mut canary.total)] {
            let Some(text) = self.text(name) else { continue };
            match text.parse::<u32>().ok().filter(|number| *number <= 1_000_000) {
                Some(number) => *place = number,
                None => writer.refuse(&self.span(name), format!("`{name}: {text}` is not a weight"), "0 to the total"),
            }
        }
        if canary.weight > canary.total {
            writer.refuse(&self.span("canary-weight"), "`canary-weight` is more than the total", "0 to the total");
            canary.weight = canary.total;
        }
        Some(canary)
    }
}

/// An expression of nginx, which counts from the start of the path and ignores case, as one for the whole path.
fn from_start(path: &str) -> String {
    let inner = path.strip_prefix('^').unwrap_or(path);
    match inner.strip_suffix('$') {
        Some(whole) if !whole.ends_with('\\') => format!("(?i){whole}"),
        _ if inner.ends_with(".*") || inner.ends_with("(.*)") => format!("(?i){inner}"),
        _ => format!("(?i)(?:{inner}).*"),
    }
}

fn redirect_to(url: &str, code: u16) -> Option<Value> {
    let (scheme, rest) = url.split_once("://").filter(|parts| matches!(parts.0, "http" | "https"))?;
    let (authority, path) = rest.split_once('/').map_or((rest, String::new()), |(host, path)| (host, path.to_owned()));
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
        None => (authority, None),
    };
    if host.is_empty() || url.contains(['$', '?', '#']) {
        return None;
    }
    let path = json!({"type": "ReplaceFullPath", "replaceFullPath": format!("/{path}")});
    let mut redirect = json!({"scheme": scheme, "hostname": host, "path": path, "statusCode": code});
    if let (Some(port), Some(fields)) = (port, redirect.as_object_mut()) {
        fields.insert("port".to_owned(), port.into());
    }
    Some(json!({"type": "RequestRedirect", "requestRedirect": redirect}))
}
