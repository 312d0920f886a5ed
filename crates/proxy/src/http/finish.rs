//! The headers that every response has.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_filters::decide::append_via;
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::ServerHeader;
use httpdate::fmt_http_date;

use crate::clock::unix_seconds;

/// Adds the headers every response has: `date`, `server`, `via`.
pub(super) fn finish_response(headers: &mut Headers, hcm: &HttpConnectionManager, local: bool) {
    if !headers.contains(HeaderId::Date) {
        DATE.with_borrow_mut(|date| headers.append_id(HeaderId::Date, date.now()));
    }
    let ours = match hcm.server_header {
        ServerHeader::Overwrite => true,
        ServerHeader::AppendIfAbsent => !headers.contains(HeaderId::Server),
        ServerHeader::PassThrough => local && !headers.contains(HeaderId::Server),
    };
    if ours {
        headers.set(HeaderId::Server, hcm.server_name.as_bytes());
    }
    if let Some(via) = &hcm.via {
        append_via(headers, via);
    }
}

thread_local! {
    static DATE: RefCell<HttpDate> = RefCell::new(HttpDate::default());
}

/// The value of `date`, formatted once a second.
#[derive(Default)]
struct HttpDate {
    second: u64,
    text: Vec<u8>,
}

impl HttpDate {
    fn now(&mut self) -> &[u8] {
        let second = unix_seconds();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = fmt_http_date(UNIX_EPOCH + Duration::from_secs(second)).into_bytes();
        }
        &self.text
    }
}
