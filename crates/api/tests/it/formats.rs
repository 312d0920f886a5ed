//! Format strings that a proxy would refuse are findings wherever YAML has them, with their place and with what happens instead.

const NONE: &str = "there is no operator %RESPONSE_COD%; did you mean %RESPONSE_CODE%?";

/// The findings in a file.
fn found(text: &str) -> Vec<String> {
    let (_, found) = evenkeel_api::load(&[("f.yaml".into(), text.into())]);
    found.iter().map(ToString::to_string).collect()
}

/// There is one finding, in this line, with this text; without a text there is none.
fn check(text: &str, line: usize, expected: &str) {
    let found = found(text);
    match found.as_slice() {
        [] if expected.is_empty() => {}
        [one] if !expected.is_empty() => {
            assert!(one.contains(expected) && one.contains(&format!("f.yaml:{line}:")), "{text}\n{one}");
        }
        _ => panic!("{text}\nexpected {expected:?} in line {line}, found {found:#?}"),
    }
}

/// Mesh configuration; its first line is the sixth.
fn mesh(config: &str) -> String {
    let config = config.replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    {config}\n"
    )
}

#[test]
fn the_format_of_the_meshs_log() {
    let default = |what: &str| format!("{what}; Istio's default format is used");
    check(&mesh("accessLogFormat: '%RESPONSE_CODE% %REQ(X-A?Y):3%'"), 6, "");
    check(&mesh("accessLogFormat: '%RESPONSE_COD%'"), 6, &default(NONE));
    check(
        &mesh("accessLogFile: /dev/stdout\naccessLogFormat: 'of %RESPONSE_COD%'"),
        7,
        &default(&format!("at character 4 of it: {NONE}")),
    );
    check(
        &mesh("accessLogFormat: '%UPSTREAM_METADATA(a:b)%'"),
        6,
        "operator %UPSTREAM_METADATA% is Envoy's, and Evenkeel's proxy does not have it; Istio's default format is used",
    );
    check(
        &mesh("accessLogFormat: '50%'"),
        6,
        &default("at character 3 of it: \"%\" starts no operator; a literal percent sign is written \"%%\""),
    );
    check(
        &mesh("accessLogEncoding: JSON\naccessLogFormat: '{\"a\": \"%PROTOCOL%\", \"b\": [\"%RESPONSE_COD%\"]}'"),
        7,
        &format!("{NONE}; Istio's default keys are used"),
    );
}

#[test]
fn the_formats_of_providers() {
    let provider = |settings: &str| mesh(&format!("extensionProviders:\n- {{name: logs, {settings}}}"));
    for (settings, expected) in [
        ("envoyFileAccessLog: {path: /l, logFormat: {text: '%PROTOCOL%'}}", String::new()),
        (
            "envoyFileAccessLog: {path: /l, logFormat: {text: '%RESPONSE_COD%'}}",
            format!("{NONE}; Istio's default format is used"),
        ),
        (
            "envoyFileAccessLog: {path: /l, logFormat: {labels: {a: '%PROTOCOL%', b: {c: '%RESPONSE_COD%'}}}}",
            format!("{NONE}; Istio's default keys are used"),
        ),
        (
            "envoyOtelAls: {service: c.d.svc.cluster.local, port: 4317, logFormat: {text: '%RESPONSE_COD%'}}",
            format!("{NONE}; Istio's default format is used"),
        ),
        (
            "envoyOtelAls: {service: c.d.svc.cluster.local, port: 4317, logFormat: {labels: {a: '%RESPONSE_COD%'}}}",
            format!("{NONE}; no attributes are sent"),
        ),
    ] {
        check(&provider(settings), 7, &expected);
    }
}

#[test]
fn the_values_of_headers() {
    let virtual_service = |value: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v}}\nspec:\n  hosts: [a]\n  http:\n  - route: [{{destination: {{host: a}}}}]\n    headers: {{request: {{set: {{x-a: {value:?}}}}}}}\n"
        )
    };
    let route = |value: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r}}\nspec:\n  parentRefs: [{{name: g}}]\n  rules:\n  - backendRefs: [{{name: a, port: 80}}]\n    filters: [{{type: ResponseHeaderModifier, responseHeaderModifier: {{add: [{{name: x-a, value: {value:?}}}]}}}}]\n"
        )
    };
    for (value, expected) in [
        ("100%", String::new()),
        ("%PROTOCOL% of %%", String::new()),
        ("a %RESPONSE_COD%", format!("{NONE}; it is sent as text")),
    ] {
        check(&virtual_service(value), 8, &expected);
        check(&route(value), 8, &expected);
    }
}
