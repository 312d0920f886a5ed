//! Parses the decision of an authorization service: a `CheckResponse`, or an HTTP response.

use evenkeel_envoy_api::envoy::config::core::v3 as core;
use evenkeel_envoy_api::envoy::service::auth::v3::{CheckResponse, DeniedHttpResponse, check_response::HttpResponse};
use evenkeel_envoy_api::google::protobuf::{Struct, Value, value::Kind};
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::dynamic_metadata::Fields;
use evenkeel_runtime_config::ext_authz::HttpTarget;
use evenkeel_runtime_config::metadata::{MetadataMatch, MetadataValue};
use prost::Message;

use crate::callouts::HttpAnswer;

const FORBIDDEN: u16 = 403;
const OK: u16 = 200;
/// Header that lists the headers to remove from the request, from an HTTP service.
const TO_REMOVE: &[u8] = b"x-envoy-auth-headers-to-remove";

/// A decision.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// Dynamic metadata for others.
    pub(super) metadata: Fields,
    /// Whether some header has an unknown append action.
    pub(super) unknown_action: bool,
}

/// The decision.
#[derive(Debug, Default)]
pub(super) enum Verdict {
    /// The request passes, changed like this.
    Allowed(Box<HeaderChanges>),
    /// The request is denied with this response.
    Denied(Box<Refusal>),
    /// The proxy had no place for the question, which says nothing about the service: what fails open must not do so because many ask.
    Unasked,
    /// There is no decision. The service may have said how to tell the client.
    #[default]
    Failed,
    /// Like `Failed`, with a response from the service.
    FailedWith(Box<Refusal>),
}

/// Header changes that a service requests.
#[derive(Debug, Default)]
pub(super) struct HeaderChanges {
    /// Changes of the request's headers.
    pub(super) request: Vec<Edit>,
    /// Request headers to remove.
    pub(super) remove: Vec<String>,
    /// Changes of the response's headers.
    pub(super) response: Vec<Edit>,
    /// Query parameters to set.
    pub(super) set_parameters: Vec<(String, String)>,
    /// Query parameters to remove.
    pub(super) remove_parameters: Vec<String>,
}

impl HeaderChanges {
    /// Whether the request is changed.
    pub(super) fn changes_request(&self) -> bool {
        let Self { request, remove, set_parameters, remove_parameters, response: _ } = self;
        !(request.is_empty() && remove.is_empty() && set_parameters.is_empty() && remove_parameters.is_empty())
    }
}

/// A header to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) action: Action,
}

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Adds a value.
    Add,
    /// Behind the values that there are, if there are any (`append: true` of old).
    Append,
    /// Adds a value if the header is absent.
    AddIfAbsent,
    /// Replaces all values.
    Set,
    /// Replaces all values if the header is present.
    SetIfPresent,
}

/// A refusal.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// 0: the filter's own.
    pub(super) status: u16,
    pub(super) headers: Vec<Edit>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, ..Self::default() }
    }

    /// No decision, because there was no place to ask.
    pub(super) fn unasked() -> Self {
        Self::of(Verdict::Unasked)
    }

    /// Reads the message of a gRPC service. One that cannot be decoded is no decision.
    #[allow(deprecated)] // `dynamic_metadata` of the permission is what older services send.
    pub(super) fn of_grpc(message: &[u8]) -> Self {
        let Ok(response) = CheckResponse::decode(message) else { return Self::default() };
        let CheckResponse { status, dynamic_metadata, http_response } = response;
        let mut unknown_action = false;
        let mut metadata = dynamic_metadata;
        if let Some(HttpResponse::OkResponse(ok)) = &http_response
            && ok.dynamic_metadata.is_some()
        {
            metadata.clone_from(&ok.dynamic_metadata);
        }
        let verdict = match (status.map_or(0, |status| status.code), http_response) {
            (0, Some(HttpResponse::OkResponse(ok))) => Verdict::Allowed(Box::new(HeaderChanges {
                request: edits(ok.headers, Of::Request, &mut unknown_action),
                remove: ok.headers_to_remove,
                response: edits(ok.response_headers_to_add, Of::Response, &mut unknown_action),
                set_parameters: ok.query_parameters_to_set.into_iter().map(|one| (one.key, one.value)).collect(),
                remove_parameters: ok.query_parameters_to_remove,
            })),
            (0, _) => Verdict::Allowed(Box::default()),
            (_, Some(HttpResponse::ErrorResponse(error))) => {
                Verdict::FailedWith(Box::new(refusal(error, 0, &mut unknown_action)))
            }
            (_, Some(HttpResponse::DeniedResponse(denied))) => {
                Verdict::Denied(Box::new(refusal(denied, FORBIDDEN, &mut unknown_action)))
            }
            (_, _) => Verdict::Denied(Box::new(Refusal { status: FORBIDDEN, ..Refusal::default() })),
        };
        Self { verdict, metadata: metadata.map(|metadata| fields(&metadata)).unwrap_or_default(), unknown_action }
    }

    /// Reads the response of an HTTP service: 200 permits, a status from 500 is no decision, any other refuses.
    pub(super) fn of_http(target: &HttpTarget, answer: HttpAnswer) -> Self {
        let HttpAnswer { head, body, .. } = answer;
        let headers = &head.headers;
        match head.status {
            OK => Self::permission(target, headers),
            status @ 200..=499 => {
                let wanted = |name: &[u8]| match &target.client_headers {
                    None => name != b"host",
                    Some(names) => names.has(name),
                };
                let headers = selected(headers, wanted, Action::Set);
                Self::of(Verdict::Denied(Box::new(Refusal { status, headers, body })))
            }
            _ => Self::default(),
        }
    }

    fn permission(target: &HttpTarget, headers: &Headers) -> Self {
        let lists = headers.find_all(TO_REMOVE).map(String::from_utf8_lossy);
        let remove: Vec<String> = lists
            .flat_map(|list| list.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>())
            .filter(|name| !name.is_empty())
            .collect();
        let mut request = selected(headers, |name| target.upstream_headers.has(name), Action::Set);
        request.extend(selected(headers, |name| target.upstream_headers_to_append.has(name), Action::Add));
        let response = selected(headers, |name| target.client_headers_on_success.has(name), Action::Add);
        let named = headers.iter().filter(|(_, name, _)| target.metadata_headers.has(name));
        let text = |bytes| String::from_utf8_lossy(bytes).into();
        let metadata = named.map(|(_, name, value)| (text(name), MetadataValue::Text(text(value)))).collect();
        let wanted = HeaderChanges { request, remove, response, ..HeaderChanges::default() };
        Self { verdict: Verdict::Allowed(Box::new(wanted)), metadata, unknown_action: false }
    }
}

