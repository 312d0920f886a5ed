//! `local_reply_config`: how the connection manager rewrites the proxy's own replies.

use std::borrow::Cow;

use evenkeel_filters::format::{Record, format_line, header_value};
use evenkeel_filters::header_edits::add_header;
use evenkeel_runtime_config::local_reply::LocalReply;

use super::context::ConnectionContext;
use super::record::record;
use super::reply::Reply;
use super::request::Request;
use crate::access_log;

/// Rewrites a reply as the first matching mapper says. Returns the content type of a new body, unless a mapper has set one.
pub(super) fn rewrite<'c>(
    config: &'c LocalReply,
    conn: &ConnectionContext,
    request: &mut Request,
    reply: &mut Reply,
) -> Option<&'c str> {
    let before = request.response.headers.find(b"content-type").map(<[u8]>::to_vec);
    let original = reply.body.clone();
    let mapper =
        config.mappers.iter().find(|mapper| record(conn, request, |record| access_log::admits(&mapper.filter, record)));
    let mut format = config.format.as_ref();
    if let Some(mapper) = mapper {
        if let Some(body) = &mapper.body {
            reply.body = Cow::Owned(body.to_vec());
        }
        for addition in &mapper.headers {
            let value = record(conn, request, |record| header_value(&addition.value, record));
            add_header(&mut request.response.headers, addition, &value);
        }
        if let Some(status) = mapper.status {
            (reply.status, request.response.status, request.stream.status) = (status, status, status);
        }
        format = mapper.format.as_ref().or(format);
    }
    if let Some(format) = format {
        let body = record(conn, request, |record| {
            let mut body = Vec::new();
            let record = Record { local_reply_body: &reply.body, ..*record };
            format_line(&format.format, &record, &mut body);
            body
        });
        reply.body = Cow::Owned(body);
    }
    // A type that a mapper has set stays; otherwise a new body gets the type of its format.
    let set = request.response.headers.find(b"content-type").map(<[u8]>::to_vec) != before;
    (reply.body != original && !set).then(|| format.map_or("text/plain", |format| &format.content_type))
}
