//! One call, counted as it goes by.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::grpc::{Frames, is_grpc};
use evenkeel_http::{HeaderId, Headers, ResponseHead};
use evenkeel_runtime_config::grpc_stats::{GrpcStats, Methods};
use evenkeel_stats::Writer;

use super::counts::{ClusterCalls, Counter, Stats, UpstreamTime, count_end};

/// A call of gRPC on its way through the proxy, which shows it what goes by.
#[derive(Debug)]
pub struct Call {
    config: Arc<GrpcStats>,
    request: Frames,
    response: Frames,
    /// The answer's body consists of messages.
    answered: bool,
    /// `None`: it goes to no cluster, or names no method.
    counts: Option<Rc<Writer<Stats>>>,
}

impl Call {
    pub(super) fn new(config: Arc<GrpcStats>) -> Self {
        Self { config, request: Frames::default(), response: Frames::default(), answered: false, counts: None }
    }

    /// It goes to this cluster, with this path as the client sent it.
    pub fn goes_to(&mut self, cluster: &ClusterCalls, path: &[u8]) {
        let Some(method) = method_of(path) else { return };
        self.counts = Some(match &self.config.methods {
            Methods::All { replace_dots } => cluster.of(&method, *replace_dots),
            Methods::Listed(listed) if listed.contains(&*method) => cluster.of(&method, false),
            Methods::Listed(_) => cluster.others(),
        });
        // Its body may have been collected before.
        self.count(Counter::RequestMessages, self.request.begun());
    }

    /// A piece of the request.
    pub fn sends(&mut self, data: &[u8]) {
        let messages = self.request.take(data);
        self.count(Counter::RequestMessages, messages);
    }

    /// The head of the answer, the upstream's or the proxy's own. `complete`: nothing follows. `time`: as in [`Call::ends`].
    pub fn is_answered(&mut self, head: &ResponseHead, complete: bool, time: Option<Duration>) {
        let kind = head.headers.get(HeaderId::ContentType);
        self.answered = !complete && head.status == 200 && kind.is_some_and(is_grpc);
        self.count_status(&head.headers);
        self.record(time.filter(|_| complete));
    }

    /// A piece of the answer.
    pub fn receives(&mut self, data: &[u8]) {
        if self.answered {
            let messages = self.response.take(data);
            self.count(Counter::ResponseMessages, messages);
        }
    }

    /// The answer ends with these trailers. `time`: since the upstream had all of the request, if it had. Without trailers it is no
    /// call that ended, and Envoy records no time.
    pub fn ends(&mut self, trailers: &Headers, time: Option<Duration>) {
        self.count_status(trailers);
        self.record(time.filter(|_| !trailers.is_empty()));
    }

    /// The messages so far, of the client and of the server, for access logs; `None`: there is none, or logs do not get them.
    pub fn messages(&self) -> Option<[u64; 2]> {
        let messages = [self.request.begun(), self.response.begun()];
        (self.config.emit_filter_state && messages != [0, 0]).then_some(messages)
    }

    fn record(&self, time: Option<Duration>) {
        if self.config.upstream_time
            && let Some((counts, time)) = self.counts.as_ref().zip(time)
        {
            counts.record(UpstreamTime, time.as_millis() as u64);
        }
    }

    fn count(&self, counter: Counter, messages: u64) {
        if messages > 0
            && let Some(counts) = &self.counts
        {
            counts.add(counter, messages);
        }
    }

    fn count_status(&self, fields: &Headers) {
        if let Some((counts, status)) = self.counts.as_ref().zip(fields.get(HeaderId::GrpcStatus)) {
            count_end(counts, status);
        }
    }
}

/// `SERVICE/METHOD` of a path that has these two parts.
fn method_of(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    let path = path.split(|byte| *byte == b'?').next()?;
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let (service, method, rest) = (parts.next()?, parts.next()?, parts.next());
    if rest.is_some() {
        return None;
    }
    Some(match path.strip_prefix(b"/") {
        Some(plain) if plain.len() == service.len() + 1 + method.len() => plain.into(),
        _ => [service, method].join(&b'/').into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_methods() {
        let check = |path: &str, expected: Option<&str>| {
            let method = method_of(path.as_bytes());
            assert_eq!(method.as_deref(), expected.map(str::as_bytes), "{path}");
        };
        check("/a.Greeter/Say", Some("a.Greeter/Say"));
        check("/a.Greeter/Say?x=/y/z", Some("a.Greeter/Say"));
        check("//a.Greeter///Say/", Some("a.Greeter/Say"));
        check("a/b", Some("a/b"));
        check("ab/c/", Some("ab/c"));
        for none in ["", "/", "/a", "/a/", "/a/b/c", "*", "/?a/b"] {
            check(none, None);
        }
    }
}
