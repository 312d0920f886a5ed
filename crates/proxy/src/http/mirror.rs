//! Mirrors requests to other clusters (`request_mirror_policies`). A mirror is a call of the proxy's own: the original request neither
//! waits for it nor fails with it, and its response is discarded.
//!
//! A mirror begins once the original has a host, with the head as the route has edited it, and gets the same body. A request that breaks off
//! cancels its mirrors. One that is over leaves them [`LINGER`], so that a mirror that is slower than the original is not lost and one that
//! hangs does not stay. A mirror that reads more slowly than the original is aborted when too much waits for it ([`MAX_WAITING_BYTES`],
//! [`MAX_BYTES_PER_WORKER`]), where Envoy would slow the client down.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_filters::callouts::{CallOptions, Purpose};
use evenkeel_filters::format::header_value;
use evenkeel_filters::header_edits::add_header;
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::header_edits::HeaderMutation;
use evenkeel_runtime_config::mirror::{MirrorCluster, MirrorPolicy};
use evenkeel_upstream::Cluster;
use evenkeel_upstream::cluster_stats::Counter;
use evenkeel_upstream::turn;
use tokio::task::JoinHandle;

use super::active_stream::ActiveStream;
use super::call::{Sink, TooLarge};
use super::decide::Forward;
use super::record::record;
use crate::callouts::stream::{Outgoing, Tally, Uplink};

/// Body bytes that may wait for one mirror. With more, the mirror is aborted, and `retry_or_shadow_abandoned` of the original's cluster
/// counts it.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// Bytes of heads and bodies that all mirrors of a worker may hold. With more, those that need more are aborted, and none begins.
const MAX_BYTES_PER_WORKER: usize = 16 * 1024 * 1024;

/// How long a mirror may take once its original is over: a version under test may be slower than the one in service, but not by more.
const LINGER: Duration = Duration::from_secs(10);

/// Body bytes after which the mirrors get a turn to pass on what they have, so that a mirror which reads as fast as the original is not
/// aborted for what came in one turn.
const TURN_BYTES: usize = 128 * 1024;

/// The mirrors of a request that is not over yet.
pub(super) struct Mirrors {
    mirrors: Vec<Mirror>,
    /// What all mirrors of the worker hold.
    held: Rc<Tally>,
    /// The original's cluster.
    cluster: Rc<Cluster>,
    /// Bytes since the last turn of the mirrors.
    since_turn: usize,
}

struct Mirror {
    uplink: Rc<Uplink>,
    /// It has the whole request.
    complete: bool,
    task: JoinHandle<()>,
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if self.complete { self.uplink.until.bound(turn::now() + LINGER) } else { self.task.abort() }
    }
}

impl Mirrors {
    /// Sends a piece of the request body to the mirrors.
    pub(super) fn send(&mut self, data: &[u8]) {
        let (cluster, held) = (&self.cluster, &self.held);
        self.since_turn += data.len();
        self.mirrors.retain(|mirror| {
            let fits = mirror.uplink.waiting() + data.len() <= MAX_WAITING_BYTES
                && held.get() + data.len() <= MAX_BYTES_PER_WORKER;
            if fits {
                mirror.uplink.send(data);
            } else {
                cluster.stats().inc(Counter::retry_or_shadow_abandoned);
            }
            fits
        });
    }

    /// Yields once in a while, so that the mirrors' tasks have a turn.
    pub(super) fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.since_turn < TURN_BYTES {
            return Poll::Ready(());
        }
        self.since_turn = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The request is complete.
    pub(super) fn finish(&mut self, trailers: &Headers) {
        for mirror in &mut self.mirrors {
            mirror.uplink.finish(trailers.clone());
            mirror.complete = true;
        }
    }
}

/// The request may have mirrors.
pub(super) fn is_mirrored(forward: &Forward<'_>) -> bool {
    forward.action.mirrors.is_some() || forward.to.cluster.is_mirrored()
}

