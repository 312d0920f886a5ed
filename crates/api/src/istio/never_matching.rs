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
const CONDITIONS: [(&str, Flaw); 3] =
    [("source.principal", principal), ("source.namespace", namespace), ("source.serviceAccount", account)];

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
            cx.at_index(at, |cx| match opens {
                true => cx.error("never-matches", &value.span, message, help),
                false => cx.warning("never-matches", &value.span, message, help),
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
        _ => None,
    }
}

fn host(value: &str) -> Option<(&'static str, String)> {
    let rest = value.split_once("://").map(|(_, rest)| rest);
    if let Some(rest) = rest {
        return Some(("a host has no scheme", rest.split('/').next().unwrap_or_default().to_owned()));
    }
    let (host, path) = value.split_once('/')?;
    (!path.contains('*') || !host.is_empty()).then(|| ("a host has no path", host.to_owned()))
}

fn method(value: &str) -> Option<(&'static str, String)> {
    let upper = value.to_ascii_uppercase();
    (upper != value).then_some(("methods are written in upper case", upper))
}

fn path(value: &str) -> Option<(&'static str, String)> {
    let begins = value.starts_with(['/', '*']) || value.is_empty();
    if !begins {
        return Some(("a path begins with `/`", format!("/{value}")));
    }
    value.split_once(['?', '#']).map(|(path, _)| ("a path does not include the query after `?`", path.to_owned()))
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
        check(
            "when: [{key: source.principal, values: ['spiffe://a/ns/b/sa/c']}]",
            &["error when[0].values[0] `a/ns/b/sa/c`"],
        );
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
