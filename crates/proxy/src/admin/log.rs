//! The access log of the admin port.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use evenkeel_filters::format::{HeadLookup, Record};
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_runtime_config::access_log::AccessLog;
use http::{Version, request};

use super::Reply;
use super::caller::Caller;
use crate::access_log::{LogHandle, WorkerLog};

/// The logs of the admin port, which are written at once: requests to it are rare, and whoever looks for one wants to see it.
pub(crate) struct AdminLog {
    logs: Vec<Arc<AccessLog>>,
    writer: RefCell<WorkerLog>,
}

impl AdminLog {
    /// Writes to these logs.
    pub(crate) fn new(logs: Vec<Arc<AccessLog>>, handle: LogHandle) -> Self {
        Self { logs, writer: RefCell::new(WorkerLog::new(handle)) }
    }

    /// Logs a request, of which this is the reply.
    pub(super) fn write(
        &self,
        caller: Caller,
        head: &request::Parts,
        reply: &Reply,
        (start, began): (SystemTime, Instant),
    ) {
        if self.logs.is_empty() {
            return;
        }
        let mut stream = StreamInfo::new(began);
        stream.protocol = Some(if head.version == Version::HTTP_10 { "HTTP/1.0" } else { "HTTP/1.1" });
        stream.status = reply.status.as_u16();
        stream.bytes_sent = reply.body.len() as u64;
        stream.details = "admin_filter_response".into();
        let connection = ConnectionInfo::new(0, began, caller.peer, caller.local);
        let record = Record {
            request: &Head(head),
            status: stream.status,
            ..Record::headless(&stream, &connection, (start, Instant::now()))
        };
        let mut writer = self.writer.borrow_mut();
        self.logs.iter().for_each(|log| writer.write(log, &record));
        writer.flush();
    }
}

/// The head of a request to the admin port.
struct Head<'a>(&'a request::Parts);

impl HeadLookup for Head<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":method" => Some(self.0.method.as_str().as_bytes()),
            ":path" => self.0.uri.path_and_query().map(|path| path.as_str().as_bytes()),
            ":scheme" => Some(b"http"),
            ":authority" => self.lookup("host"),
            name => self.0.headers.get(name).map(|value| value.as_bytes()),
        }
    }
}
