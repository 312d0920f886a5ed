//! The rules for request heads, as a connection manager sets them.

use evenkeel_http::{Limits, RequestRules, Underscores};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::HeadersWithUnderscores;

/// The rules for request heads.
pub(super) fn rules(hcm: &HttpConnectionManager) -> RequestRules {
    RequestRules {
        limits: Limits { max_head_bytes: hcm.max_request_headers_bytes, max_headers: hcm.max_headers_count },
        underscores: match hcm.underscores {
            HeadersWithUnderscores::Allow => Underscores::Allow,
            HeadersWithUnderscores::Reject => Underscores::Reject,
            HeadersWithUnderscores::Drop => Underscores::Drop,
        },
        absolute_urls: hcm.absolute_urls,
        keep_case: hcm.preserve_header_case,
    }
}
