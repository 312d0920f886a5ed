//! Cookies that the proxy sets, and how they are found in requests.

/// A cookie as in `Set-Cookie`, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    /// Name.
    pub name: Box<str>,
    /// Lifetime in seconds; 0: a session cookie. `None`: it is only read and never set.
    pub ttl_seconds: Option<u64>,
    /// Path; empty: none.
    pub path: Box<str>,
    /// Further attributes; one with an empty value is written as its name alone.
    pub attributes: Vec<(Box<str>, Box<str>)>,
}

impl Cookie {
    /// The `set-cookie` header value that sets the cookie to `value`.
    pub fn set(&self, value: &str) -> String {
        let mut text = format!("{}=\"{value}\"", self.name);
        if let Some(seconds) = self.ttl_seconds.filter(|seconds| *seconds > 0) {
            text.push_str(&format!("; Max-Age={seconds}"));
        }
        if !self.path.is_empty() {
            text.push_str("; Path=");
            text.push_str(&self.path);
        }
        for (name, value) in &self.attributes {
            text.push_str("; ");
            text.push_str(name);
            if !value.is_empty() {
                text.push('=');
                text.push_str(value);
            }
        }
        text.push_str("; HttpOnly");
        text
    }
}

/// The value of the first cookie with that name in the lines of a `cookie` header, without surrounding quotes.
pub fn find<'h>(lines: impl Iterator<Item = &'h [u8]>, name: &str) -> Option<&'h [u8]> {
    find_all(lines, name).next()
}

/// The values of all cookies with that name, as [`find`].
pub fn find_all<'h>(lines: impl Iterator<Item = &'h [u8]>, name: &str) -> impl Iterator<Item = &'h [u8]> {
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';')).filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        Some((pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii()))
    });
    pairs.filter(move |(own, _)| *own == name.as_bytes()).map(|(_, value)| match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    })
}
