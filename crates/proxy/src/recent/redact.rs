//! Decides which values of a request's head are secret.

/// Parts of the names of headers and query parameters whose values are not kept.
const SECRET: [&str; 17] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "passw",
    "pwd",
    "api-key",
    "api_key",
    "apikey",
    "session",
    "credential",
    "jwt",
    "signature",
    "csrf",
    "xsrf",
    "otp",
    "access-key",
];
/// Names that have such a part and are not secret.
const KNOWN: [&str; 2] = ["authority", "x-forwarded-authority"];

/// Whether the value of this header or parameter is not kept.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !KNOWN.contains(&&*name)
        && (SECRET.iter().any(|part| name.contains(part)) || matches!(&*name, "code" | "sig" | "key"))
}

/// A path without the values of secret parameters, and the names of these.
pub(super) fn path(path: &str, instead: &str) -> (String, Vec<String>) {
    let Some((before, query)) = path.split_once('?') else { return (path.to_owned(), Vec::new()) };
    let mut names = Vec::new();
    let parameters: Vec<String> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if is_secret(name) => {
                names.push(format!("?{name}"));
                format!("{name}={instead}")
            }
            _ => parameter.to_owned(),
        })
        .collect();
    (format!("{before}?{}", parameters.join("&")), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in [
            "authorization",
            "Proxy-Authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
            "x-csrf-token",
            "x-auth",
            "x-amz-security-token",
            "x-goog-iap-jwt-assertion",
            "x-session-id",
            "client_secret",
            "password",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["end-user", "user-agent", "x-request-id", "accept", "host", "x-forwarded-for", "traceparent"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secret_parameters_lose_their_values() {
        let check = |text: &str, expected: &str, names: &[&str]| {
            assert_eq!(
                path(text, "*"),
                (expected.to_owned(), names.iter().map(ToString::to_string).collect()),
                "{text}"
            );
        };
        check("/a", "/a", &[]);
        check("/a?b=c&d", "/a?b=c&d", &[]);
        check("/a?access_token=x%20y&b=c", "/a?access_token=*&b=c", &["?access_token"]);
        check("/a?b=c&key=1&sig=2", "/a?b=c&key=*&sig=*", &["?key", "?sig"]);
    }
}
