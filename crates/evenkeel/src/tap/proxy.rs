//! Reads one proxy by its admin port.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_proxy::tap::{TapPage, TappedRequest};

use super::TapArguments;
use super::line::{Event, Line};
use crate::admin;

/// How often the proxy is asked.
pub(super) const PERIOD: Duration = Duration::from_millis(200);

/// Prints the requests of this proxy until the time is over or there are enough.
pub(super) fn read(arguments: &TapArguments, address: SocketAddr, out: &mut dyn Write) -> anyhow::Result<u8> {
    let end = arguments.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let mut next = fetch(address, "/tap")?.next;
    loop {
        let time_left = end.map(|end| end.saturating_duration_since(Instant::now()));
        #[allow(clippy::disallowed_methods, reason = "the proxy tells nobody that a request has ended")]
        std::thread::sleep(time_left.map_or(PERIOD, |left| left.min(PERIOD)));
        let page = fetch(address, &format!("/tap?since={next}"))?;
        next = page.next;
        for line in arguments.lines(page) {
            line.print(arguments.output, out)?;
            left -= u64::from(line.is_request());
            if left == 0 {
                break;
            }
        }
        if arguments.heartbeat {
            writeln!(out)?;
        }
        out.flush()?;
        if left == 0 || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(0);
        }
    }
}

fn fetch(address: SocketAddr, page: &str) -> anyhow::Result<TapPage> {
    let body = admin::get(admin::PROXY, address, page)?;
    serde_json::from_slice(&body).context("it is another version of Evenkeel's proxy, or another proxy")
}

impl TapArguments {
    /// The lines for a page.
    pub(super) fn lines(&self, page: TapPage) -> impl Iterator<Item = Line> {
        let TapPage { dropped, interrupted, requests, .. } = page;
        let missed = (dropped > 0 || interrupted).then_some(Event::Missed { dropped, interrupted });
        let shown = requests.into_iter().filter(|request| self.filter.matches(request));
        let without_query = |request| TappedRequest { query: None, ..request };
        let shown = shown.map(move |request| if self.query { request } else { without_query(request) });
        let events = missed.into_iter().chain(shown.map(|request| Event::Request(Box::new(request))));
        events.map(|event| Line { proxy: String::new(), event })
    }
}