/// The headers of an HTTP service's response whose names are `wanted`.
fn selected(headers: &Headers, wanted: impl Fn(&[u8]) -> bool, action: Action) -> Vec<Edit> {
    let of_service = |id: HeaderId, name: &[u8]| !super::check::is_of_framing(id) && name != TO_REMOVE;
    let selected = headers.iter().filter(|(id, name, _)| of_service(*id, name) && wanted(name));
    selected.map(|(_, name, value)| Edit { name: name.to_vec(), value: value.to_vec(), action }).collect()
}

/// `without_status`: the status when the message has none.
fn refusal(response: DeniedHttpResponse, without_status: u16, unknown_action: &mut bool) -> Refusal {
    let DeniedHttpResponse { status, headers, body } = response;
    let status = match status.and_then(|status| u16::try_from(status.code).ok()) {
        Some(status @ 200..=599) => status,
        // A status that is not valid for a response is no reason to let the request pass.
        _ => without_status,
    };
    Refusal { status, headers: edits(headers, Of::Response, unknown_action), body: body.into_bytes() }
}

/// The message whose headers are edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Request,
    Response,
}

#[allow(deprecated)] // `append` is what most services send.
fn edits(options: Vec<core::HeaderValueOption>, of: Of, unknown_action: &mut bool) -> Vec<Edit> {
    use core::header_value_option::HeaderAppendAction as Wire;
    let mut edit = |option: core::HeaderValueOption| {
        let header = option.header?;
        let wanted = Wire::try_from(option.append_action);
        *unknown_action |= wanted.is_err();
        // For request headers `append` alone decides: Envoy ignores append actions there.
        let action = match (option.append.as_ref().map(|append| append.value), of, wanted) {
            (Some(true), Of::Request, _) => Action::Append,
            (Some(true), Of::Response, _) | (None, Of::Response, Ok(Wire::AppendIfExistsOrAdd)) => Action::Add,
            (None, Of::Response, Ok(Wire::AddIfAbsent)) => Action::AddIfAbsent,
            (None, Of::Response, Ok(Wire::OverwriteIfExists)) => Action::SetIfPresent,
            _ => Action::Set,
        };
        let value = if header.value.is_empty() { header.raw_value } else { header.value.into_bytes() };
        Some(Edit { name: header.key.into_bytes(), value, action })
    };
    options.into_iter().filter_map(&mut edit).collect()
}

/// An object of the message's, sorted by name.
fn fields(object: &Struct) -> Fields {
    let pairs = object.fields.iter().map(|(name, value)| (name.as_str().into(), metadata_value(value)));
    MetadataMatch::new(pairs).iter().cloned().collect()
}

/// Recursion depth is bounded by the decoder of the message.
fn metadata_value(value: &Value) -> MetadataValue {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => MetadataValue::Null,
        Some(Kind::BoolValue(value)) => MetadataValue::Bool(*value),
        Some(Kind::NumberValue(value)) => MetadataValue::Number(value.to_bits()),
        Some(Kind::StringValue(value)) => MetadataValue::Text(value.as_str().into()),
        Some(Kind::ListValue(list)) => MetadataValue::List(list.values.iter().map(metadata_value).collect()),
        Some(Kind::StructValue(object)) => MetadataValue::Object(fields(object)),
    }
}