impl ActiveStream<'_> {
    /// Begins the mirrors of a request that has a host; `None` if there are none. `body`: what was collected of it.
    pub(super) fn mirror(&mut self, forward: &Forward<'_>, body: Option<&[u8]>) -> Option<Box<Mirrors>> {
        let config = forward.to.cluster.config();
        // The cluster's policies take precedence.
        let policies = config.mirrors.as_deref().or(forward.action.mirrors.as_deref());
        let policies = policies.filter(|_| self.request.tunnel.is_none())?;
        let random = self.conn.worker.random.next() % 1_000_000;
        let chosen = policies.iter().filter(|policy| random < u64::from(policy.fraction_ppm));
        let mirrors: Vec<_> = chosen.filter_map(|policy| self.begin_mirror(policy, forward)).collect();
        if mirrors.is_empty() {
            return None;
        }
        let held = Rc::clone(&self.conn.worker.callouts.mirrored_bytes);
        let mut mirrors = Mirrors { mirrors, held, cluster: Rc::clone(&forward.to.cluster), since_turn: 0 };
        if let Some(body) = body {
            mirrors.send(body);
        }
        if self.request.info.framing.is_empty() {
            mirrors.finish(&Headers::default());
        }
        Some(Box::new(mirrors))
    }

    fn begin_mirror(&mut self, policy: &MirrorPolicy, forward: &Forward<'_>) -> Option<Mirror> {
        let framing = match self.request.info.framing {
            Framing::UntilClose => return None,
            framing => framing,
        };
        let mut head = self.mirrored_head(policy);
        if forward.host.include_request_attempt_count {
            head.headers.set(HeaderId::EnvoyAttemptCount, b"1");
        }
        if let Some(trace) = &self.request.trace {
            trace.copy(&mut head, policy.traced);
        }
        let name = match &policy.cluster {
            MirrorCluster::Named(name) => name.as_bytes(),
            MirrorCluster::Header(header) => self.request.head.headers.find(header.as_bytes())?,
        };
        let name = std::str::from_utf8(name).ok()?;
        let options =
            CallOptions { timeout: forward.limits.timeout, purpose: Purpose::Mirror, ..CallOptions::default() };
        let callouts = &self.conn.worker.callouts;
        let head_bytes = size_of_head(&head);
        if callouts.mirrored_bytes.get() + head_bytes > MAX_BYTES_PER_WORKER {
            forward.to.cluster.stats().inc(Counter::retry_or_shadow_abandoned);
            return None;
        }
        let (call, place) = callouts.begin(name, head, framing, &options).ok()?;
        let uplink = Rc::new(Uplink::charged(options.timeout, head_bytes, &callouts.mirrored_bytes));
        let mut source = Outgoing(Rc::clone(&uplink));
        let task = turn::spawn(async move {
            let _place = place;
            let uplink = Rc::clone(&source.0);
            // Its outcome is in the statistics of its cluster.
            _ = call.run(&mut source, &mut DiscardedAnswer, &uplink.until).await;
            uplink.close();
        });
        Some(Mirror { uplink, complete: false, task })
    }

    fn mirrored_head(&mut self, policy: &MirrorPolicy) -> RequestHead {
        let mut head = self.request.head.clone();
        for edit in &policy.edits {
            match edit {
                HeaderMutation::Remove(name) => head.headers.remove_name(name.as_bytes()),
                HeaderMutation::RemoveMatching(names) => head.headers.remove_where(|_, name| names.matches(name)),
                HeaderMutation::Add(addition) => {
                    // The value is formatted from the copy as the edits before have left it.
                    std::mem::swap(&mut self.request.head, &mut head);
                    let value = record(self.conn, self.request, |record| header_value(&addition.value, record));
                    std::mem::swap(&mut self.request.head, &mut head);
                    add_header(&mut head.headers, addition, &value);
                }
            }
        }
        if let Some(host) = &policy.host {
            head.set_authority(host.as_bytes());
        }
        if policy.appends_suffix {
            let host = shadow_host(head.authority());
            head.set_authority(&host);
        }
        head
    }
}

fn size_of_head(head: &RequestHead) -> usize {
    let fields = head.headers.iter().map(|(_, name, value)| name.len() + value.len());
    fields.sum::<usize>() + head.path().len() + head.authority().len()
}

/// The host with `-shadow` appended to its name, before the port.
fn shadow_host(host: &[u8]) -> Vec<u8> {
    let colon = host.iter().rposition(|byte| *byte == b':');
    let port = colon.filter(|colon| {
        let digits = host.get(colon + 1..).unwrap_or_default();
        digits.iter().all(u8::is_ascii_digit) && !host.get(..*colon).unwrap_or_default().contains(&b':')
            || host.get(..*colon).is_some_and(|name| name.ends_with(b"]"))
    });
    let (name, port) = host.split_at(port.unwrap_or(host.len()));
    [name, b"-shadow", port].concat()
}

/// Discards the response to a mirror.
struct DiscardedAnswer;

impl Sink for DiscardedAnswer {
    fn head(&mut self, _: &ResponseHead) {}

    fn poll_room(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn data(&mut self, _: &[u8]) -> Result<(), TooLarge> {
        Ok(())
    }

    fn end(&mut self, _: &Headers) {}
}

#[cfg(test)]
mod tests {
    use super::shadow_host;

    #[test]
    fn the_suffix_stands_before_the_port() {
        for (host, expected) in [
            ("a.test", "a.test-shadow"),
            ("a.test:80", "a.test-shadow:80"),
            ("[::1]:80", "[::1]-shadow:80"),
            ("[::1]", "[::1]-shadow"),
            ("a.test:", "a.test-shadow:"),
            ("", "-shadow"),
        ] {
            assert_eq!(String::from_utf8_lossy(&shadow_host(host.as_bytes())), expected, "{host}");
        }
    }
}
