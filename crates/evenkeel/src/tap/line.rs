//! The lines that `evenkeel tap` prints.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_proxy::tap::TappedRequest;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::formats::Output;

/// One line of the output.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    /// POD.NAMESPACE of the proxy; empty: there is only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) proxy: String,
    #[serde(flatten)]
    pub(super) event: Event,
}

/// What a proxy reports. In JSON, the keys say which it is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Event {
    /// Requests ended that are not shown.
    Missed {
        /// Number of them that made room for later ones.
        dropped: u64,
        /// There may be others: the proxy has restarted, or was not asked for some time.
        interrupted: bool,
    },
    /// A request has ended.
    Request(Box<TappedRequest>),
}

impl Line {
    /// Whether it is about a request.
    pub(super) fn is_request(&self) -> bool {
        matches!(self.event, Event::Request(_))
    }

    /// Prints it.
    pub(super) fn print(&self, output: Output, out: &mut dyn Write) -> io::Result<()> {
        match output {
            Output::Json => writeln!(out, "{}", serde_json::to_string(self)?),
            Output::Text => writeln!(out, "{}", self.text()),
        }
    }

    fn text(&self) -> String {
        let prefix = if self.proxy.is_empty() { String::new() } else { format!("[{}] ", self.proxy) };
        let text = match &self.event {
            Event::Request(request) => request_text(request),
            Event::Missed { dropped, interrupted: false } => {
                format!("{dropped} requests are not shown: there were more than could be read")
            }
            Event::Missed { dropped, interrupted: true } => format!(
                "{dropped} requests or more are not shown: the proxy has restarted, or could not be read for some time"
            ),
        };
        prefix + &text
    }
}

/// `TIME DIRECTION METHOD AUTHORITY PATH STATUS FLAGS DURATION`, then what is known of both sides.
fn request_text(request: &TappedRequest) -> String {
    let at = OffsetDateTime::from(UNIX_EPOCH + Duration::from_micros(request.started_us));
    let (hour, minute, second, milli) = at.to_hms_milli();
    let query = request.query.iter().map(|query| format!("?{query}")).collect::<String>();
    let millis = request.duration_us as f64 / 1000.0;
    let TappedRequest { direction, method, authority, path, status, flags, details, .. } = request;
    let mut words = vec![format!("{hour:02}:{minute:02}:{second:02}.{milli:03}Z")];
    words.push(format!("{direction:8} {method} {authority}{path}{query} {status} {millis:.1}ms"));
    words.extend([flags, details].into_iter().filter(|text| !text.is_empty()).cloned());
    let source = request.source_identity.clone().or_else(|| request.source.map(|source| source.to_string()));
    words.extend(source.map(|source| format!("from={source}")));
    words.extend(request.upstream.iter().map(|upstream| format!("to={upstream}")));
    words.push(format!("bytes={}/{}", request.bytes_received, request.bytes_sent));
    words.extend(Some(&request.id).filter(|id| !id.is_empty()).map(|id| format!("id={id}")));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> TappedRequest {
        TappedRequest {
            started_us: 3_661_002_000,
            direction: "inbound".to_owned(),
            method: "GET".to_owned(),
            authority: "web".to_owned(),
            path: "/a".to_owned(),
            query: Some("b=c".to_owned()),
            status: 503,
            flags: "UF".to_owned(),
            details: "via_upstream".to_owned(),
            duration_us: 12_340,
            source_identity: Some("spiffe://x/ns/a/sa/b".to_owned()),
            upstream: Some("10.0.0.1:80".to_owned()),
            bytes_received: 1,
            bytes_sent: 2,
            id: "7d1f".to_owned(),
            ..TappedRequest::default()
        }
    }

    #[test]
    fn lines_are_readable_and_survive_json() {
        let check = |proxy: &str, event: Event, expected: &str| {
            let line = Line { proxy: proxy.to_owned(), event };
            assert_eq!(line.text(), expected);
            let mut json = Vec::new();
            line.print(Output::Json, &mut json).expect("memory");
            assert_eq!(serde_json::from_slice::<Line>(&json).expect("its own JSON"), line);
        };
        check(
            "web-0.shop",
            Event::Request(Box::new(request())),
            "[web-0.shop] 01:01:01.002Z inbound  GET web/a?b=c 503 12.3ms UF via_upstream from=spiffe://x/ns/a/sa/b \
             to=10.0.0.1:80 bytes=1/2 id=7d1f",
        );
        let dropped = Event::Missed { dropped: 3, interrupted: false };
        check("", dropped, "3 requests are not shown: there were more than could be read");
        let interrupted = Event::Missed { dropped: 0, interrupted: true };
        check(
            "",
            interrupted,
            "0 requests or more are not shown: the proxy has restarted, or could not be read for some time",
        );
    }
}
