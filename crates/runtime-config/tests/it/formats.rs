//! Access log format strings.

use evenkeel_runtime_config::access_log_format::{ENVOY_DEFAULT_FORMAT, FormatError, ISTIO_DEFAULT_FORMAT};
use evenkeel_runtime_config::substitution_format::{Format, FormatPart, Operator};

fn parse(text: &str) -> Result<Vec<FormatPart>, FormatError> {
    let environment = |name: &str| (name == "POD").then(|| "web-0".to_owned());
    Format::parse(text, &environment).map(|format| format.parts)
}

fn literal(text: &str) -> FormatPart {
    FormatPart::Literal(text.into())
}

fn operator(operator: Operator) -> FormatPart {
    FormatPart::Operator { operator, max_length: None }
}

fn metadata(path: &[&str]) -> Operator {
    Operator::DynamicMetadata { filter: "a".into(), path: path.iter().map(|key| Box::from(*key)).collect() }
}

#[test]
fn operators_with_arguments_lengths_and_literals() {
    for (text, expected) in [
        ("", vec![]),
        ("plain", vec![literal("plain")]),
        ("100%%", vec![literal("100%")]),
        ("%PROTOCOL%\n", vec![operator(Operator::Protocol), literal("\n")]),
        ("%START_TIME%", vec![operator(Operator::StartTime(None))]),
        ("%START_TIME(%Y/%m/%d %3f)%", vec![operator(Operator::StartTime(Some("%Y/%m/%d %3f".into())))]),
        ("%REQ(X-A)%", vec![operator(Operator::Req("x-a".into(), None))]),
        (
            "a%REQ(X-ENVOY-ORIGINAL-PATH?:PATH):10%b",
            vec![
                literal("a"),
                FormatPart::Operator {
                    operator: Operator::Req("x-envoy-original-path".into(), Some(":path".into())),
                    max_length: Some(10),
                },
                literal("b"),
            ],
        ),
        ("[%ENVIRONMENT(POD)%]", vec![literal("[web-0]")]),
        ("%ENVIRONMENT(POD):3%%ENVIRONMENT(NONE)%", vec![literal("web-")]),
        ("%DYNAMIC_METADATA(a:b:c)%", vec![operator(metadata(&["b", "c"]))]),
        ("%DYNAMIC_METADATA(a)%", vec![operator(metadata(&[]))]),
        ("%FILTER_STATE(envoy.tcp_proxy.propagate_response_headers)%", vec![operator(Operator::TunnelHeaders)]),
        ("%FILTER_STATE(envoy.tcp_proxy.propagate_response_trailers:TYPED)%", vec![operator(Operator::TunnelTrailers)]),
        ("%FILTER_STATE(envoy.tcp_proxy.propagate_response_trailers:PLAIN)%", vec![operator(Operator::Unset)]),
        ("%DOWNSTREAM_TRANSPORT_FAILURE_REASON%", vec![operator(Operator::DownstreamTransportFailureReason)]),
    ] {
        assert_eq!(parse(text), Ok(expected), "{text:?}");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (text, expected) in [
        ("a%", "at byte 1: \"%\" starts no operator; a literal percent sign is written \"%%\""),
        ("50% off", "at byte 2: \"%\" starts no operator; a literal percent sign is written \"%%\""),
        ("%REQ(X-A%", "at byte 0: \"%\" starts no operator; a literal percent sign is written \"%%\""),
        ("%PROTOCOL:x%", "at byte 0: \"%\" starts no operator; a literal percent sign is written \"%%\""),
        ("x %NOT_THERE%", "at byte 2: operator %NOT_THERE% is not supported"),
        ("%REQ%", "at byte 0: operator %REQ% takes a header name, or two: %REQ(FIRST?SECOND)%"),
        ("%REQ(A?B?C)%", "at byte 0: operator %REQ% takes a header name, or two: %REQ(FIRST?SECOND)%"),
        (
            "%COMMON_DURATION(DS_RX_BEG:SOON:ms)%",
            "at byte 0: operator %COMMON_DURATION% takes START:END:PRECISION: two of DS_RX_BEG, DS_RX_END, US_CX_BEG, \
             US_CX_END, US_HS_END, US_TX_BEG, US_TX_END, US_RX_BEG, US_RX_BODY_BEG, US_RX_END, DS_TX_BEG, DS_TX_END, ON_DEMAND_BEG and \
             ON_DEMAND_END, and ms, us or ns",
        ),
        ("%REQ()%", "at byte 0: operator %REQ% takes a header name, or two: %REQ(FIRST?SECOND)%"),
        (
            "%DYNAMIC_METADATA()%",
            "at byte 0: operator %DYNAMIC_METADATA% takes a filter's name, and keys behind colons",
        ),
        ("%PROTOCOL(x)%", "at byte 0: operator %PROTOCOL% takes no argument"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text:?}");
    }
}

#[test]
fn the_defaults_of_envoy_and_istio_parse() {
    for (text, operators) in [(ENVOY_DEFAULT_FORMAT, 15), (ISTIO_DEFAULT_FORMAT, 24)] {
        let parts = parse(text).unwrap();
        let found = parts.iter().filter(|part| matches!(part, FormatPart::Operator { .. })).count();
        assert_eq!(found, operators);
        assert!(text.ends_with('\n') && !text.contains("  "));
    }
}
