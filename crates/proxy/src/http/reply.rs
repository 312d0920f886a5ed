//! The contents of a local reply, which the proxy itself sends.

use std::borrow::Cow;

use evenkeel_filters::ResponseFlags;

use super::failure::Failure;
use crate::stats::http::Counter;

/// A reply of the proxy's own.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Cow<'static, [u8]>,
    /// Another header: a redirect's `location`, or why the proxy refuses.
    pub(super) header: Option<(&'static [u8], Cow<'static, [u8]>)>,
    /// Only for replies of filters.
    pub(super) of_filter: Option<Box<OfFilter>>,
    pub(super) flags: ResponseFlags,
    pub(super) details: Cow<'static, str>,
    /// The connection manager's counter for it, if the reply reports a failure.
    pub(super) counter: Option<Counter>,
    pub(super) close: bool,
}

/// Fields that only a filter's reply has.
#[derive(Default)]
pub(super) struct OfFilter {
    /// More headers.
    pub(super) headers: Vec<(Cow<'static, str>, Vec<u8>)>,
    /// The gRPC status, if it is not the one derived from the HTTP status.
    pub(super) grpc_status: Option<u32>,
    /// Neither translated for gRPC clients nor edited by the route.
    pub(super) verbatim: bool,
}

impl Reply {
    /// A redirect.
    pub(super) fn redirect(status: u16, location: Vec<u8>, details: &'static str) -> Self {
        Self {
            status,
            body: Cow::Borrowed(b""),
            header: Some((b"location", location.into())),
            of_filter: None,
            flags: ResponseFlags::NONE,
            details: details.into(),
            counter: None,
            close: false,
        }
    }

    /// The reply after the last of several tries failed.
    pub(super) fn after_retries(failure: &Failure) -> Self {
        Self { body: into_bytes(failure.row().body_after_retries()), ..Self::from(failure) }
    }

    /// A `direct_response`.
    pub(super) fn direct(status: u16, body: &[u8]) -> Self {
        Self {
            status,
            body: body.to_vec().into(),
            header: None,
            of_filter: None,
            flags: ResponseFlags::NONE,
            details: "direct_response".into(),
            counter: None,
            close: false,
        }
    }
}

impl From<evenkeel_filters::Reply> for Reply {
    fn from(reply: evenkeel_filters::Reply) -> Self {
        let evenkeel_filters::Reply { status, headers, body, details, flags, grpc_status, verbatim } = reply;
        Self {
            status,
            body,
            header: None,
            of_filter: Some(Box::new(OfFilter { headers, grpc_status, verbatim })),
            flags,
            details,
            counter: None,
            close: false,
        }
    }
}

impl From<&Failure> for Reply {
    fn from(failure: &Failure) -> Self {
        let row = failure.row();
        Self {
            status: row.status,
            body: into_bytes(row.body()),
            header: row.header.map(|(name, value)| (name, value.into())),
            of_filter: None,
            flags: row.flags,
            details: failure.details(),
            counter: row.counter,
            close: row.ends_connection,
        }
    }
}

fn into_bytes(text: Cow<'static, str>) -> Cow<'static, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}
