//! Values of AuthorizationPolicies that no call can have, such as an identity with the prefix `spiffe://`. Istio
//! accepts them silently.

use evenkeel_base::yaml::Node;

use crate::decode::Context;

/// Returns what is wrong with a value, and the value that is probably meant.
type Flaw = fn(&str) -> Option<(&'static str, String)>;

/// Lists of a `source`, and the check of their values.
const SOURCE: [(&str, Flaw); 2] = [("principals", principal), ("namespaces", namespace)];
/// Lists of an `operation`, and the check of their values.
const OPERATION: [(&str, Flaw); 3] = [("hosts", host), ("methods", method), ("paths", path)];
/// Keys of conditions, and the check of their values.
const CONDITIONS: [(&str, Flaw); 5] = [
    ("source.principal", principal),
    ("source.namespace", namespace),
    ("source.serviceAccount", account),
    ("request.headers[:path]", whole_path),
    ("request.headers[:method]", method),
];
/// The characters of a normalized path that are not letters or digits, without `%` (`http/src/path.rs`).
const PLAIN: &str = "!$&'()*+,-./:;=@[]_~";
const TWO_STARS: &str = "`*` stands for any text at one end only, not at both";

/// Checks a rule. A value that never matches is an error where it lets calls pass that it should stop: in a DENY rule,
/// and among the exclusions of an ALLOW rule. Elsewhere it lets nothing pass and is a warning.
pub(super) fn check(rule: &Node, denies: bool, cx: &mut Context) {
    for (list, part, lists) in [("from", "source", &SOURCE[..]), ("to", "operation", &OPERATION[..])] {
        for (at, entry) in items(rule, list) {
            let Some(inner) = entry.get(part) else { continue };
            cx.at_field(list, |cx| {
                cx.at_index(at, |cx| {
                    cx.at_field(part, |cx| lists.iter().for_each(|(name, flaw)| both(inner, name, *flaw, denies, cx)))
                })
            });
        }
    }
    for (at, condition) in items(rule, "when") {
        let key = condition.get("key").and_then(Node::as_str).unwrap_or_default();
        let Some((_, flaw)) = CONDITIONS.iter().find(|(name, _)| *name == key) else { continue };
        cx.at_field("when", |cx| {
            cx.at_index(at, |cx| {
                values(condition, "values", *flaw, denies, cx);
                values(condition, "notValues", *flaw, !denies, cx);
            })
        });
    }
}

/// Checks a list and the list of exclusions beside it, such as `paths` and `notPaths`.
fn both(node: &Node, name: &str, flaw: Flaw, denies: bool, cx: &mut Context) {
    values(node, name, flaw, denies, cx);
    let mut letters = name.chars();
    let not = letters.next().map(|first| format!("not{}{}", first.to_ascii_uppercase(), letters.as_str()));
    values(node, &not.unwrap_or_default(), flaw, !denies, cx);
}

fn values(node: &Node, name: &str, flaw: Flaw, opens: bool, cx: &mut Context) {
    for (at, value) in items(node, name) {
        let Some((why, meant)) = value.as_str().and_then(flaw) else { continue };
        let message = format!("`{}` never matches: {why}", value.as_str().unwrap_or_default());
        let help = format!("write `{meant}`");
        cx.at_field(name, |cx| {
            cx.at_index(at, |cx| {
                if opens {
                    cx.error("never-matches", &value.span, message, help)
                } else {
                    cx.warning("never-matches", &value.span, message, help)
                }
            })
        });
    }
}

fn items<'n>(node: &'n Node, name: &str) -> impl Iterator<Item = (usize, &'n Node)> {
    node.get(name).and_then(Node::as_sequence).unwrap_or_default().iter().enumerate()
}

fn principal(value: &str) -> Option<(&'static str, String)> {
    if let Some(rest) = value.strip_prefix("spiffe://") {
        return Some(("identities are written without `spiffe://`", rest.to_owned()));
    }
    if let Some(flaw) = stars(value) {
        return Some(flaw);
    }
    if value.contains('*') {
        return None;
    }
    let parts: Vec<&str> = value.split('/').collect();
    match parts.as_slice() {
        [_, "ns", _, "sa", _] => None,
        ["ns", _, "sa", _] => Some(("the trust domain is missing", format!("cluster.local/{value}"))),
        [namespace, account] => Some(("it is not an identity", format!("cluster.local/ns/{namespace}/sa/{account}"))),
        _ => Some(("it is not an identity", "cluster.local/ns/NAMESPACE/sa/ACCOUNT".to_owned())),
    }
}

