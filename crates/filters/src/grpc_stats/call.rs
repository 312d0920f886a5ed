//! Counts one gRPC call as it passes.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::grpc::{Frames, is_grpc};
use evenkeel_http::{HeaderId, Headers, ResponseHead};
use evenkeel_runtime_config::grpc_stats::{GrpcStats, Methods};
use evenkeel_stats::Writer;

use super::counts::{ClusterCalls, Counter, Stats, UpstreamTime, count_end};
use crate::info::{Form, MessageCounts, StateObject};

/// A gRPC call in progress; the filter passes it every piece of the request and response.
#[derive(Debug)]
pub struct Call {
    config: Arc<GrpcStats>,
    request: Frames,
    response: Frames,
    /// The response's body consists of messages.
    answered: bool,
    /// `None` if it goes to no cluster or names no method.
    counts: Option<Rc<Writer<Stats>>>,
    /// For access logs, if `emit_filter_state` is set.
    messages: Option<Rc<Messages>>,
}

/// The number of messages of a call so far.
#[derive(Debug, Default)]
pub struct Messages {
    /// Sent by the client.
    pub request: Cell<u64>,
    /// Sent by the server.
    pub response: Cell<u64>,
}

impl StateObject for Messages {
    /// Envoy's `FilterObject`: JSON omits zeros and writes 64-bit numbers as strings.
    fn write(&self, form: Form, out: &mut Vec<u8>) -> bool {
        let counts = [self.request.get(), self.response.get()];
        let names = match form {
            _ if counts == [0, 0] => return false,
            Form::Typed => ["requestMessageCount", "responseMessageCount"],
            Form::TypedJson => ["request_message_count", "response_message_count"],
            Form::Plain => {
                out.extend_from_slice(format!("{},{}", counts[0], counts[1]).as_bytes());
                return true;
            }
        };
        let fields = names.iter().zip(counts).filter(|(_, count)| *count > 0);
        let fields: Vec<_> = fields.map(|(name, count)| format!("\"{name}\":\"{count}\"")).collect();
        out.extend_from_slice(format!("{{{}}}", fields.join(",")).as_bytes());
        true
    }

    fn messages(&self) -> Option<MessageCounts> {
        Some(MessageCounts { request: self.request.get(), response: self.response.get() })
    }

    fn message(&self) -> Option<(&'static str, Vec<u8>)> {
        let mut message = Vec::new();
        for (field, count) in [(1, self.request.get()), (2, self.response.get())] {
            if count > 0 {
                prost::encoding::uint64::encode(field, &count, &mut message);
            }
        }
        Some(("envoy.extensions.filters.http.grpc_stats.v3.FilterObject", message))
    }
}

impl Call {
    /// A call with this path, as the client sent it. `cluster`: where it is counted.
    pub(super) fn new(config: Arc<GrpcStats>, cluster: Option<&ClusterCalls>, path: &[u8]) -> Self {
        let counts = cluster.zip(method_of(path)).map(|(cluster, method)| match &config.methods {
            Methods::All { replace_dots } => cluster.of(&method, *replace_dots),
            Methods::Listed(listed) if listed.contains(&*method) => cluster.of(&method, false),
            Methods::Listed(_) => cluster.unnamed(),
        });
        let messages = config.emit_filter_state.then(Rc::default);
        Self { config, request: Frames::default(), response: Frames::default(), answered: false, counts, messages }
    }

    /// The number of messages so far, for access logs; `None` if they do not get it.
    pub(super) fn messages(&self) -> Option<Rc<Messages>> {
        self.messages.clone()
    }

    /// A piece of the request.
    pub fn sends(&mut self, data: &[u8]) {
        let messages = self.request.take(data);
        if let Some(all) = &self.messages {
            all.request.set(self.request.begun());
        }
        self.count(Counter::RequestMessages, messages);
    }

    /// The response's head, from the upstream or a local reply. `complete`: nothing follows. `time`: as in [`Call::ends`].
    pub fn is_answered(&mut self, head: &ResponseHead, complete: bool, time: Option<Duration>) {
        let kind = head.headers.get(HeaderId::ContentType);
        self.answered = !complete && head.status == 200 && kind.is_some_and(is_grpc);
        self.count_status(&head.headers);
        self.record(time.filter(|_| complete));
    }

    /// A piece of the response.
    pub fn receives(&mut self, data: &[u8]) {
        if self.answered {
            let messages = self.response.take(data);
            if let Some(all) = &self.messages {
                all.response.set(self.response.begun());
            }
            self.count(Counter::ResponseMessages, messages);
        }
    }

    /// The response ends with these trailers. `time`: since the request was sent to the upstream completely, if it was.
    /// Without trailers it is not a completed call, and Envoy records no time.
    pub fn ends(&mut self, trailers: &Headers, time: Option<Duration>) {
        self.count_status(trailers);
        self.record(time.filter(|_| !trailers.is_empty()));
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

/// `SERVICE/METHOD` of a path with exactly these two parts.
pub(crate) fn method_of(path: &[u8]) -> Option<Cow<'_, [u8]>> {
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
