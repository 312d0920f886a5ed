//! `LocalReplyConfig`.

use evenkeel_xds::pb::envoy::config::core::v3::SubstitutionFormatString;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;

use super::access_log::{log_filter, substitution_format};
use super::address::data_source;
use super::{Cx, headers};
use crate::access_log::LogFormat;
use crate::local_reply::{BodyFormat, LocalReply, Mapper};

pub(crate) fn local_reply(cx: &mut Cx<'_>, config: &hcm::LocalReplyConfig) -> Option<LocalReply> {
    let format = body_format(cx, "body_format", config.body_format.as_ref());
    let mappers = cx.each("mappers", &config.mappers, mapper);
    Some(LocalReply { mappers, format: format? })
}

fn mapper(cx: &mut Cx<'_>, config: &hcm::ResponseMapper) -> Option<Mapper> {
    let filter = cx.required("filter", config.filter.as_ref())?;
    let filter = cx.at("filter", |cx| log_filter(cx, filter));
    let status = match config.status_code.map(|status| status.value) {
        None => None,
        Some(status @ 200..600) => Some(status as u16),
        Some(_) => return cx.fail_at("status_code", "must lie between 200 and 599"),
    };
    let body = match &config.body {
        None => None,
        some => Some(data_source(cx, "body", some.as_ref())?.into()),
    };
    let format = body_format(cx, "body_format_override", config.body_format_override.as_ref());
    let headers = cx.each("headers_to_add", &config.headers_to_add, headers::addition);
    Some(Mapper { filter: filter?, status, body, format: format?, headers })
}

/// `Some(None)`: not set.
fn body_format(cx: &mut Cx<'_>, field: &str, config: Option<&SubstitutionFormatString>) -> Option<Option<BodyFormat>> {
    let Some(config) = config else { return Some(None) };
    cx.at(field, |cx| {
        let format = substitution_format(cx, config)?;
        let content_type = match (config.content_type.as_str(), &format) {
            ("", LogFormat::Json { .. }) => "application/json",
            ("", LogFormat::Text(_)) => "text/plain",
            (own, _) => own,
        };
        Some(Some(BodyFormat { content_type: content_type.into(), format }))
    })
}
