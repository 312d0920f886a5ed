//! `UriTemplateMatchConfig`: a path with wildcards, as Istio writes the paths `{*}` and `{**}` of policies. A template becomes a regular
//! expression over the whole path, the same as Envoy's.

/// The characters of a path that wildcards stand for: those of RFC 3986 (`pchar`) without `*` and `=`.
const LITERAL: &str = r"a-zA-Z0-9\-._~%!$&'()+,;:@";
/// Envoy's limits of variables.
const MAX_VARIABLES: usize = 5;
const MAX_NAME_BYTES: usize = 16;

/// The expression of a template.
pub(crate) fn pattern(template: &str) -> Result<String, &'static str> {
    let Some(rest) = template.strip_prefix('/').filter(|rest| rest.bytes().all(|byte| byte.is_ascii_graphic())) else {
        return Err("a template begins with `/` and has printable characters only");
    };
    let mut parser = Parser { rest, pattern: "/".to_owned(), names: Vec::new(), is_open: false };
    while !parser.rest.is_empty() {
        parser.segment()?;
        match parser.rest.strip_prefix('/') {
            Some(rest) => {
                parser.pattern.push('/');
                parser.rest = rest;
            }
            None if parser.rest.is_empty() => {}
            None => {
                parser.literal()?;
                if !parser.rest.is_empty() {
                    return Err("after a wildcard and a text nothing may follow");
                }
            }
        }
    }
    Ok(parser.pattern)
}

struct Parser<'t> {
    rest: &'t str,
    pattern: String,
    names: Vec<&'t str>,
    /// There was a `**`, after which no wildcard may come.
    is_open: bool,
}

impl<'t> Parser<'t> {
    fn segment(&mut self) -> Result<(), &'static str> {
        match self.rest.as_bytes().first() {
            Some(b'*') => self.wildcard(),
            Some(b'{') => self.variable(),
            _ => self.literal(),
        }
    }

    fn wildcard(&mut self) -> Result<(), &'static str> {
        if self.is_open {
            return Err("no wildcard may follow `**`");
        }
        if let Some(rest) = self.rest.strip_prefix("**") {
            self.pattern += &format!("[{LITERAL}/]*");
            (self.rest, self.is_open) = (rest, true);
        } else if let Some(rest) = self.rest.strip_prefix('*') {
            self.pattern += &format!("[{LITERAL}]+");
            self.rest = rest;
        }
        Ok(())
    }

    fn literal(&mut self) -> Result<(), &'static str> {
        let (text, rest) = self.rest.split_at(self.rest.find('/').unwrap_or(self.rest.len()));
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_valid) {
            return Err("a part of the path has characters that a template cannot have, or is empty");
        }
        for character in text.chars() {
            if "$().+".contains(character) {
                self.pattern.push('\\');
            }
            self.pattern.push(character);
        }
        self.rest = rest;
        Ok(())
    }

    /// `{NAME}`, or `{NAME=TEMPLATE}`.
    fn variable(&mut self) -> Result<(), &'static str> {
        let (inside, rest) = self.rest.get(1..).and_then(|rest| rest.split_once('}')).ok_or("`{` without `}`")?;
        let (name, template) = inside.split_once('=').unwrap_or((inside, "*"));
        let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
        if !starts
            || name.len() > MAX_NAME_BYTES
            || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Err("the name of a variable has 1 to 16 letters, digits and `_`, and begins with a letter");
        }
        if self.names.contains(&name) || self.names.len() >= MAX_VARIABLES {
            return Err("there may be 5 variables, each with a name of its own");
        }
        self.names.push(name);
        self.rest = template;
        loop {
            if self.rest.starts_with('*') {
                self.wildcard()?;
            } else {
                self.literal()?;
            }
            match self.rest.strip_prefix('/') {
                Some(more) if !more.is_empty() => {
                    self.pattern.push('/');
                    self.rest = more;
                }
                None if self.rest.is_empty() => break,
                _ => return Err("the parts of a variable are separated by `/`"),
            }
        }
        self.rest = rest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::re2::Regex;

    use super::*;
    use crate::string_match::StringMatcher;

    #[test]
    fn paths_match_as_in_envoy() {
        let check = |template: &str, path: &str, expected: bool| {
            let regex = Regex::whole(&pattern(template).expect(template)).expect(template);
            assert_eq!(StringMatcher::Regex(regex).matches(path.as_bytes()), expected, "{template} {path}");
        };
        for (path, expected) in
            [("/a/b/c", true), ("/a//c", false), ("/a/b/d/c", false), ("/a/b/c/", false), ("/a/=/c", false)]
        {
            check("/a/*/c", path, expected);
        }
        check("/a/**", "/a/", true);
        check("/a/**", "/a/b/c", true);
        check("/a/**", "/a", false);
        check("/**/c", "/a/b/c", true);
        check("/a/{name}/c.d", "/a/b/c.d", true);
        check("/a/{name}/c.d", "/a/b/cxd", false);
        check("/{name=v/*}/c", "/v/b/c", true);
        check("/**.mpd", "/a/b.mpd", true);
        check("/a/*/", "/a/b/", true);
        check("/", "/", true);
    }

    #[test]
    fn malformed_templates_are_named() {
        let check = |template: &str| assert!(pattern(template).is_err(), "{template}");
        for template in
            ["", "a", "/a b", "/**/*", "/{a", "/{}", "/{1}", "/{a}/{a}", "/{a=}", "/{a=/}", "/*a/b", "/a*", "//"]
        {
            check(template);
        }
    }
}
