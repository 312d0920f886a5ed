//! `local_reply_config`, compiled.

use crate::access_log::{LogFilter, LogFormat};
use crate::header_edits::HeaderAddition;

/// How a connection manager modifies local replies.
#[derive(Debug)]
pub struct LocalReply {
    /// The first mapper that matches a reply applies.
    pub mappers: Vec<Mapper>,
    /// The format of bodies for which the mapper has none.
    pub format: Option<BodyFormat>,
}

/// `ResponseMapper`.
#[derive(Debug)]
pub struct Mapper {
    /// The replies it applies to.
    pub filter: LogFilter,
    /// Replacement status.
    pub status: Option<u16>,
    /// Replacement body.
    pub body: Option<Box<[u8]>>,
    /// Format of the body.
    pub format: Option<BodyFormat>,
    /// Headers to add.
    pub headers: Vec<HeaderAddition>,
}

/// How a body is formatted.
#[derive(Debug)]
pub struct BodyFormat {
    /// The text format.
    pub format: LogFormat,
    /// Its content type.
    pub content_type: Box<str>,
}
