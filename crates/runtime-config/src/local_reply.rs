//! `local_reply_config`, compiled.

use crate::access_log::{LogFilter, LogFormat};
use crate::route::HeaderAddition;

/// What a connection manager makes of the proxy's own answers.
#[derive(Debug)]
pub struct LocalReply {
    /// The first one that is for an answer changes it.
    pub mappers: Vec<Mapper>,
    /// The form of a body, where the mapper has none.
    pub format: Option<BodyFormat>,
}

/// `ResponseMapper`.
#[derive(Debug)]
pub struct Mapper {
    /// The answers it is for.
    pub filter: LogFilter,
    /// Another status.
    pub status: Option<u16>,
    /// Another body.
    pub body: Option<Box<[u8]>>,
    /// The form of the body.
    pub format: Option<BodyFormat>,
    /// Further headers.
    pub headers: Vec<HeaderAddition>,
}

/// How a body is made of what is known of a request.
#[derive(Debug)]
pub struct BodyFormat {
    /// The text.
    pub format: LogFormat,
    /// Its type.
    pub content_type: Box<str>,
}