fn namespace(value: &str) -> Option<(&'static str, String)> {
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '*';
    let meant: String = value.to_ascii_lowercase().split(['.', '/']).next().unwrap_or_default().to_owned();
    (!value.chars().all(of_name)).then_some(("no namespace has such a name", meant))
}

fn account(value: &str) -> Option<(&'static str, String)> {
    let rest = value.strip_prefix("spiffe://").unwrap_or(value);
    let parts: Vec<&str> = rest.split('/').collect();
    match parts.as_slice() {
        [.., "ns", namespace, "sa", account] => Some(("it is an identity", format!("{namespace}/{account}"))),
        [name] | [_, name] if name.is_empty() || value.contains('*') => {
            Some(("a service account is one name, without `*`", "NAMESPACE/ACCOUNT".to_owned()))
        }
        ["", name] => Some(("the namespace is missing", (*name).to_owned())),
        [_] | [_, _] => None,
        _ => Some(("it is not a service account", "NAMESPACE/ACCOUNT".to_owned())),
    }
}

/// A star at both ends: Istio and Envoy take the last one for a character of the text.
fn stars(value: &str) -> Option<(&'static str, String)> {
    let inner = value.strip_prefix('*')?.strip_suffix('*')?;
    Some((TWO_STARS, format!("*{inner}")))
}

fn host(value: &str) -> Option<(&'static str, String)> {
    let rest = value.split_once("://").map(|(_, rest)| rest);
    if let Some(rest) = rest {
        return Some(("a host has no scheme", rest.split('/').next().unwrap_or_default().to_owned()));
    }
    if let Some((host, path)) = value.split_once('/') {
        return (!path.contains('*') || !host.is_empty()).then(|| ("a host has no path", host.to_owned()));
    }
    stars(value)
}

fn method(value: &str) -> Option<(&'static str, String)> {
    let upper = value.to_ascii_uppercase();
    if upper != value {
        return Some(("methods are written in upper case", upper));
    }
    stars(value)
}

fn path(value: &str) -> Option<(&'static str, String)> {
    let begins = value.starts_with(['/', '*']) || value.is_empty();
    if !begins {
        return Some(("a path begins with `/`", format!("/{value}")));
    }
    if let Some((path, _)) = value.split_once(['?', '#']) {
        return Some(("a path does not include the query after `?`", path.to_owned()));
    }
    let is_template = value.contains("{*}") || value.contains("{**}");
    if is_template {
        return None;
    }
    if let Some(flaw) = stars(value) {
        return Some(flaw);
    }
    if value.split('/').skip(1).any(|segment| matches!(segment, "*" | "**")) && !value.ends_with("/*") {
        let segments = value.split('/').map(|segment| match segment {
            "*" => "{*}",
            "**" => "{**}",
            other => other,
        });
        return Some(("a star between slashes is only a star", segments.collect::<Vec<_>>().join("/")));
    }
    let normal = normal_path(value);
    (normal != value).then_some(("proxies compare the normalized path, which is another text", normal))
}

/// `:path` has a query.
fn whole_path(value: &str) -> Option<(&'static str, String)> {
    match value.split_once(['?', '#']) {
        None => path(value),
        Some((before, _)) => path(before).map(|(why, meant)| (why, format!("{meant}{}", &value[before.len()..]))),
    }
}

