//! Access log format strings.

use evenkeel_format::{
    AddressOf, AddressPart, ENVOY_DEFAULT_FORMAT, Format, FormatError, FormatPart, ISTIO_DEFAULT_FORMAT, Operator,
};

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
        ("%REQUEST_HEADER(X-A)%", vec![operator(Operator::Req("x-a".into(), None))]),
        (
            "%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT(8)%",
            vec![operator(Operator::Address(AddressOf::DownstreamLocal, AddressPart::Masked(8)))],
        ),
        ("%METADATA(DYNAMIC:a:b:c)%", vec![operator(metadata(&["b", "c"]))]),
        (
            "%COALESCE({\"operators\": [\"PROTOCOL\", {\"command\": \"REQ\", \"param\": \"X-A\", \"max_length\": 3}]})%",
            vec![operator(Operator::Coalesce(vec![
                operator(Operator::Protocol),
                FormatPart::Operator { operator: Operator::Req("x-a".into(), None), max_length: Some(3) },
            ]))],
        ),
        ("%ACCESS_LOG_TYPE%|", vec![literal("|")]),
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
        ("x %NOT_THERE%", "at byte 2: there is no operator %NOT_THERE%"),
        ("%RESPONSE_COD%", "at byte 0: there is no operator %RESPONSE_COD%; did you mean %RESPONSE_CODE%?"),
        (
            "%UPSTREAM_WIRE_BYTES_SENT%",
            "at byte 0: operator %UPSTREAM_WIRE_BYTES_SENT% is Envoy's, and Evenkeel's proxy does not have it",
        ),
        (
            "%METADATA(ROUTE:a:b)%",
            "at byte 0: operator %METADATA(ROUTE:…)% is Envoy's, and Evenkeel's proxy does not have it",
        ),
        ("%CEL(1 + )%", "at byte 0: operator %CEL% has an expression that does not compile: "),
        ("%CEL%", "at byte 0: operator %CEL% takes an expression (CEL)"),
        ("%PATH(XX)%", "at byte 0: operator %PATH% takes WQ or NQ, and ORIG, PATH or ORIG_OR_PATH behind a colon"),
        ("%QUERY_PARAM%", "at byte 0: operator %QUERY_PARAM% takes the name of a parameter"),
        (
            "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(129)%",
            "at byte 0: operator %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% takes a number of bits, 0 to 32, or to 128 for IPv6",
        ),
        ("%UPSTREAM_LOCAL_PORT(1)%", "at byte 0: operator %UPSTREAM_LOCAL_PORT% takes no argument"),
        (
            "%REQUESTED_SERVER_NAME(FOO)%",
            "at byte 0: operator %REQUESTED_SERVER_NAME% takes SNI_ONLY, SNI_FIRST or HOST_FIRST, and ORIG, HOST or ORIG_OR_HOST \
             behind a colon",
        ),
        ("%COALESCE(x)%", "at byte 0: operator %COALESCE% takes {\"operators\": [\"NAME\", {"),
        (
            "%COALESCE({\"operators\": [{\"command\": \"COALESCE\", \"param\": \"{}\"}]})%",
            "at byte 0: operator %COALESCE% cannot be nested",
        ),
        ("%COALESCE({\"operators\": [\"NOPE\"]})%", "at byte 0: there is no operator %NOPE%"),
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
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
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

/// An argument ends where the operator can, so that expressions may have brackets.
#[test]
fn expressions_may_have_brackets() {
    for (text, expected) in [
        ("%CEL(size('a)b'))%x", "size('a)b')"),
        ("%TYPED_CEL((1 + 2) * 3):4%", "(1 + 2) * 3"),
        ("%CEL(request.headers['a'] == 'x')% %CEL(true)%", "request.headers['a'] == 'x'"),
    ] {
        let parts = parse(text).unwrap();
        let Some(FormatPart::Operator { operator: Operator::Cel { expression, .. }, .. }) = parts.first() else {
            panic!("{text}: {parts:?}")
        };
        assert_eq!(expression.text(), expected, "{text}");
    }
}

/// Each operator of Envoy's is either known here or named as missing, not both.
#[test]
fn names_are_known_or_missing() {
    let known: Vec<_> = evenkeel_format::known().collect();
    for (place, name) in known.iter().enumerate() {
        assert!(!known[..place].contains(name), "{name} is listed twice");
        assert!(!evenkeel_format::ONLY_ENVOY.contains(name), "{name} is known");
        let with =
            [format!("%{name}%"), format!("%{name}(a)%"), format!("%{name}(DYNAMIC:a)%"), format!("%{name}(true)%")];
        let read = with
            .iter()
            .any(|text| !matches!(parse(text), Err(FormatError::Unknown { .. } | FormatError::OnlyEnvoy { .. })));
        assert!(read, "{name} is not read");
    }
}
