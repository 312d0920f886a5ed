//! The request that a run sends, from flags.

use std::fmt::Write as _;

use crate::codec::Http1Request;
use crate::flags::RequestFlags;
use crate::schedule::Random;
use crate::target::Target;

/// An HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Host and port.
    pub authority: String,
    /// Header fields, without the host and what frames the payload.
    pub fields: Vec<Field>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name, as the user wrote it.
    pub name: String,
    /// Value.
    pub value: String,
}

/// The name of this program in requests.
pub const USER_AGENT: &str = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));

/// The payload that the flags name; `None` without such a flag.
///
/// # Errors
/// The file cannot be read.
pub fn payload(flags: &RequestFlags) -> Result<Option<Vec<u8>>, String> {
    if flags.payload_size > 0 {
        let mut random = Random::new(flags.payload_size as u64);
        let letter = |_| b'a' + u8::try_from(random.next() % 26).unwrap_or_default();
        return Ok(Some((0..flags.payload_size).map(letter).collect()));
    }
    if let Some(file) = &flags.payload_file {
        return std::fs::read(file).map(Some).map_err(|error| format!("{}: {error}", file.display()));
    }
    Ok(flags.payload.clone().map(String::into_bytes))
}

/// The header fields that the flags name.
///
/// # Errors
/// One is not `name: value`, or not of the characters that HTTP allows.
pub fn fields(flags: &RequestFlags) -> Result<Vec<Field>, String> {
    let parse = |text: &String| {
        let wrong = || format!("-H {text:?}: expected name:value");
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: http::HeaderName = name.trim().parse().map_err(|_| wrong())?;
        let value: http::HeaderValue = value.trim().parse().map_err(|_| wrong())?;
        let value = String::from_utf8(value.as_bytes().to_vec()).map_err(|_| wrong())?;
        Ok(Field { name: name.to_string(), value })
    };
    flags.headers.iter().map(parse).collect()
}

impl HttpRequest {
    /// The request to `target` that the flags describe.
    ///
    /// # Errors
    /// A flag's value is wrong; says which.
    pub fn new(target: &Target, flags: &RequestFlags) -> Result<Self, String> {
        let payload = payload(flags)?;
        let posts = payload.is_some() || flags.content_type.is_some();
        let method = flags.method.clone().unwrap_or_else(|| if posts { "POST" } else { "GET" }.to_owned());
        if http::Method::from_bytes(method.as_bytes()).is_err() {
            return Err(format!("-X {method:?}: expected a method"));
        }
        let mut request = Self {
            method,
            path: target.path.clone(),
            authority: target.authority.clone(),
            fields: fields(flags)?,
            payload: payload.unwrap_or_default(),
        };
        if let Some(at) = request.fields.iter().position(|field| field.name == "host") {
            request.authority = request.fields.remove(at).value;
        }
        request.set_default("user-agent", USER_AGENT);
        if let Some(content_type) = &flags.content_type {
            request.set_default("content-type", content_type);
        } else if posts {
            request.set_default("content-type", "application/octet-stream");
        }
        if flags.compression {
            request.set_default("accept-encoding", "gzip");
        }
        if let Some(user) = &flags.user {
            request.set_default("authorization", &format!("Basic {}", base64(user.as_bytes())));
        }
        Ok(request)
    }

    fn set_default(&mut self, name: &str, value: &str) {
        if !self.fields.iter().any(|field| field.name == name) {
            self.fields.push(Field { name: name.to_owned(), value: value.to_owned() });
        }
    }

    /// As HTTP/1.
    pub fn http1(&self, flags: &RequestFlags) -> Http1Request {
        let version = if flags.http10 { "1.0" } else { "1.1" };
        let mut head = format!("{} {} HTTP/{version}\r\nhost: {}\r\n", self.method, self.path, self.authority);
        for Field { name, value } in &self.fields {
            _ = write!(head, "{name}: {value}\r\n");
        }
        if !self.payload.is_empty() || self.method == "POST" {
            _ = write!(head, "content-length: {}\r\n", self.payload.len());
        }
        match (flags.keepalive, flags.http10) {
            (false, _) => head.push_str("connection: close\r\n"),
            (true, true) => head.push_str("connection: keep-alive\r\n"),
            (true, false) => {}
        }
        head.push_str("\r\n");
        let bytes = [head.as_bytes(), &self.payload].concat();
        Http1Request { bytes, is_head: self.method == "HEAD", closes: !flags.keepalive }
    }
}

/// In base64, as JSON has bytes.
pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Test {
        #[command(flatten)]
        flags: RequestFlags,
    }

    #[test]
    fn requests_are_as_the_flags_say() {
        let check = |line: &[&str], expected: &str| {
            let Test { flags } = Test::parse_from([&["load"], line].concat());
            let request = HttpRequest::new(&Target::parse("http://a:81/b?c").unwrap(), &flags).unwrap();
            let text = String::from_utf8(request.http1(&flags).bytes).unwrap();
            let agent = format!("user-agent: {USER_AGENT}\r\n");
            assert_eq!(text.replace(&agent, "").replace("\r\n", "|"), expected, "{line:?}");
        };
        check(&[], "GET /b?c HTTP/1.1|host: a:81||");
        check(&["-H", "Host: x", "-H", "A:  b:c "], "GET /b?c HTTP/1.1|host: x|a: b:c||");
        check(&["--http1.0"], "GET /b?c HTTP/1.0|host: a:81|connection: keep-alive||");
        check(&["--keepalive=false", "-X", "DELETE"], "DELETE /b?c HTTP/1.1|host: a:81|connection: close||");
        check(
            &["-d", "hi", "--content-type", "text/plain"],
            "POST /b?c HTTP/1.1|host: a:81|content-type: text/plain|content-length: 2||hi",
        );
        check(&["--user", "a:b"], "GET /b?c HTTP/1.1|host: a:81|authorization: Basic YTpi||");
    }

    #[test]
    fn a_header_cannot_begin_another() {
        for header in ["a", "a: b\r\nc: d", "a b: c", ": x"] {
            let Test { flags } = Test::parse_from(["load", "-H", header]);
            assert!(HttpRequest::new(&Target::parse("a").unwrap(), &flags).is_err(), "{header:?}");
        }
    }
}
