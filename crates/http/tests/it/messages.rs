//! Messages generated from a seed.

use evenkeel_http::{Framing, Headers, RequestHead, ResponseHead};
use evenkeel_testkit::Random;

/// A request, which its answer repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub method: &'static str,
    pub path: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Message {
    /// Some fields repeat from message to message, some never do; some bodies are empty and some larger than any window.
    pub fn random(random: &mut Random, number: usize) -> Self {
        let mut fields = vec![("x-number".to_owned(), number.to_string())];
        for _ in 0..random.below(8) {
            let name = format!("x-name-{}", random.below(12));
            let value = match random.below(4) {
                0 => "repeated".repeat(1 + random.below(3)),
                1 => format!("unique {number} {}", random.below(1_000_000)),
                2 => String::new(),
                _ => "~!@#$%^&*()_+{}|:\"<>?\u{e4}".repeat(random.below(20)),
            };
            fields.push((name, value.trim().to_owned()));
        }
        let length = match random.below(5) {
            0 => 0,
            1 => random.below(100),
            2 => random.below(20_000),
            3 => 16_384 * random.below(3),
            _ => random.below(200_000),
        };
        let body: Vec<u8> = (0..length).map(|at| (at * 31 + number) as u8).collect();
        let trailers = (0..random.below(3)).map(|at| (format!("x-trailer-{at}"), format!("t{}", number % 5))).collect();
        let method = random.pick(&["GET", "POST", "PUT", "DELETE"]);
        Self { method, path: format!("/p/{}?n={number}", random.below(3)), fields, body, trailers }
    }

    /// The stream ends with the head.
    pub fn is_bare(&self) -> bool {
        self.body.is_empty() && self.trailers.is_empty()
    }

    pub fn framing(&self) -> Framing {
        match self.body.len() {
            0 if self.trailers.is_empty() => Framing::None,
            length if length % 2 == 0 => Framing::Length(length as u64),
            _ => Framing::Chunked,
        }
    }

    pub fn request_head(&self) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_method(self.method.as_bytes());
        head.set_path(self.path.as_bytes());
        head.set_authority(b"oracle.test");
        head.headers = headers(&self.fields, head.headers);
        head
    }

    pub fn response_head(&self) -> ResponseHead {
        ResponseHead { status: 200, headers: headers(&self.fields, Headers::default()), ..ResponseHead::default() }
    }

    pub fn trailer_fields(&self) -> Headers {
        headers(&self.trailers, Headers::default())
    }
}

fn headers(fields: &[(String, String)], mut headers: Headers) -> Headers {
    fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value.as_bytes()));
    headers
}

/// Fields but those the codecs make of the framing.
pub fn fields_of(headers: &Headers) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = headers.iter().map(|(_, name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name != "content-length").collect()
}