/// The pattern in the form that paths have when a proxy compares them: what no URI may contain is escaped, escapes of
/// letters, digits and `-._~` are decoded, `\` is a slash, and there are no dot segments. What a star leaves open at an end
/// is not judged.
fn normal_path(pattern: &str) -> String {
    let (open_start, rest) = pattern.strip_prefix('*').map_or((false, pattern), |rest| (true, rest));
    let (open_end, text) = match rest.strip_suffix('*').filter(|_| !open_start) {
        Some(text) => (true, text),
        None => (false, rest),
    };
    let decoded = normal_characters(text, open_end);
    let last = decoded.matches('/').count();
    let mut segments: Vec<&str> = Vec::new();
    for (at, segment) in decoded.split('/').enumerate() {
        // A star makes another segment of it.
        let is_open = (at == 0 && open_start) || (at == last && open_end);
        let ends = if at == last { Some("") } else { None };
        match segment.split(';').next() {
            Some(".") if !is_open && at > 0 => segments.extend(ends),
            Some("..") if !is_open && at > 0 => {
                if segments.len() > 1 {
                    segments.pop();
                }
                segments.extend(ends);
            }
            _ => segments.push(segment),
        }
    }
    let stars = [open_start, open_end].map(|is_open| if is_open { "*" } else { "" });
    format!("{}{}{}", stars[0], segments.join("/"), stars[1])
}

