//! The HTTP filters there are, as configuration has them. To add one: its compiled type, a function in `compile/` that makes it of
//! the message, the message's fields in [`crate::support`], and one line in [`http_filters!`] below. What it does is in crate
//! `filters`.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::filters::http as messages;
use evenkeel_xds::pb::google::protobuf::Any;
use prost::Name;

use crate::compile::{self, Cx, type_name};

/// The registry: each filter's name and compiled type, its message, and what compiles that.
macro_rules! http_filters {
    ($($(#[$doc:meta])* $name:ident($compiled:ty) = $message:ty, $compile:path;)*) => {
        /// An HTTP filter before the router.
        #[derive(Debug)]
        pub enum HttpFilter {
            $($(#[$doc])* $name(Arc<$compiled>),)*
        }

        /// Compiles the message of a filter, whichever it is.
        pub(crate) fn http_filter(cx: &mut Cx<'_>, any: &Any) -> Option<HttpFilter> {
            let name = type_name(&any.type_url);
            $(
                if name == <$message>::full_name() {
                    let message: $message = cx.unpack(any)?;
                    return Some(HttpFilter::$name(Arc::new($compile(cx, &message)?)));
                }
            )*
            cx.fail(format!("{name} is no HTTP filter"))
        }
    };
}

http_filters! {
    /// `envoy.filters.http.buffer`.
    Buffer(crate::buffer::Buffer) = messages::buffer::v3::Buffer, compile::buffer::buffer;
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats(crate::grpc_stats::GrpcStats) = messages::grpc_stats::v3::FilterConfig, compile::grpc_stats::grpc_stats;
    /// `envoy.filters.http.rbac`.
    Rbac(crate::rbac::RbacFilter) = messages::rbac::v3::Rbac, compile::rbac::http_filter;
    /// `envoy.filters.http.stateful_session`.
    StatefulSession(crate::stateful_session::StatefulSession) = messages::stateful_session::v3::StatefulSession,
        compile::stateful_session::stateful_session;
}
