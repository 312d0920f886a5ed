//! Takes secrets out of what a report contains. When in doubt, a text is left out.

use serde_json::Value;

/// What stands in place of a secret.
const REDACTED: &str = "[redacted]";
/// Words in names of environment variables and settings whose values are secrets.
const SECRET_NAMES: [&str; 7] = ["password", "passwd", "secret", "token", "apikey", "api_key", "credential"];
/// Words of headers that are followed by secrets.
const SECRET_HEADERS: [&str; 6] =
    ["authorization:", "proxy-authorization:", "cookie:", "set-cookie:", "x-api-key:", "x-auth-token:"];
/// Schemes of HTTP authentication, which are followed by credentials.
const SCHEMES: [&str; 2] = ["bearer ", "basic "];
/// Annotations that repeat whole objects.
const COPIES: [&str; 1] = ["kubectl.kubernetes.io/last-applied-configuration"];

/// Redacts an object of Kubernetes.
pub fn object(object: &mut Value) {
    if object["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            let entries = object.get_mut(field).and_then(Value::as_object_mut);
            entries.into_iter().flatten().for_each(|(_, value)| *value = REDACTED.into());
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        annotations.into_iter().for_each(|all| COPIES.iter().for_each(|name| all.retain(|own, _| own != name)));
    }
    value(object);
}

