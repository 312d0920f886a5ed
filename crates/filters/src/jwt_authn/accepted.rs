//! The effects of a valid token, which are headers and dynamic metadata, computed once per token.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use evenkeel_jwt::{Jwks, Object, Status, Times, Token};
use evenkeel_runtime_config::dynamic_metadata::{Fields, FilterMetadata};
use evenkeel_runtime_config::jwt_authn::{METADATA, Provider};
use evenkeel_runtime_config::metadata::MetadataValue;
use serde_json::Value;

/// A token that a provider has accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Index of the provider.
    pub(super) provider: usize,
    pub(super) issuer: Box<str>,
    pub(super) subject: Box<str>,
    pub(super) audiences: Vec<Box<str>>,
    pub(super) times: Times,
    /// The keys that it was verified with; others may not accept it.
    pub(super) keys: Option<Arc<Jwks>>,
    /// Headers to add, with lower-case names.
    pub(super) headers: Vec<(Box<str>, Vec<u8>)>,
    /// Dynamic metadata to set.
    pub(super) metadata: Option<Arc<FilterMetadata>>,
}

impl Accepted {
    pub(super) fn new((index, provider): (usize, &Provider), token: &Token<'_>, keys: Option<Arc<Jwks>>) -> Self {
        let mut headers = Vec::new();
        if !provider.payload_header.is_empty() {
            let padding = if provider.pad_payload_header { padding(token.payload) } else { "" };
            headers.push((provider.payload_header.clone(), format!("{}{padding}", token.payload).into_bytes()));
        }
        for claim in &provider.claim_headers {
            let text = find(&token.claims, &claim.path).map(text_of).filter(|text| !text.is_empty());
            headers.extend(text.map(|text| (claim.header.clone(), text.into_bytes())));
        }
        Self {
            provider: index,
            issuer: token.issuer().into(),
            subject: token.subject().into(),
            audiences: token.audiences().map(Into::into).collect(),
            times: token.times,
            keys,
            headers,
            metadata: metadata(provider, token),
        }
    }
}

/// Returns the dynamic metadata of an invalid token, if the provider sets it.
pub(super) fn failed(provider: &Provider, status: Status) -> Option<Arc<FilterMetadata>> {
    if provider.failed_status_in_metadata.is_empty() {
        return None;
    }
    let text = |text: &str| MetadataValue::Text(text.into());
    let fields = vec![("code".into(), text(&status.code().to_string())), ("message".into(), text(status.text()))];
    let field = (provider.failed_status_in_metadata.clone(), MetadataValue::Object(fields));
    Some(Arc::new(FilterMetadata::new(METADATA, &[field])))
}

fn metadata(provider: &Provider, token: &Token<'_>) -> Option<Arc<FilterMetadata>> {
    let mut fields: Fields = Vec::new();
    if !provider.header_in_metadata.is_empty() {
        fields.push((provider.header_in_metadata.clone(), object(&token.header, &[])));
    }
    if !provider.payload_in_metadata.is_empty() {
        let claims = object(&token.claims, &provider.space_delimited_claims);
        fields.push((provider.payload_in_metadata.clone(), claims));
    }
    (!fields.is_empty()).then(|| Arc::new(FilterMetadata::new(METADATA, &fields)))
}

/// An object as metadata; `words`: the texts that become lists of words.
fn object(object: &Object, words: &[Box<str>]) -> MetadataValue {
    let mut fields: Fields = Vec::with_capacity(object.len());
    for (name, value) in object {
        let value = match value {
            Value::String(text) if words.iter().any(|word| **word == **name) => {
                let words = text.split(' ').filter(|word| !word.is_empty());
                MetadataValue::List(words.map(|word| MetadataValue::Text(word.into())).collect())
            }
            value => metadata_value(value),
        };
        fields.push((name.as_str().into(), value));
    }
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    MetadataValue::Object(fields)
}

/// The parser of tokens limits the depth.
fn metadata_value(value: &Value) -> MetadataValue {
    match value {
        Value::Null => MetadataValue::Null,
        Value::Bool(value) => MetadataValue::Bool(*value),
        Value::Number(number) => MetadataValue::Number(number.as_f64().unwrap_or_default().to_bits()),
        Value::String(text) => MetadataValue::Text(text.as_str().into()),
        Value::Array(list) => MetadataValue::List(list.iter().map(metadata_value).collect()),
        Value::Object(fields) => object(fields, &[]),
    }
}

fn padding(payload: &str) -> &'static str {
    match payload.len() % 4 {
        2 => "==",
        3 => "=",
        _ => "",
    }
}

/// The claim at the end of a path.
fn find<'c>(claims: &'c Object, path: &[Box<str>]) -> Option<&'c Value> {
    let (first, rest) = path.split_first()?;
    let mut value = claims.get(&**first)?;
    for key in rest {
        value = value.as_object()?.get(&**key)?;
    }
    Some(value)
}

/// A claim as the value of a header, as Envoy writes it: lists and objects are JSON in base64.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number_text(number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => BASE64_STANDARD.encode(value.to_string()),
    }
}

/// Whole numbers that fit into 64 bits without a fraction, others with six digits.
fn number_text(number: f64) -> String {
    const LIMIT: f64 = 18_446_744_073_709_551_616.0;
    if (0.0..LIMIT).contains(&number) && number.fract() == 0.0 {
        // In range and whole, so the cast is exact.
        return (number as u64).to_string();
    }
    format!("{number:.6}")
}
