//! Runs the filters of a cluster on a try: after its host was picked, before its head is sent.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::decide::Matched;
use evenkeel_filters::{Body, Decision, RequestContext, Services};
use evenkeel_http::Framing;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::decide::Forward;
use super::failure::Failure;
use super::pause::until_woken;
use super::timers::Timers;
use super::upload::Upload;
use super::upstream::filtered::Filtered;

impl ActiveStream<'_> {
    /// Calls the cluster's filters with the request. A reply of theirs goes to the client, and there is no other try.
    pub(super) async fn filter_try(
        &mut self,
        forward: &Forward<'_>,
        side: &mut Filtered,
        upload: &mut Upload,
        timers: &mut Timers,
    ) -> Result<(), Failure> {
        side.serve_with(Rc::clone(&self.conn.worker) as Rc<dyn Services>, Arc::clone(&self.conn.info));
        loop {
            match self.ask_try_filters(forward, side, upload) {
                Decision::Continue | Decision::Reroute => return Ok(()),
                Decision::Reply(reply) => return Err(Failure::Filter(Box::new(reply))),
                Decision::Pause(pause) => side.wake(self.unless_over(timers, until_woken(pause)).await?),
                // Filters that may stand here do not ask for that.
                Decision::CollectStart { .. } => return Err(Failure::BodyTooLarge),
                Decision::Collect { max_bytes } => {
                    self.collect(max_bytes, Some(forward.matched.route)).await?;
                    timers.complete(turn::now());
                    if let Some(body) = self.request.body.take() {
                        upload.take_collected(body, &self.request.trailers);
                    }
                    let length = upload.known().map_or(0, |body| body.len());
                    self.request.info.framing = Framing::Length(length as u64);
                }
            }
        }
    }

    fn ask_try_filters(&mut self, forward: &Forward<'_>, side: &mut Filtered, upload: &Upload) -> Decision {
        let (conn, request) = (self.conn, &mut *self.request);
        let now = turn::now().into_std();
        let body = match upload.known() {
            _ if request.tunnel.is_some() || request.info.framing.is_empty() => Body::Empty,
            Some(body) if self.down.received_all() => Body::Whole(body),
            _ => Body::Coming,
        };
        let view = conn.view();
        let remote = request.stream.client.map_or(view.remote.ip(), |client| client.ip());
        let message = (&mut request.head, body);
        let facts = &mut request.stream;
        let route = Matched::context(Some(forward.matched));
        let mut context = RequestContext::new((&view, &conn.info, remote), message, route, facts, (&*conn.worker, now));
        side.ask(&route.filters, &mut context)
    }
}