/// `open_end`: more may follow, as the rest of an escape.
fn normal_characters(text: &str, open_end: bool) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).filter(|_| byte == b'%');
        let value = escaped.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match value.and_then(|digits| Some((digits, u8::from_str_radix(digits, 16).ok()?))) {
            Some((_, value)) if value.is_ascii_alphanumeric() || b"-._~".contains(&value) => {
                normal.push(char::from(value));
                rest = after.get(2..).unwrap_or_default();
            }
            Some((digits, _)) => {
                normal.push('%');
                normal.push_str(digits);
                rest = after.get(2..).unwrap_or_default();
            }
            None if byte == b'%' && open_end && after.len() < 2 => normal.push('%'),
            None if byte == b'\\' => normal.push('/'),
            None if byte.is_ascii_alphanumeric() || PLAIN.as_bytes().contains(&byte) => normal.push(char::from(byte)),
            None => normal.push_str(&format!("%{byte:02X}")),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    /// The findings of a policy with this action and rule: `severity path meant`.
    fn found(action: &str, rule: &str) -> Vec<String> {
        let head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\n";
        let text = format!("{head}spec: {{action: {action}, rules: [{{{rule}}}]}}\n");
        let (_, found) = crate::load(&[("a.yaml".into(), text.into())]);
        assert!(found.iter().all(|d| d.code == "never-matches"), "{found}");
        let shown = found.iter().map(|d| {
            let path = d.message.trim_start_matches("`spec.rules[0].").split('`').next().unwrap_or_default();
            format!("{} {path} {}", d.severity, d.help.as_deref().unwrap_or_default().trim_start_matches("write "))
        });
        shown.collect()
    }

    #[test]
    fn values_that_never_match_are_named() {
        let check = |rule: &str, expected: &[&str]| assert_eq!(found("DENY", rule), expected, "{rule}");
        let from = |source: &str| format!("from: [{{source: {{{source}}}}}]");
        let to = |operation: &str| format!("to: [{{operation: {{{operation}}}}}]");
        let principals = "error from[0].source.principals[0]";
        check(&from("principals: [cluster.local/ns/a/sa/b, '*', 'cluster.local/*', '*/sa/b']"), &[]);
        check(
            &from("principals: ['spiffe://cluster.local/ns/a/sa/b']"),
            &[&format!("{principals} `cluster.local/ns/a/sa/b`")],
        );
        check(&from("principals: [ns/a/sa/b]"), &[&format!("{principals} `cluster.local/ns/a/sa/b`")]);
        check(&from("principals: [a/b]"), &[&format!("{principals} `cluster.local/ns/a/sa/b`")]);
        check(&from("principals: ['spiffe://cluster.local/*']"), &[&format!("{principals} `cluster.local/*`")]);
        check(&from("namespaces: [a, 'a-*', a.b]"), &["error from[0].source.namespaces[2] `a`"]);
        check(&to("hosts: [a, 'a.b:80', '*.b', '*']"), &[]);
        check(
            &to("hosts: ['https://a.b/c', a.b/c]"),
            &["error to[0].operation.hosts[0] `a.b`", "error to[0].operation.hosts[1] `a.b`"],
        );
        check(&to("methods: [GET, get, '*']"), &["error to[0].operation.methods[1] `GET`"]);
        check(
            &to("paths: [/a, '*a', 'a*', '/a?b=c']"),
            &["error to[0].operation.paths[2] `/a*`", "error to[0].operation.paths[3] `/a`"],
        );
        let when = |key: &str, value: &str| format!("when: [{{key: {key}, values: ['{value}']}}]");
        let meant = |meant: &str| format!("error when[0].values[0] `{meant}`");
        check(&when("source.principal", "spiffe://a/ns/b/sa/c"), &[&meant("a/ns/b/sa/c")]);
        check(&when("source.serviceAccount", "b/c"), &[]);
        check(&when("source.serviceAccount", "c"), &[]);
        check(&when("source.serviceAccount", "a/ns/b/sa/c"), &[&meant("b/c")]);
        check(&when("source.serviceAccount", "/c"), &[&meant("c")]);
        for value in ["*", "b/*", "b/c/d", "b/", ""] {
            check(&when("source.serviceAccount", value), &[&meant("NAMESPACE/ACCOUNT")]);
        }
        check(&when("'request.headers[:path]'", "/a?b=/../c"), &[]);
        check(&when("'request.headers[:path]'", "/x/../a?b=c"), &[&meant("/a?b=c")]);
        check(&when("'request.headers[:method]'", "get"), &[&meant("GET")]);
        // Values of other headers may have stars at both ends.
        check(&when("'request.headers[accept]'", "*/*"), &[]);
        check(&from("principals: ['*/ns/a/*']"), &[&format!("{principals} `*/ns/a/`")]);
        check(&to("hosts: ['*a*']"), &["error to[0].operation.hosts[0] `*a`"]);
    }

    #[test]
    fn paths_that_no_proxy_compares_are_named() {
        let check = |path: &str, meant: Option<&str>| {
            let found = found("DENY", &format!("to: [{{operation: {{paths: ['{path}']}}}}]"));
            let expected: Vec<String> =
                meant.map(|meant| format!("error to[0].operation.paths[0] `{meant}`")).into_iter().collect();
            assert_eq!(found, expected, "{path}");
        };
        check("/admin panel", Some("/admin%20panel"));
        check("/adminé", Some("/admin%C3%A9"));
        check("/admin{x}", Some("/admin%7Bx%7D"));
        check("/a<b>|\"^`", Some("/a%3Cb%3E%7C%22%5E%60"));
        check("/%61dmin", Some("/admin"));
        check("/admin%2Dx", Some("/admin-x"));
        check("/%7Ea%2f%C3", Some("/~a%2f%C3"));
        check("/x/../admin", Some("/admin"));
        check("/../admin", Some("/admin"));
        check("/x/./admin", Some("/x/admin"));
        check("/x/..;a/admin", Some("/admin"));
        check("/x/..", Some("/"));
        check("/x/%2E", Some("/x/"));
        check("/a\\admin", Some("/a/admin"));
        check("/admin%", Some("/admin%25"));
        check("/admin%2", Some("/admin%252"));
        check("/admin%zz", Some("/admin%25zz"));
        check("/x/../admin*", Some("/admin*"));
        check("*/x/../admin", Some("*/admin"));
        check("*admin*", Some("*admin"));
        check("/a/*/b", Some("/a/{*}/b"));
        check("/a/**/b/*", None);
        check("/a/**/b", Some("/a/{**}/b"));
        for fine in [
            "/admin%20panel",
            "/a%2fb",
            "/a%2Fb",
            "/a/.b",
            "/a/...",
            "/a/.*",
            "/a/..*",
            "*../a",
            "/a%*",
            "/a%2*",
            "*%20",
            "/v1/a:b",
            "/a;b=c",
            "/{*}/b",
            "/a//b",
            "/a*b",
            "/!$&()+,=@[]_~",
            "*",
            "/*",
        ] {
            check(fine, None);
        }
    }

    #[test]
    fn it_is_an_error_where_it_opens_something() {
        let check = |action, list: &str, severity: &str| {
            let rule = format!("from: [{{source: {{{list}: ['spiffe://a/ns/b/sa/c']}}}}]");
            let found = found(action, &rule);
            assert!(found.len() == 1 && found[0].starts_with(severity), "{action} {list}: {found:?}");
        };
        check("DENY", "principals", "error");
        check("DENY", "notPrincipals", "warning");
        check("ALLOW", "principals", "warning");
        check("ALLOW", "notPrincipals", "error");
    }
}