/// Redacts the texts in a value, and the values of names that say that they are secrets.
pub fn value(value: &mut Value) {
    match value {
        Value::String(own) => *own = text(own),
        Value::Array(items) => items.iter_mut().for_each(self::value),
        Value::Object(fields) => {
            // A variable of a container: {name: DB_PASSWORD, value: …}.
            let is_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
            if is_secret && let Some(own @ Value::String(_)) = fields.get_mut("value") {
                *own = REDACTED.into();
            }
            for (name, own) in fields.iter_mut() {
                match own {
                    Value::String(own) if is_secret_name(name) && !names_an_object(name) => *own = REDACTED.to_owned(),
                    own => self::value(own),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Whether a field refers to an object or a file by its name, such as `secretName` and `credentialName`.
fn names_an_object(name: &str) -> bool {
    ["Name", "Names", "Path", "Kind", "namespace", "Policy", "Audience"].iter().any(|end| name.ends_with(end))
}

/// Redacts a text of any kind: private keys, tokens, and what follows the names of headers with secrets. Lines stay lines.
pub fn text(text: &str) -> String {
    let mut in_key = false;
    let line = |line: &str| {
        let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY-----");
        let ends = line.contains("-----END") && line.contains("PRIVATE KEY-----");
        let is_key = in_key || begins;
        in_key = is_key && !ends;
        match (is_key, line.ends_with('\n')) {
            (true, true) => format!("{REDACTED}\n"),
            (true, false) => REDACTED.to_owned(),
            (false, _) => without_headers(&without_tokens(line)),
        }
    };
    text.split_inclusive('\n').map(line).collect()
}

/// The line without JSON Web Tokens and without what follows a scheme of authentication.
fn without_tokens(line: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "-_.~+/=".contains(c);
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_word) {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_of_word(c)).unwrap_or(word.len()));
        out.push_str(before);
        let is_token = word.starts_with("eyJ") && word.split('.').count() >= 3;
        let is_credential = word.len() > 8 && SCHEMES.iter().any(|scheme| out.to_ascii_lowercase().ends_with(scheme));
        out.push_str(if is_token || is_credential { REDACTED } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The line up to the name of a header with a secret.
fn without_headers(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let at = SECRET_HEADERS.iter().filter_map(|header| lower.find(header).map(|at| at + header.len())).min();
    match at {
        Some(at) => {
            let end = if line.ends_with('\n') { "\n" } else { "" };
            format!("{} {REDACTED}{end}", line.get(..at).unwrap_or_default())
        }
        None => line.to_owned(),
    }
}

/// Redacts a file with YAML or JSON documents. Of a document with a Secret in it, only the lines that name it remain, so that the
/// positions in findings still are right.
pub fn file(whole: &str) -> String {
    let mut out = String::with_capacity(whole.len());
    let mut document = String::new();
    for line in whole.split_inclusive('\n') {
        if line.starts_with("---") {
            out.push_str(&of_document(&document));
            document.clear();
            out.push_str(line);
        } else {
            document.push_str(line);
        }
    }
    out.push_str(&of_document(&document));
    out
}

fn of_document(document: &str) -> String {
    if !has_secret(document) {
        return text(&without_variables(document));
    }
    let names = ["apiVersion:", "kind:", "metadata:", "name:", "namespace:", "type:"];
    let line = |line: &str| {
        let plain = line.trim_start().trim_start_matches("- ");
        let is_flow = line.contains('{') && line.contains("nnotations");
        let is_only_flow = plain.starts_with('{') || plain.matches(": ").count() > 4;
        let stays = names.iter().any(|name| plain.starts_with(name)) && !is_flow && !is_only_flow;
        match (stays, line.ends_with('\n')) {
            (true, _) => text(line),
            (false, true) => "#\n".to_owned(),
            (false, false) => "#".to_owned(),
        }
    };
    document.split_inclusive('\n').map(line).collect()
}

/// A document without the values of variables, if one of them is named like a secret, and without values of such keys. The lines of a
/// value that goes on are left out, too.
fn without_variables(document: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name_after = |rest: &str| {
        let rest = rest.trim_start_matches(|c| " \"'".contains(c));
        rest.split(|c| !is_word(c)).next().unwrap_or_default().to_owned()
    };
    let has_secret_variable = document.split("name:").skip(1).any(|rest| is_secret_name(&name_after(rest)));
    // The column of the key whose value is left out.
    let mut left_out: Option<usize> = None;
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let end = if line.ends_with('\n') { "\n" } else { "" };
        if left_out.is_some_and(|of| indent > of || line.trim().is_empty()) {
            return format!("#{end}");
        }
        left_out = None;
        let is_left_out =
            |key: &str| (key == "value" && has_secret_variable) || (is_secret_name(key) && !names_an_object(key));
        let mut from = 0;
        while let Some(at) = line.get(from..).and_then(|rest| rest.find(':')).map(|at| from + at) {
            let before = line.get(..at).unwrap_or_default().trim_end_matches(|c| "\"'".contains(c));
            let key = before.rsplit(|c| !is_word(c)).next().unwrap_or_default();
            let rest = line.get(at + 1..).unwrap_or_default();
            let is_mapping = rest.trim().is_empty() || rest.trim_start().starts_with('{');
            if is_left_out(key) && !(is_mapping && key != "value") {
                left_out = Some(before.len() - key.len());
                return format!("{}: {REDACTED}{end}", line.get(..at).unwrap_or_default());
            }
            from = at + 1;
        }
        line.to_owned()
    };
    document.split_inclusive('\n').map(line).collect()
}

/// Whether a document says anywhere that something is a Secret.
fn has_secret(document: &str) -> bool {
    let squeezed: String = document.chars().filter(|c| !c.is_whitespace() && !"\"'".contains(*c)).collect();
    let squeezed = squeezed.replace("!!str", "");
    squeezed.contains("kind:Secret")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_lose_their_secrets_and_keep_their_lines() {
        let check = |input: &str, expected: &str| assert_eq!(text(input), expected, "{input}");
        check("plain text, /path?a=b\n", "plain text, /path?a=b\n");
        check("got eyJhbGciOi.eyJzdWIi.c2ln from a\n", "got [redacted] from a\n");
        check("Authorization: Basic dXNlcjpwYXNz\nnext", "Authorization: [redacted]\nnext");
        check("token was Bearer abcdefghijkl, then", "token was Bearer [redacted], then");
        check(
            "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nafter\n",
            "[redacted]\n[redacted]\n[redacted]\nafter\n",
        );
        check(
            "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
        );
        // A key whose end is missing takes the rest with it.
        check("-----BEGIN PRIVATE KEY-----\nabc\ndef", "[redacted]\n[redacted]\n[redacted]");
        check("basic settings", "basic settings");
    }

    #[test]
    fn objects_lose_their_secrets() {
        let check = |mut input: Value, expected: Value| {
            object(&mut input);
            assert_eq!(input, expected);
        };
        check(
            json!({"kind": "Secret", "metadata": {"name": "a", "managedFields": []}, "data": {"k": "djE="}, "stringData": {"j": "v"}}),
            json!({"kind": "Secret", "metadata": {"name": "a"}, "data": {"k": "[redacted]"}, "stringData": {"j": "[redacted]"}}),
        );
        check(
            json!({"kind": "Pod", "spec": {"containers": [{"env": [{"name": "DB_PASSWORD", "value": "x"}, {"name": "MODE", "value": "y"}]}]}}),
            json!({"kind": "Pod", "spec": {"containers": [{"env": [{"name": "DB_PASSWORD", "value": "[redacted]"}, {"name": "MODE", "value": "y"}]}]}}),
        );
        check(
            json!({"kind": "Gateway", "tls": {"credentialName": "cert"}, "clientSecret": "x"}),
            json!({"kind": "Gateway", "tls": {"credentialName": "cert"}, "clientSecret": "[redacted]"}),
        );
        check(
            json!({"kind": "ConfigMap", "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}}}),
            json!({"kind": "ConfigMap", "metadata": {"annotations": {"a": "b"}}}),
        );
    }

    #[test]
    fn files_keep_the_lines_that_findings_name() {
        let check = |input: &str, expected: &str| assert_eq!(file(input), expected, "{input}");
        let route = "kind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a]}\n";
        check(route, route);
        check(
            &format!(
                "{route}---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: a\ndata:\n  tls.key: abc\n---\n{route}"
            ),
            &format!("{route}---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n#\n#\n---\n{route}"),
        );
        check("{kind: Secret, metadata: {name: a}, data: {k: v}}\n", "#\n");
        check("{\"kind\": \"List\", \"items\": [\n{\"kind\": \"Secret\", \"data\": {\"k\": \"v\"}}]}\n", "#\n#\n");
        check("kind: Secret\nstringData: {k: v}", "kind: Secret\n#");
        check("kind: !!str Secret\nstringData: {k: v}", "kind: !!str Secret\n#");
        // Variables, in any order and form.
        check(
            "env:\n- name: DB_PASSWORD\n  value: x\n- name: A\n",
            "env:\n- name: DB_PASSWORD\n  value: [redacted]\n- name: A\n",
        );
        check("env:\n- value: x\n  name: DB_PASSWORD\n", "env:\n- value: [redacted]\n  name: DB_PASSWORD\n");
        check("env: [{name: API_TOKEN, value: x}]\n", "env: [{name: API_TOKEN, value: [redacted]\n");
        check(
            "- name: API_TOKEN\n  value: |\n    x\n    y\n- name: A\n",
            "- name: API_TOKEN\n  value: [redacted]\n#\n#\n- name: A\n",
        );
        check("- name: A\n  value: x\n", "- name: A\n  value: x\n");
        check("data:\n  password: x\n  mode: y\n", "data:\n  password: [redacted]\n  mode: y\n");
        check("tls: {credentialName: cert}\nsecretName: a\n", "tls: {credentialName: cert}\nsecretName: a\n");
    }
}
