//! Response flags as the message of entries.

use evenkeel_filters::ResponseFlags;
use evenkeel_xds::pb::envoy::data::accesslog::v3 as data;
use evenkeel_xds::pb::envoy::data::accesslog::v3::response_flags::{Unauthorized, unauthorized::Reason};

/// The message; `None` if none of its fields is set. The message has no field for a few of the flags, as Envoy's code has none.
pub(super) fn message(flags: ResponseFlags) -> Option<data::ResponseFlags> {
    let mut message = data::ResponseFlags::default();
    for name in flags.short_names() {
        match name {
            "LH" => message.failed_local_healthcheck = true,
            "UH" => message.no_healthy_upstream = true,
            "UT" => message.upstream_request_timeout = true,
            "LR" => message.local_reset = true,
            "UR" => message.upstream_remote_reset = true,
            "UF" => message.upstream_connection_failure = true,
            "UC" => message.upstream_connection_termination = true,
            "UO" => message.upstream_overflow = true,
            "NR" => message.no_route_found = true,
            "DI" => message.delay_injected = true,
            "FI" => message.fault_injected = true,
            "RL" => message.rate_limited = true,
            "UAEX" => {
                message.unauthorized_details = Some(Unauthorized { reason: Reason::ExternalService.into() });
            }
            "RLSE" => message.rate_limit_service_error = true,
            "DC" => message.downstream_connection_termination = true,
            "URX" => message.upstream_retry_limit_exceeded = true,
            "SI" => message.stream_idle_timeout = true,
            "IH" => message.invalid_envoy_request_headers = true,
            "DPE" => message.downstream_protocol_error = true,
            "UMSDR" => message.upstream_max_stream_duration_reached = true,
            "DT" => message.duration_timeout = true,
            "UPE" => message.upstream_protocol_error = true,
            "NC" => message.no_cluster_found = true,
            "OM" => message.overload_manager = true,
            "DF" => message.dns_resolution_failure = true,
            "DR" => message.downstream_remote_reset = true,
            _ => {}
        }
    }
    (message != data::ResponseFlags::default()).then_some(message)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn each_flag_has_its_field() {
        // Numbers of fields in `envoy.data.accesslog.v3.ResponseFlags`; drops by the control plane have none.
        for (name, field) in [
            ("LH", 1),
            ("UH", 2),
            ("UT", 3),
            ("LR", 4),
            ("UR", 5),
            ("UF", 6),
            ("UC", 7),
            ("UO", 8),
            ("NR", 9),
            ("DI", 10),
            ("FI", 11),
            ("RL", 12),
            ("UAEX", 13),
            ("RLSE", 14),
            ("DC", 15),
            ("URX", 16),
            ("SI", 17),
            ("IH", 18),
            ("DPE", 19),
            ("UMSDR", 20),
            ("DT", 23),
            ("UPE", 24),
            ("NC", 25),
            ("OM", 26),
            ("DF", 27),
            ("DR", 28),
        ] {
            let flag = ResponseFlags::from_short_name(name).expect("a flag");
            let encoded = message(flag).expect("a message").encode_to_vec();
            let mut rest = &encoded[..];
            let (number, _) = prost::encoding::decode_key(&mut rest).expect("a field");
            assert_eq!(number, field, "{name}");
        }
        let drop = ResponseFlags::from_short_name("DO").expect("a flag");
        assert_eq!((message(ResponseFlags::NONE), message(drop)), (None, None));
        let both = message(drop | ResponseFlags::NO_ROUTE_FOUND).expect("a message");
        assert!(both.no_route_found);
    }
}
