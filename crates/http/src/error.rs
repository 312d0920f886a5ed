//! Errors of a message head.

/// Why a head was refused. The connection ends after it, because the bytes that follow cannot be trusted to be a
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The grammar of RFC 9112 is broken.
    #[error("malformed HTTP/1 message")]
    Malformed,
    /// A version other than 1.0 and 1.1.
    #[error("unsupported HTTP version")]
    Version,
    /// A method no standard defines.
    #[error("unknown method")]
    Method,
    /// A line feed without a carriage return before it.
    #[error("bare line feed in a message head")]
    BareLineFeed,
    /// The head is larger than the limit.
    #[error("message head over the size limit")]
    TooLarge,
    /// More header lines than the limit.
    #[error("more header lines than the limit")]
    TooManyHeaders,
    /// No `Host` in HTTP/1.1.
    #[error("no Host header")]
    MissingHost,
    /// More than one `Host`.
    #[error("more than one Host header")]
    DuplicateHost,
    /// A character that no authority contains.
    #[error("invalid characters in the authority")]
    InvalidAuthority,
    /// The request target is not of a form its method allows.
    #[error("invalid request target")]
    InvalidTarget,
    /// The request target has a fragment, which never leaves a user agent.
    #[error("fragment in the request target")]
    Fragment,
    /// `content-length` is not one decimal number.
    #[error("malformed or repeated Content-Length")]
    ContentLength,
    /// Both `content-length` and `transfer-encoding`.
    #[error("both Content-Length and Transfer-Encoding")]
    LengthAndEncoding,
    /// A header name has an underscore, and such requests are refused.
    #[error("underscore in a header name")]
    Underscore,
    /// `connection` has more options than the limit, or names a header in which proxies pass on facts about the client.
    #[error("a Connection header that names what it may not")]
    Connection,
    /// `transfer-encoding` is not exactly `chunked`, or it stands in an HTTP/1.0 message.
    #[error("unsupported Transfer-Encoding")]
    TransferEncoding,
}

impl HeadError {
    /// Status of the answer to a request with this fault, as Envoy chooses it.
    pub fn status(self) -> u16 {
        match self {
            Self::TooLarge | Self::TooManyHeaders => 431,
            Self::TransferEncoding => 501,
            _ => 400,
        }
    }

    /// Envoy's `response_code_details`.
    pub fn details(self) -> &'static str {
        match self {
            Self::TooLarge => "http1.headers_too_large",
            Self::TooManyHeaders => "http1.too_many_headers",
            Self::MissingHost => "missing_host_header",
            Self::InvalidAuthority => "http.invalid_authority",
            Self::InvalidTarget => "http1.invalid_url",
            Self::Fragment => "path_normalization_failed",
            Self::LengthAndEncoding => "http1.content_length_and_chunked_not_allowed",
            Self::Underscore => "http1.unexpected_underscore",
            Self::Connection => "http1.connection_header_rejected",
            Self::TransferEncoding => "http1.invalid_transfer_encoding",
            Self::Malformed
            | Self::Version
            | Self::Method
            | Self::BareLineFeed
            | Self::DuplicateHost
            | Self::ContentLength => "http1.codec_error",
        }
    }
}

/// Why a body was refused. The message cannot be finished and the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A chunk size is not a hexadecimal number followed by CRLF, or has more than 16 digits.
    #[error("malformed chunk size")]
    ChunkSize,
    /// Chunk data is not followed by CRLF.
    #[error("no CRLF after chunk data")]
    ChunkEnd,
    /// A chunk extension or the trailer section is over its limit.
    #[error("chunk extension or trailers over the size limit")]
    TooLarge,
    /// A trailer line is malformed.
    #[error("malformed trailer")]
    Trailer,
    /// The peer closed before the body's end.
    #[error("the body ended early")]
    Truncated,
}
