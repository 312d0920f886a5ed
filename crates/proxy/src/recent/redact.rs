//! Decides which values of a request's head, and of the headers in a configuration, are secret.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Parts of the names of headers and parameters whose values are not kept. Names are compared in lower case, with `-` for `_`.
const SECRET: [&str; 23] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "api-key",
    "apikey",
    "session",
    "sessid",
    "credential",
    "jwt",
    "signature",
    "csrf",
    "xsrf",
    "otp",
    "access-key",
    "assertion",
    "saml",
    "bearer",
    "ticket",
    "hmac",
];
/// Words whose values are not kept, where they are a whole word of a name.
const SECRET_WORDS: [&str; 9] = ["pass", "pin", "sid", "code", "sig", "pw", "cred", "creds", "sso"];
/// Names that seem secret and are not.
const KNOWN: [&str; 12] = [
    "authority",
    "x-forwarded-authority",
    "idempotency-key",
    "sec-websocket-key",
    "partition-key",
    "surrogate-key",
    "cache-key",
    "cookie-consent",
    "author",
    "country-code",
    "status-code",
    "zip-code",
];
/// How often a name may be escaped.
const MAX_ESCAPES: usize = 3;

/// Whether the value of this header or parameter is not kept.
pub fn is_secret(name: &str) -> bool {
    let name = plain(name).to_ascii_lowercase().replace('_', "-");
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    !KNOWN.contains(&&*name)
        && (SECRET.iter().any(|part| name.contains(part))
            || name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).ends_with("key")
            || words.any(|word| SECRET_WORDS.contains(&word)))
}

/// The name without escapes.
fn plain(name: &str) -> Cow<'_, str> {
    let mut name = Cow::Borrowed(name);
    for _ in 0..MAX_ESCAPES {
        if !name.contains('%') {
            break;
        }
        name = percent_decode_str(&name).decode_utf8_lossy().into_owned().into();
    }
    name
}

/// A path or URL without the values of secret parameters and without a password, and the names of what it lost.
pub(crate) fn url(text: &str, instead: &str) -> (String, Vec<String>) {
    let mut names = Vec::new();
    let (before, query) = match text.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (text, None),
    };
    let (before, fragment) = match before.split_once('#') {
        Some((before, fragment)) => (before, Some(fragment)),
        None => (before, None),
    };
    let mut kept = without_parameters(&without_password(before, instead, &mut names), '/', instead, (";", &mut names));
    if let Some(fragment) = fragment {
        kept = format!("{kept}#{}", without_parameters(fragment, '&', instead, ("#", &mut names)));
    }
    if let Some(query) = query {
        kept = format!("{kept}?{}", without_parameters(query, '&', instead, ("?", &mut names)));
    }
    (kept, names)
}

/// Removes secret values from parts that `separator` separates. Within a part, a parameter may also stand behind `;`, `#` or `?`; the value of
/// a secret one then ends with the part, because not everybody takes these for separators.
fn without_parameters(text: &str, separator: char, instead: &str, (place, names): (&str, &mut Vec<String>)) -> String {
    let parts = text.split(separator).map(|part| {
        let mut start = 0;
        loop {
            let rest = part.get(start..).unwrap_or_default();
            let length = rest.find([';', '#', '?']).unwrap_or(rest.len());
            let parameter = rest.get(..length).unwrap_or_default();
            if let Some((name, _)) = parameter.split_once('=')
                && is_secret(name)
            {
                names.push(format!("{place}{name}"));
                return format!("{}{name}={instead}", part.get(..start).unwrap_or_default());
            }
            if length == rest.len() {
                return part.to_owned();
            }
            start += length + 1;
        }
    });
    parts.collect::<Vec<_>>().join(&separator.to_string())
}

/// Removes user and password of a URL.
fn without_password<'t>(text: &'t str, instead: &str, names: &mut Vec<String>) -> Cow<'t, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let authority = rest.split('/').next().unwrap_or_default();
    let Some((_, host)) = authority.rsplit_once('@') else { return text.into() };
    names.push("@".to_owned());
    let path = rest.get(authority.len()..).unwrap_or_default();
    format!("{scheme}://{instead}@{host}{path}").into()
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
            "acc%65ss_token",
            "acc%2565ss_token",
            "pass",
            "user_pass",
            "pin",
            "sid",
            "connect.sid",
            "ocp-apim-subscription-key",
            "subscriptionKey",
            "x-functions-key",
            "x-private-key",
            "client_assertion",
            "SAMLResponse",
            "key",
            "code",
            "sig",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "end-user",
            "user-agent",
            "x-request-id",
            "accept",
            "host",
            "x-forwarded-for",
            "traceparent",
            "idempotency-key",
            "compass",
            "ping",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secret_parameters_lose_their_values() {
        let check = |text: &str, expected: &str, names: &[&str]| {
            assert_eq!(
                url(text, "*"),
                (expected.to_owned(), names.iter().map(ToString::to_string).collect()),
                "{text}"
            );
        };
        check("/a", "/a", &[]);
        check("/a?b=c&d", "/a?b=c&d", &[]);
        check("/a?access_token=x%20y&b=c", "/a?access_token=*&b=c", &["?access_token"]);
        check("/a?acc%65ss_token=x", "/a?acc%65ss_token=*", &["?acc%65ss_token"]);
        check("/a?b=c;token=x;y&d=e", "/a?b=c;token=*&d=e", &["?token"]);
        check("/a?token=x;y=z&d=e", "/a?token=*&d=e", &["?token"]);
        check("/a;jsessionid=1;v=2/b;c=d", "/a;jsessionid=*/b;c=d", &[";jsessionid"]);
        check("/a#access_token=x&b=c", "/a#access_token=*&b=c", &["#access_token"]);
        check("/a?b=c#access_token=x", "/a?b=c#access_token=*", &["?access_token"]);
        check("https://me:secret@a.test/b?c=d", "https://*@a.test/b?c=d", &["@"]);
        check("https://a.test/@b", "https://a.test/@b", &[]);
        check("text/html;q=0.9, */*;q=0.8", "text/html;q=0.9, */*;q=0.8", &[]);
        check("/a?b=c&key=1&sig=2", "/a?b=c&key=*&sig=*", &["?key", "?sig"]);
    }
}
