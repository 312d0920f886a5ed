//! After `101 Switching Protocols`: bytes both ways until either side ends.

use std::time::Duration;

use evenkeel_http::{Framing, Version, encode};
use evenkeel_runtime_config::HttpConnectionManager;

use super::connection::Connection;
use super::edits::Levels;
use super::log::record;
use super::reply::finish_response;
use super::request::Request;
use crate::conn::Buffer;
use crate::stats::http::{Counter, Gauge};
use crate::tcp::relay::{Ending, Relay};
use crate::upstream::Connection as Upstream;

impl Connection<'_> {
    /// Passes the upstream's 101 on and relays. The connection ends with it.
    pub(super) async fn switch_protocols(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
        levels: Levels<'_>,
        mut upstream: Upstream,
        answer: Buffer,
        idle: Option<Duration>,
    ) -> bool {
        let protocol = request.response.headers.get(evenkeel_http::HeaderId::Upgrade).unwrap_or_default().to_vec();
        request.response.headers.remove_hop_by_hop();
        if !levels.is_empty() {
            let values = record(self, request, |record| levels.response_values(record));
            levels.edit_response(&mut request.response.headers, values);
        }
        finish_response(&mut request.response.headers, hcm, false);
        let style = encode::ResponseStyle {
            version: Version::Http11,
            framing: Framing::None,
            bodiless: true,
            connection: encode::Connection::Upgrade(&protocol),
            proper_case: hcm.proper_case_response_headers,
        };
        encode::response(&mut self.output, &request.response, style);
        request.status = 101;
        request.details = "via_upstream".into();
        request.response_begun = true;
        if self.flush().await.is_err() {
            return false;
        }
        self.manager.http.inc(Counter::downstream_cx_upgrades_total);
        self.manager.http.shift(Gauge::downstream_cx_upgrades_active, 1);
        let input = std::mem::take(&mut self.input);
        let mut relay = Relay::new(&mut self.stream, input, &mut upstream.stream, answer);
        let ending = relay.run(&mut self.deadline, idle, None).await;
        request.bytes_received += relay.upstream_bytes();
        request.bytes_sent += relay.downstream_bytes();
        self.manager.http.shift(Gauge::downstream_cx_upgrades_active, -1);
        if ending == Ending::Idle {
            request.flags |= crate::response_flags::ResponseFlags::STREAM_IDLE_TIMEOUT;
        }
        false
    }
}
