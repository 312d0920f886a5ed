//! Network filters that count what protocols do and change nothing: `mongo_proxy` and `mysql_proxy`, which Istio puts before the TCP proxy of
//! ports with these names. Connections pass; nothing is counted.

use evenkeel_xds::istio::mysql_proxy::MySqlProxy;
use evenkeel_xds::pb::envoy::extensions::filters::network::mongo_proxy::v3::MongoProxy;
use evenkeel_xds::pb::google::protobuf::Any;
use prost::Name;

use crate::compile::{Cx, type_name};
use crate::support::message::{MessageSupport, extension};

/// Whether the message is that of such a filter. `None`: it is, and has settings that change what passes.
pub(crate) fn is_passive(cx: &mut Cx<'_>, any: &Any) -> Option<bool> {
    let name = type_name(&any.type_url);
    if name == MongoProxy::full_name() {
        let config: MongoProxy = cx.unpack(any)?;
        cx.non_empty("stat_prefix", &config.stat_prefix)?;
    } else if name == MySqlProxy::full_name() {
        let config: MySqlProxy = cx.unpack(any)?;
        cx.non_empty("stat_prefix", &config.stat_prefix)?;
    } else {
        return Some(false);
    }
    Some(true)
}

const UNCOUNTED: &str = "the bytes pass unread, and there are no such statistics";

/// The supported fields: those without an effect on what passes.
#[rustfmt::skip]
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[
    MessageSupport {
        no_effect: &[(UNCOUNTED, &["stat_prefix", "commands"])],
        ..extension("envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy", &[])
    },
    MessageSupport {
        no_effect: &[(UNCOUNTED, &["stat_prefix"]), ("Envoy ignores it, too", &["access_log"])],
        ..extension("envoy.extensions.filters.network.mysql_proxy.v3.MySQLProxy", &[])
    },
];
