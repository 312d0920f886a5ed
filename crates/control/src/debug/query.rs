//! Query parameters of a page's URL.

use percent_encoding::percent_decode_str;

/// Returns the first value of a parameter, with `%XX` (RFC 3986, section 2.1) and `+` decoded.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(decoded)
}

/// Invalid escapes are left as they are.
fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_parameters() {
        let check =
            |query: &str, expected: Option<&str>| assert_eq!(parameter(query, "at").as_deref(), expected, "{query}");
        check("proxyID=a&at=5m", Some("5m"));
        check("at=2026-11-21T10%3A00%3a00%2B01:00&at=other", Some("2026-11-21T10:00:00+01:00"));
        check("at=a+b%20c", Some("a b c"));
        check("at=%", Some("%"));
        check("at=%4", Some("%4"));
        check("at=%+1", Some("% 1"));
        check("at=%ff", Some("\u{fffd}"));
        check("at=", Some(""));
        check("at", None);
        check("what=at", None);
        check("", None);
    }
}
