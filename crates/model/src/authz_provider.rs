//! Services that decide about requests: `envoyExtAuthzHttp` and `envoyExtAuthzGrpc` of `meshConfig.extensionProviders`.

use std::sync::Arc;
use std::time::Duration;

use crate::StringMatch;
use crate::provider::ProviderService;

/// A service that decides about the requests of CUSTOM policies.
#[derive(Debug, Clone, PartialEq)]
pub struct AuthzProvider {
    /// Its name, by which policies refer to it.
    pub name: Arc<str>,
    /// Its service.
    pub service: ProviderService,
    /// Time limit of a check.
    pub timeout: Option<Duration>,
    /// Calls pass if the service does not answer.
    pub fail_open: bool,
    /// The route is chosen again after a check.
    pub clear_route_cache: bool,
    /// The status if the service does not answer.
    pub status_on_error: Option<u16>,
    /// The service gets the request's body.
    pub body: Option<AuthzBody>,
    /// The protocol of the service.
    pub protocol: AuthzProtocol,
}

/// The part of a body that a service gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthzBody {
    /// Maximum number of bytes.
    pub max_bytes: u32,
    /// Whether the service gets the beginning of a longer body; otherwise the request is refused with 413.
    pub partial: bool,
    /// Whether the body is sent as bytes instead of text.
    pub as_bytes: bool,
}

/// The protocol of an authorization service.
#[derive(Debug, Clone, PartialEq)]
pub enum AuthzProtocol {
    /// `envoy.service.auth.v3.Authorization`.
    Grpc,
    /// HTTP.
    Http(AuthzHttp),
}

/// Settings of HTTP.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AuthzHttp {
    /// Prefix of the path of a check; may be empty.
    pub path_prefix: Arc<str>,
    /// Headers of the request that the service gets.
    pub headers_in_check: Vec<StringMatch>,
    /// Headers that it gets in addition.
    pub additional_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Headers of a permission that the request gets.
    pub upstream_on_allow: Vec<StringMatch>,
    /// Headers of a refusal that the client gets.
    pub downstream_on_deny: Vec<StringMatch>,
    /// Headers of a permission that the client gets.
    pub downstream_on_allow: Vec<StringMatch>,
}
