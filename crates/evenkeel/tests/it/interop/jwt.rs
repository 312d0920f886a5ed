//! Tokens (JWT): Evenkeel and Envoy accept and reject the same ones, with the same responses, and pass the same data on to
//! programs and logs. Where Evenkeel is stricter on purpose, the row says why.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::jwt::{Signer, base64url, jwks};
use evenkeel_testkit::{Backend, Connection, Reply, Request, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// How long a program may take to write its log.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far in the future, and long ago.
const LATER: u64 = 4_102_444_800;
const BEFORE: u64 = 1_000_000_000;

/// One exchange.
#[derive(Clone)]
struct Row {
    name: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    method: &'static str,
    /// What Envoy's answer contains.
    expect: &'static str,
    /// Where Evenkeel means to differ: why, and what its answer contains.
    differs: Option<(&'static str, &'static str)>,
}

impl Row {
    fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    fn differs(mut self, why: &'static str, evenkeel: &'static str) -> Self {
        self.differs = Some((why, evenkeel));
        self
    }

    fn text(&self) -> String {
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{} {} HTTP/1.1\r\nHost: a.test\r\n{headers}\r\n", self.method, self.path)
    }
}

fn row(name: &'static str, path: impl Into<String>, expect: &'static str) -> Row {
    Row { name, path: path.into(), headers: Vec::new(), method: "GET", expect, differs: None }
}

/// A row with a token in `authorization`.
fn bearer(name: &'static str, path: &str, token: &str, expect: &'static str) -> Row {
    row(name, path, expect).header("authorization", format!("Bearer {token}"))
}

struct Keys {
    rsa: Signer,
    two: Signer,
    p256: Signer,
    p384: Signer,
    p521: Signer,
    ed25519: Signer,
    stranger: Signer,
}

fn keys() -> Keys {
    Keys {
        rsa: Signer::rsa("rsa"),
        two: Signer::rsa("two"),
        p256: Signer::ec("p256", "P-256"),
        p384: Signer::ec("p384", "P-384"),
        p521: Signer::ec("p521", "P-521"),
        ed25519: Signer::ed25519("ed25519"),
        stranger: Signer::rsa("rsa"),
    }
}

fn claims(more: &str) -> String {
    format!(r#"{{"iss":"me","sub":"you","aud":"app","exp":{LATER}{more}}}"#)
}

#[test]
fn evenkeel_and_envoy_judge_tokens_alike() {
    let keys = keys();
    let rows = rows(&keys);
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "two rows have the same name");
    let set = jwks(&[&keys.two]);
    let backend = Backend::start(move |request| match request.target.as_str() {
        "/keys" => Reply::text(set.clone()),
        "/nothing" => Reply::text("{}"),
        "/broken" => Reply::Fixed(500, Vec::new(), b"broken".to_vec()),
        _ => Reply::text(echo(request)),
    });
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    std::fs::write(&file, bootstrap(&keys, backend.address().port(), port, admin, &log)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let mut answers: Vec<String> = rows.iter().map(|row| ask(port, row)).collect();
        let over_http2 = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let second: Vec<String> = over_http2.block_on(async { ask_over_http2(port, &rows).await });
        let logged = || std::fs::read_to_string(&log).unwrap_or_default();
        let complete = |log: &String| log.lines().count() >= 2 * rows.len();
        let text = wait::poll(PATIENCE, || Some(logged()).filter(complete)).unwrap_or_else(logged);
        let lines: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        for (index, (answer, second)) in answers.iter_mut().zip(second).enumerate() {
            let logged = lines.get(index.to_string().as_str()).copied().unwrap_or("nothing logged");
            *answer = format!("{answer}over HTTP/2: {second}log: {logged}\n");
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        std::fs::remove_file(&log).expect("a log");
        (answers, statistics(admin))
    };
    let (envoy, envoys_counts) = run(Program::Envoy);
    let (evenkeel, counts) = run(Program::Evenkeel);
    let mut failures = Vec::new();
    for ((row, envoy), evenkeel) in rows.iter().zip(&envoy).zip(&evenkeel) {
        let name = row.name;
        if !envoy.contains(row.expect) {
            failures.push(format!("{name}: Envoy did not do what the row is about ({:?}):\n{envoy}", row.expect));
        }
        match row.differs {
            None if envoy != evenkeel => failures.push(format!("{name}: Envoy:\n{envoy}Evenkeel:\n{evenkeel}")),
            Some(_) if envoy == evenkeel => failures.push(format!("{name}: does not differ any more")),
            Some((why, expect)) if !evenkeel.contains(expect) => {
                failures.push(format!("{name}: differs ({why}), but not like this ({expect:?}):\n{evenkeel}"));
            }
            _ => {}
        }
    }
    // Rows that differ are counted otherwise.
    let passed = |answers: &[String]| {
        let one =
            |answer: &String| i64::from(answer.starts_with("200 ")) + i64::from(answer.contains("over HTTP/2: 200 "));
        answers.iter().map(one).sum::<i64>()
    };
    let stricter = passed(&envoy) - passed(&evenkeel);
    let count = |counts: &BTreeMap<String, i64>, name: &str| counts.get(name).copied().unwrap_or_default();
    for (name, change) in [("allowed", -stricter), ("denied", stricter), ("cors_preflight_bypassed", 0)] {
        let name = format!("http.http.jwt_authn.mine.{name}");
        let (envoy, evenkeel) = (count(&envoys_counts, &name), count(&counts, &name));
        if envoy + change != evenkeel || envoy == 0 {
            failures.push(format!("{name}: Envoy {envoy}, and {change} for stricter rows; Evenkeel {evenkeel}"));
        }
    }
    let names = |counts: &BTreeMap<String, i64>| counts.keys().cloned().collect::<BTreeSet<_>>();
    if names(&envoys_counts) != names(&counts) {
        failures.push(format!("statistics: Envoy {envoys_counts:?}, Evenkeel {counts:?}"));
    }
    let (failed, all) = (failures.len(), rows.len());
    assert!(failures.is_empty(), "{failed} of {all} rows failed\n\n{}", failures.join("\n"));
    assert!(rows.len() >= 80, "{} rows", rows.len());
}

/// What the backend has seen.
fn echo(request: &Request) -> String {
    let seen = |name: &str| {
        name.starts_with("x-")
            && !name.starts_with("x-envoy")
            && !name.starts_with("x-request-id")
            && !name.starts_with("x-forwarded")
            && name != "x-row"
    };
    let mut headers: Vec<String> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .filter(|(name, _)| seen(name) || name == "authorization" || name == "cookie")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    headers.sort();
    format!("{} {}\n{}", request.method, request.target, headers.join("\n"))
}

fn ask(port: u16, row: &Row) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut client = Connection::open(address).expect("the listener accepts");
    client.send(row.text()).expect("an open connection");
    let answer = client.response().expect("an answer");
    let challenge = answer.header("www-authenticate").unwrap_or("none");
    format!("{} challenge {challenge}\n{}\n", answer.status, answer.text())
}

/// The same rows over one HTTP/2 connection.
async fn ask_over_http2(port: u16, rows: &[Row]) -> Vec<String> {
    let mut answers = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let socket = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("the listener accepts");
        let (mut sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        let driving = tokio::spawn(connection);
        let uri = format!("http://a.test{}", row.path);
        let mut request = http::Request::builder().method(row.method).uri(uri).header("x-row", index);
        for (name, value) in &row.headers {
            request = request.header(name, value);
        }
        let request = request.body(()).expect("a request");
        let (response, _) = sender.send_request(request, true).expect("an open connection");
        let response = response.await.expect("an answer");
        let challenge = response.headers().get("www-authenticate").map(|value| value.to_str().expect("text"));
        let mut answer = format!("{} challenge {}\n", response.status().as_u16(), challenge.unwrap_or("none"));
        let mut body = response.into_body();
        while let Some(piece) = body.data().await {
            let piece = piece.expect("a body");
            body.flow_control().release_capacity(piece.len()).expect("capacity");
            answer.push_str(&String::from_utf8_lossy(&piece));
        }
        answer.push('\n');
        answers.push(answer);
        driving.abort();
    }
    answers
}

fn statistics(admin: u16) -> BTreeMap<String, i64> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let lines = text.lines().filter(|line| line.contains(".jwt_authn."));
    lines
        .filter_map(|line| Some((line.split_once(": ")?.0.to_owned(), line.split_once(": ")?.1.parse().ok()?)))
        .collect()
}

fn provider(name: &str, fields: &str) -> String {
    format!("{name}: {{ {fields} }}")
}

fn inline(set: &str) -> String {
    format!("local_jwks: {{ inline_string: '{set}' }}")
}

fn remote(uri: &str, cluster: &str) -> String {
    format!(
        "remote_jwks: {{ http_uri: {{ uri: \"http://keys.test{uri}\", cluster: {cluster}, timeout: 2s }}, cache_duration: 600s }}"
    )
}

/// The providers of the filter.
fn providers(keys: &Keys) -> Vec<String> {
    let me = "issuer: me";
    let rsa = inline(&jwks(&[&keys.rsa]));
    let both = inline(&jwks(&[&keys.rsa, &keys.p256, &keys.p384, &keys.p521, &keys.ed25519]));
    let named = inline(&format!(r#"{{"keys":[{{{},"kid":"rsa","alg":"RS256"}}]}}"#, keys.rsa.fields()));
    let output = "forward_payload_header: x-payload, claim_to_headers: [ { header_name: x-sub, claim_name: sub }, \
                  { header_name: x-nested, claim_name: a.b.c }, { header_name: x-number, claim_name: \"n\" }, \
                  { header_name: x-flag, claim_name: f }, { header_name: x-list, claim_name: l }, \
                  { header_name: X-Object, claim_name: o } ]";
    let metadata = "payload_in_metadata: payload, header_in_metadata: header, failed_status_in_metadata: failed, \
                    normalize_payload_in_metadata: { space_delimited_claims: [ scope ] }";
    vec![
        provider("plain", &format!("{me}, forward: true, {rsa}")),
        provider("default", &format!("{me}, {rsa}")),
        provider("audience", &format!("{me}, audiences: [ \"https://app/\", other ], {rsa}")),
        provider(
            "places",
            &format!(
                "{me}, from_headers: [ {{ name: X-Jwt, value_prefix: \"T \" }}, {{ name: x-bare }} ], from_params: [ t ], from_cookies: [ c ], {rsa}"
            ),
        ),
        provider("output", &format!("{me}, {output}, {metadata}, {rsa}")),
        provider(
            "padded",
            &format!("{me}, forward_payload_header: x-payload, pad_forward_payload_header: true, {rsa}"),
        ),
        provider("algorithms", &format!("{me}, {both}")),
        provider("named", &format!("{me}, {named}")),
        provider("subject", &format!("{me}, subjects: {{ prefix: \"yo\" }}, {rsa}")),
        provider("expires", &format!("{me}, require_expiration: true, {rsa}")),
        provider("short", &format!("{me}, max_lifetime: 3600s, {rsa}")),
        provider("skewed", &format!("{me}, clock_skew_seconds: 4000000000, {rsa}")),
        provider("cached", &format!("{me}, jwt_cache_config: {{ jwt_cache_size: 10 }}, {rsa}")),
        provider(
            "two",
            &format!(
                "issuer: two, from_headers: [ {{ name: x-two }} ], forward_payload_header: x-payload-two, {}",
                inline(&jwks(&[&keys.two]))
            ),
        ),
        provider("anyone", &format!("from_headers: [ {{ name: x-anyone }} ], {rsa}")),
        provider("remote", &format!("{me}, {}", remote("/keys", "b"))),
        provider("remote-nothing", &format!("{me}, {}", remote("/nothing", "b"))),
        provider("remote-broken", &format!("{me}, {}", remote("/broken", "b"))),
        provider("remote-gone", &format!("{me}, {}", remote("/keys", "gone"))),
    ]
}

/// Paths, and what the filter asks of requests for them.
fn requirements() -> Vec<(&'static str, String)> {
    let only = |name: &str| format!("requires: {{ provider_name: {name} }}");
    let any = |list: &str| format!("requires: {{ requires_any: {{ requirements: [ {list} ] }} }}");
    let one = |name: &str| format!("{{ provider_name: {name} }}");
    let or_missing = |name: &str| {
        format!("{{ requires_any: {{ requirements: [ {{ provider_name: {name} }}, {{ allow_missing: {{}} }} ] }} }}")
    };
    let istio = format!(
        "{}, {}, {{ requires_all: {{ requirements: [ {}, {} ] }} }}",
        one("output"),
        one("two"),
        or_missing("output"),
        or_missing("two")
    );
    vec![
        ("/plain", only("plain")),
        ("/default", only("default")),
        ("/audience", only("audience")),
        (
            "/audiences",
            "requires: { provider_and_audiences: { provider_name: audience, audiences: [ special ] } }".to_owned(),
        ),
        ("/places", only("places")),
        ("/output", only("output")),
        ("/padded", only("padded")),
        ("/algorithms", only("algorithms")),
        ("/named", only("named")),
        ("/subject", only("subject")),
        ("/expires", only("expires")),
        ("/short", only("short")),
        ("/skewed", only("skewed")),
        ("/cached", only("cached")),
        ("/any", any(&format!("{}, {}", one("output"), one("two")))),
        ("/all", format!("requires: {{ requires_all: {{ requirements: [ {}, {} ] }} }}", one("plain"), one("two"))),
        ("/missing", any(&format!("{}, {{ allow_missing: {{}} }}", one("output")))),
        ("/lenient", any(&format!("{}, {{ allow_missing_or_failed: {{}} }}", one("output")))),
        ("/istio", any(&istio)),
        // What the control plane writes for several issuers: every token is good, wherever it is.
        ("/each", "requires: { allow_missing: {} }".to_owned()),
        ("/anyone", only("anyone")),
        ("/remote", only("remote")),
        ("/r-nothing", only("remote-nothing")),
        ("/r-broken", only("remote-broken")),
        ("/r-gone", only("remote-gone")),
        ("/by-name", "requirement_name: strict".to_owned()),
        ("/nothing", String::new()),
    ]
}

fn bootstrap(keys: &Keys, backend: u16, port: u16, admin: u16, log: &Path) -> String {
    let rule = |(path, requires): &(&str, String)| {
        let requires = if requires.is_empty() { String::new() } else { format!(", {requires}") };
        format!("{{ match: {{ path_separated_prefix: {path} }}{requires} }}")
    };
    let rules: Vec<String> = requirements().iter().map(rule).collect();
    let filter = format!(
        "{{ name: j, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication, \
         stat_prefix: mine, bypass_cors_preflight: true, requirement_map: {{ strict: {{ provider_name: plain }} }}, \
         providers: {{ {} }}, rules: [ {} ] }} }}",
        providers(keys).join(", "),
        rules.join(", ")
    );
    let per_route = |path: &str, config: &str| {
        format!(
            "              - {{ match: {{ prefix: {path} }}, route: {{ cluster: b }}, typed_per_filter_config: {{ j: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig, {config} }} }} }}\n"
        )
    };
    let routes = [
        per_route("/plain/off", "disabled: true"),
        per_route("/nothing/strict", "requirement_name: strict"),
        per_route("/nothing/wrong", "requirement_name: nobody"),
        "              - { match: { prefix: / }, route: { cluster: b } }\n".to_owned(),
    ];
    let format = "%REQ(x-row)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %DYNAMIC_METADATA(envoy.filters.http.jwt_authn:payload:scope)% \
                  %DYNAMIC_METADATA(envoy.filters.http.jwt_authn:payload:sub)% %DYNAMIC_METADATA(envoy.filters.http.jwt_authn:header:kid)% \
                  %DYNAMIC_METADATA(envoy.filters.http.jwt_authn:failed:message)% %DYNAMIC_METADATA(envoy.filters.http.jwt_authn:failed:code)%";
    let manager = format!(
        "          {}\n          http_filters: [ {filter}, {ROUTER} ]\n{}",
        web::access_log(log, &[format]),
        web::one_host(&routes.concat())
    );
    let clusters =
        [cluster("b", &endpoint(backend, ""), ""), cluster("gone", &endpoint(evenkeel_testkit::free_port(), ""), "")];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}

fn rows(keys: &Keys) -> Vec<Row> {
    let all = [
        good_and_bad(keys),
        forged(keys),
        malformed(keys),
        times(keys),
        places(keys),
        outputs(keys),
        several(keys),
        fetched(keys),
    ];
    all.into_iter().flatten().collect()
}

const DENIED: &str = "401 challenge Bearer realm=\"http://a.test";

fn good_and_bad(keys: &Keys) -> Vec<Row> {
    let good = keys.rsa.token(&claims(""));
    let with = |claims: &str| keys.rsa.token(claims);
    vec![
        bearer("good", "/plain", &good, "authorization: Bearer"),
        bearer("good again", "/plain", &good, "authorization: Bearer"),
        bearer("good in a cache", "/cached", &good, "200 "),
        bearer("good in a cache again", "/cached", &good, "200 "),
        bearer("good, not forwarded", "/default", &good, "200 "),
        row("missing", "/plain", "Jwt is missing"),
        row("missing with a query", "/plain?a=b&c", "realm=\"http://a.test/plain?a=b&c\""),
        row("missing with a long path", format!("/plain/{}", "x".repeat(400)), "Jwt is missing"),
        row("nothing is required", "/nothing", "200 "),
        row("no rule", "/elsewhere", "200 "),
        row("switched off by the route", "/plain/off", "200 "),
        row("named by the route", "/nothing/strict", "Jwt is missing"),
        bearer("named by the route, good", "/nothing/strict", &good, "200 "),
        row(
            "a wrong name by the route",
            "/nothing/wrong",
            "Wrong requirement_name: nobody. It should be one of [strict]",
        ),
        row("by name", "/by-name", "Jwt is missing"),
        bearer("by name, good", "/by-name", &good, "200 "),
        bearer("good audience", "/audience", &good, "200 "),
        bearer("good audience of several", "/audience", &with(r#"{"iss":"me","aud":["x","other"]}"#), "200 "),
        bearer("wrong audience", "/audience", &with(r#"{"iss":"me","aud":"x"}"#), "403 challenge Bearer realm"),
        bearer("no audience", "/audience", &with(r#"{"iss":"me"}"#), "Audiences in Jwt are not allowed"),
        bearer("empty audiences", "/audience", &with(r#"{"iss":"me","aud":[]}"#), "Audiences in Jwt are not allowed"),
        bearer("audience as URL", "/audience", &with(r#"{"iss":"me","aud":"http://app"}"#), "200 "),
        bearer("audience of the requirement", "/audiences", &with(r#"{"iss":"me","aud":"special"}"#), "200 "),
        bearer("audience of the provider only", "/audiences", &good, "403 "),
        bearer("wrong issuer", "/plain", &with(r#"{"iss":"you"}"#), "Jwt issuer is not configured"),
        bearer("issuer in other case", "/plain", &with(r#"{"iss":"Me"}"#), "Jwt issuer is not configured"),
        bearer("no issuer", "/plain", &with("{}"), "Jwt issuer is not configured"),
        bearer("subject", "/subject", &good, "200 "),
        bearer("wrong subject", "/subject", &with(r#"{"iss":"me","sub":"other"}"#), DENIED),
        bearer("no subject", "/subject", &with(r#"{"iss":"me"}"#), DENIED),
        row("any issuer", "/anyone", "200 ").header("x-anyone", with(r#"{"iss":"whoever"}"#)),
        row("any issuer, none", "/anyone", "200 ").header("x-anyone", with("{}")),
    ]
}

/// Algorithms that are none, or not the key's; then each that works.
fn forged(keys: &Keys) -> Vec<Row> {
    [algorithms(keys), strange_keys(keys), damaged(keys), each_algorithm(keys)].concat()
}

fn algorithms(keys: &Keys) -> Vec<Row> {
    let good = keys.rsa.token(&claims(""));
    let parts: Vec<&str> = good.split('.').collect();
    let rsa = |header: &str| keys.rsa.signed(header, &claims(""));
    let hs256 = {
        let header = base64url(r#"{"alg":"HS256","kid":"rsa"}"#);
        format!("{header}.{}.{}", parts[1], base64url([7; 32]))
    };
    vec![
        bearer("alg none", "/plain", &format!("{}.{}.", base64url(r#"{"alg":"none"}"#), parts[1]), DENIED),
        bearer("alg none with a signature", "/plain", &rsa(r#"{"alg":"none"}"#), "Jwt header [alg] is not supported"),
        bearer("alg in lower case", "/plain", &rsa(r#"{"alg":"rs256"}"#), "Jwt header [alg] is not supported"),
        bearer("no alg", "/plain", &rsa(r#"{"kid":"rsa"}"#), "Jwt header [alg] field is required"),
        bearer("alg is a number", "/plain", &rsa(r#"{"alg":1}"#), "Jwt header [alg] field is required"),
        bearer("HMAC with an RSA key", "/plain", &hs256, "Jwt verification fails"),
        bearer("HMAC with an RSA key that has an alg", "/named", &hs256, "Jwks doesn't have key to match kid or alg"),
        bearer(
            "another hash than the key's",
            "/named",
            &keys.rsa.signed_by("RS512", r#"{"alg":"RS512"}"#, &claims("")),
            DENIED,
        ),
        bearer("ES256 with an RSA signature", "/plain", &rsa(r#"{"alg":"ES256"}"#), "Jwt verification fails"),
        bearer("PS256 with a PKCS1 signature", "/plain", &rsa(r#"{"alg":"PS256"}"#), "Jwt verification fails"),
        bearer(
            "RS256 with a PSS signature",
            "/plain",
            &keys.rsa.signed_by("PS256", r#"{"alg":"RS256"}"#, &claims("")),
            "Jwt verification fails",
        ),
    ]
}

/// Which key, said by the token.
fn strange_keys(keys: &Keys) -> Vec<Row> {
    let rsa = |header: &str| keys.rsa.signed(header, &claims(""));
    vec![
        bearer("unknown kid", "/plain", &rsa(r#"{"alg":"RS256","kid":"x"}"#), "Jwks doesn't have key to match kid"),
        bearer("no kid", "/plain", &rsa(r#"{"alg":"RS256"}"#), "200 "),
        bearer("kid is a number", "/plain", &rsa(r#"{"alg":"RS256","kid":1}"#), "[kid] field is not a string"),
        bearer("a stranger's signature", "/plain", &keys.stranger.token(&claims("")), "Jwt verification fails"),
        bearer(
            "a stranger's key in the header",
            "/plain",
            &keys.stranger.signed(&format!(r#"{{"alg":"RS256","jwk":{}}}"#, keys.stranger.jwk()), &claims("")),
            "Jwt verification fails",
        ),
        bearer(
            "a URL of keys in the header",
            "/plain",
            &keys.stranger.signed(r#"{"alg":"RS256","jku":"http://keys.test/keys"}"#, &claims("")),
            "Jwt verification fails",
        ),
    ]
}

/// Changed parts of a good token.
fn damaged(keys: &Keys) -> Vec<Row> {
    let good = keys.rsa.token(&claims(""));
    let parts: Vec<&str> = good.split('.').collect();
    let rsa = |header: &str| keys.rsa.signed(header, &claims(""));
    vec![
        bearer(
            "other payload",
            "/plain",
            &format!("{}.{}.{}", parts[0], base64url(claims(r#","admin":true"#)), parts[2]),
            "Jwt verification fails",
        ),
        bearer(
            "other header",
            "/plain",
            &format!("{}.{}.{}", base64url(r#"{"alg":"RS256"}"#), parts[1], parts[2]),
            "Jwt verification fails",
        ),
        bearer(
            "signature of zeros",
            "/plain",
            &format!("{}.{}.{}", parts[0], parts[1], base64url([0; 256])),
            "Jwt verification fails",
        ),
        bearer(
            "short signature",
            "/plain",
            &format!("{}.{}.{}", parts[0], parts[1], base64url([1; 10])),
            "Jwt verification fails",
        ),
        bearer(
            "Ed25519, short signature",
            "/algorithms",
            &format!("{}.{}.{}", base64url(r#"{"alg":"EdDSA","kid":"ed25519"}"#), parts[1], base64url([1; 10])),
            "Jwt ED25519 signature is wrong length",
        ),
        bearer("critical extension", "/plain", &rsa(r#"{"alg":"RS256","crit":["x"],"x":1}"#), "200 ")
            .differs("RFC 7515 section 4.1.11: what is critical and not understood is refused", "401 "),
    ]
}

fn each_algorithm(keys: &Keys) -> Vec<Row> {
    let row = |(name, signer, algorithm): (&'static str, &Signer, &str)| {
        let header = format!(r#"{{"alg":"{algorithm}","kid":"{}"}}"#, signer.id);
        bearer(name, "/algorithms", &signer.signed_by(algorithm, &header, &claims("")), "200 ")
    };
    [
        ("RS256", &keys.rsa, "RS256"),
        ("RS384", &keys.rsa, "RS384"),
        ("RS512", &keys.rsa, "RS512"),
        ("PS256", &keys.rsa, "PS256"),
        ("PS384", &keys.rsa, "PS384"),
        ("PS512", &keys.rsa, "PS512"),
        ("ES256", &keys.p256, "ES256"),
        ("ES384", &keys.p384, "ES384"),
        ("ES512", &keys.p521, "ES512"),
        ("EdDSA", &keys.ed25519, "EdDSA"),
    ]
    .map(row)
    .into()
}

fn malformed(keys: &Keys) -> Vec<Row> {
    let good = keys.rsa.token(&claims(""));
    let parts: Vec<&str> = good.split('.').collect();
    let with = |claims: &str| keys.rsa.token(claims);
    let deep = format!(r#"{{"iss":"me","a":{}{}}}"#, "[".repeat(150), "]".repeat(150));
    vec![
        bearer("no dots", "/plain", "abc", "Jwt is not in the form"),
        bearer("two parts", "/plain", &format!("{}.{}", parts[0], parts[1]), "Jwt is not in the form"),
        bearer("four parts", "/plain", &format!("{good}.abc"), "Jwt is not in the form"),
        bearer("a dot behind", "/plain", &format!("{good}."), "200 ")
            .differs("a token has exactly two dots", "Jwt is not in the form"),
        bearer(
            "header is no base64",
            "/plain",
            &format!("a+b.{}.{}", parts[1], parts[2]),
            "Jwt header is an invalid Base64url",
        ),
        bearer(
            "payload is no base64",
            "/plain",
            &format!("{}.a/b.{}", parts[0], parts[2]),
            "Jwt payload is an invalid Base64url",
        ),
        bearer(
            "signature is no base64",
            "/plain",
            &format!("{}.{}.a*b", parts[0], parts[1]),
            "Jwt signature is an invalid Base64url",
        ),
        bearer(
            "header is no JSON",
            "/plain",
            &format!("{}.{}.{}", base64url("x"), parts[1], parts[2]),
            "Jwt header is an invalid JSON",
        ),
        bearer("payload is no JSON", "/plain", &keys.rsa.token("x"), "Jwt payload is an invalid JSON"),
        bearer("payload is a list", "/plain", &keys.rsa.token("[1]"), "Jwt payload is an invalid JSON"),
        bearer("payload with more behind it", "/plain", &keys.rsa.token("{} x"), "Jwt payload is an invalid JSON"),
        bearer("a claim twice", "/plain", &with(r#"{"iss":"me","iss":"me"}"#), "Jwt payload is an invalid JSON"),
        bearer(
            "a name of the header twice",
            "/plain",
            &keys.rsa.signed(r#"{"alg":"RS256","alg":"RS256"}"#, &claims("")),
            "Jwt header is an invalid JSON",
        ),
        bearer("too deep", "/plain", &with(&deep), "Jwt payload is an invalid JSON"),
        bearer("issuer is a number", "/plain", &with(r#"{"iss":1}"#), "[iss] field is not a string"),
        bearer("subject is a list", "/plain", &with(r#"{"iss":"me","sub":[]}"#), "[sub] field is not a string"),
        bearer(
            "audience is a number",
            "/plain",
            &with(r#"{"iss":"me","aud":1}"#),
            "[aud] field is not a string or string list",
        ),
        bearer(
            "audience has a number",
            "/plain",
            &with(r#"{"iss":"me","aud":["a",1]}"#),
            "[aud] field is not a string or string list",
        ),
        bearer("jti is a number", "/plain", &with(r#"{"iss":"me","jti":1}"#), "[jti] field is not a string"),
        bearer("iat is text", "/plain", &with(r#"{"iss":"me","iat":"1"}"#), "[iat] field is not an integer"),
        bearer(
            "iat is negative",
            "/plain",
            &with(r#"{"iss":"me","iat":-1}"#),
            "[iat] field is not a positive 64 bit integer",
        ),
        bearer("8 KiB of claims", "/plain", &with(&claims(&format!(r#","x":"{}""#, "x".repeat(8192)))), "200 "),
        bearer("40 KiB of claims", "/plain", &with(&claims(&format!(r#","x":"{}""#, "x".repeat(40_000)))), "200 ")
            .differs("tokens have at most 32 KiB", "Jwt is not in the form"),
    ]
}

fn times(keys: &Keys) -> Vec<Row> {
    let with = |claims: &str| keys.rsa.token(&format!(r#"{{"iss":"me",{claims}}}"#));
    vec![
        bearer("expired", "/plain", &with(&format!(r#""exp":{BEFORE}"#)), "Jwt is expired"),
        bearer("expired within the skew", "/skewed", &with(&format!(r#""exp":{BEFORE}"#)), "200 "),
        bearer("not yet valid", "/plain", &with(&format!(r#""nbf":{LATER}"#)), "Jwt not yet valid"),
        bearer(
            "expired and forged",
            "/plain",
            &keys.stranger.token(&format!(r#"{{"iss":"me","exp":{BEFORE}}}"#)),
            "Jwt is expired",
        ),
        bearer("exp is text", "/plain", &with(r#""exp":"1""#), "[exp] field is not an integer"),
        bearer("exp is a fraction", "/plain", &with(&format!(r#""exp":{LATER}.5"#)), "200 "),
        bearer("exp is negative", "/plain", &with(r#""exp":-1"#), "[exp] field is not a positive 64 bit integer"),
        bearer(
            "exp is 2^64",
            "/plain",
            &with(r#""exp":18446744073709551616"#),
            "[exp] field is not a positive 64 bit integer",
        ),
        bearer("exp is 1e400", "/plain", &with(r#""exp":1e400"#), DENIED),
        bearer("nbf is text", "/plain", &with(r#""nbf":"1""#), "[nbf] field is not an integer"),
        bearer("nbf is negative", "/plain", &with(r#""nbf":-1"#), "[nbf] field is not a positive 64 bit integer"),
        bearer("exp is 0", "/plain", &with(r#""exp":0"#), "200 ").differs("0 is long ago, not never", "Jwt is expired"),
        bearer("has to expire, and does", "/expires", &with(&format!(r#""exp":{LATER}"#)), "200 "),
        bearer("has to expire, and does not", "/expires", &with(r#""a":1"#), DENIED),
        bearer("lives too long", "/short", &with(&format!(r#""exp":{LATER}"#)), DENIED),
        bearer("never expires", "/short", &with(r#""a":1"#), DENIED),
    ]
}

fn places(keys: &Keys) -> Vec<Row> {
    let good = keys.rsa.token(&claims(""));
    let bad = keys.stranger.token(&claims(""));
    vec![
        row("header with a prefix", "/places", "200 ").header("x-jwt", format!("T {good}")),
        row("header with the prefix further on", "/places", "200 ").header("x-jwt", format!("a T {good}")),
        row("header with another prefix", "/places", "Jwt is missing").header("x-jwt", format!("t {good}")),
        row("header with the prefix alone", "/places", "Jwt is missing").header("x-jwt", "T"),
        row("bare header", "/places", "200 ").header("x-bare", good.clone()),
        row("empty header", "/places", DENIED).header("x-bare", ""),
        row("parameter", format!("/places?t={good}"), "GET /places\n"),
        row("parameter among others", format!("/places?a=1&t={good}&z=2"), "GET /places?a=1&z=2\n"),
        row("parameter, escaped", format!("/places?%74={}", good.replace('.', "%2E")), "200 "),
        row("parameter, empty", "/places?t=", "Jwt is not in the form"),
        row("parameter twice, the second forged", format!("/places?t={good}&t={bad}"), "200 ")
            .differs("a program may read the other one", "Jwt verification fails"),
        row("parameter twice, the first forged", format!("/places?t={bad}&t={good}"), "Jwt verification fails"),
        row("cookie", "/places", "cookie: a=b; c=").header("cookie", format!("a=b; c={good}")),
        row("cookie, quoted", "/places", "200 ").header("cookie", format!("c=\"{good}\"")),
        row("cookie of another name", "/places", "Jwt is missing").header("cookie", format!("cc={good}")),
        row("cookie twice, the second forged", "/places", "200 ")
            .header("cookie", format!("c={good}; c={bad}"))
            .differs("a program may read the other one", "Jwt verification fails"),
        row("default header is not looked at", "/places", "Jwt is missing")
            .header("authorization", format!("Bearer {good}")),
        row("default parameter", format!("/default?access_token={good}"), "200 "),
        row("two good ones", "/places", "200 ").header("x-bare", good.clone()).header("x-jwt", format!("T {good}")),
        row("a good and a bad one", "/places", "Jwt verification fails")
            .header("x-bare", good.clone())
            .header("x-jwt", format!("T {bad}")),
        row("a bad and a good one", "/places", "Jwt verification fails")
            .header("x-bare", bad.clone())
            .header("x-jwt", format!("T {good}")),
        row("a header twice, the second forged", "/places", "Jwt verification fails")
            .header("x-bare", good.clone())
            .header("x-bare", bad.clone()),
        row("authorization in lower case", "/default", "Jwt is missing")
            .header("authorization", format!("bearer {good}")),
        row("authorization of another scheme", "/default", "Jwt is missing").header("authorization", "Basic YTpi"),
        row("authorization twice", "/default", DENIED)
            .header("authorization", format!("Bearer {good}"))
            .header("authorization", format!("Bearer {bad}"))
            .differs("each line is a token, as in other headers", "Jwt verification fails"),
        row("a method of other case", "/plain", "Jwt is missing").method("get"),
    ]
}

fn outputs(keys: &Keys) -> Vec<Row> {
    let rich = r#","a":{"b":{"c":"deep"}},"n":12.5,"f":true,"l":["x",1],"o":{"k":"v"},"scope":"read  write""#;
    let rich = keys.rsa.token(&claims(rich));
    let poor = keys.rsa.token(&claims(r#","n":12,"f":false,"a":{"b":"c"}"#));
    let big = keys.rsa.token(&claims(r#","n":12345678901234567890"#));
    let negative = keys.rsa.token(&claims(r#","n":-3"#));
    let preflight = |row: Row| {
        row.method("OPTIONS").header("origin", "http://b.test").header("access-control-request-method", "PUT")
    };
    vec![
        bearer("claims as headers", "/output", &rich, "x-nested: deep"),
        bearer("claims of other types", "/output", &poor, "x-number: 12\n"),
        bearer("a big number", "/output", &big, "x-number: "),
        bearer("a negative number", "/output", &negative, "x-number: -3"),
        bearer("spoofed claim", "/output", &poor, "x-sub: you").header("x-sub", "root"),
        bearer("spoofed claim that the token does not have", "/output", &poor, "200 ").header("x-nested", "root"),
        bearer("spoofed payload", "/output", &poor, "200 ").header("x-payload", "root"),
        row("spoofed claim without a token", "/missing", "200 ").header("x-sub", "root").header("x-payload", "p"),
        bearer("spoofed claim with a bad token", "/lenient", &keys.stranger.token(&claims("")), "200 ")
            .header("x-sub", "root"),
        bearer("spoofed claim in other case", "/output", &poor, "200 ").header("X-SUB", "root"),
        bearer("padded payload", "/padded", &poor, "x-payload: "),
        preflight(row("preflight", "/plain", "OPTIONS /plain")),
        preflight(row("preflight with a spoofed claim", "/output", "OPTIONS /output")).header("x-sub", "root"),
        row("no preflight: no origin", "/plain", "Jwt is missing")
            .method("OPTIONS")
            .header("access-control-request-method", "PUT"),
        row("no preflight: no method", "/plain", "Jwt is missing").method("OPTIONS").header("origin", "http://b.test"),
        row("no preflight: another method", "/plain", "Jwt is missing")
            .header("origin", "http://b.test")
            .header("access-control-request-method", "PUT"),
    ]
}

fn several(keys: &Keys) -> Vec<Row> {
    let one = keys.rsa.token(&claims(""));
    let two = keys.two.token(r#"{"iss":"two"}"#);
    let bad = keys.stranger.token(&claims(""));
    let foreign = keys.two.token(r#"{"iss":"me"}"#);
    vec![
        bearer("any: the first", "/any", &one, "x-sub: you"),
        row("any: the second", "/any", "x-payload-two").header("x-two", two.clone()),
        bearer("any: both", "/any", &one, "200 ").header("x-two", two.clone()),
        row("any: none", "/any", "Jwt is missing"),
        bearer("any: a bad one", "/any", &bad, "Jwt verification fails"),
        bearer("any: an unknown issuer", "/any", &keys.rsa.token(r#"{"iss":"x"}"#), "Jwt issuer is not configured"),
        bearer("any: the first bad, the second good", "/any", &bad, "200 ").header("x-two", two.clone()),
        bearer("any: another's key", "/any", &foreign, "Jwks doesn't have key to match kid"),
        bearer("any: spoofed header of the other issuer", "/any", &one, "x-sub: you").header("x-payload-two", "root"),
        bearer("all: both", "/all", &one, "200 ").header("x-two", two.clone()),
        bearer("all: the first only", "/all", &one, "Jwt is missing"),
        row("all: the second only", "/all", "Jwt is missing").header("x-two", two.clone()),
        bearer("all: a bad one", "/all", &one, "Jwt verification fails")
            .header("x-two", keys.stranger.signed(r#"{"alg":"RS256"}"#, r#"{"iss":"two"}"#)),
        row("missing is allowed", "/missing", "200 "),
        bearer("missing is allowed, good", "/missing", &one, "200 "),
        bearer("missing is allowed, bad", "/missing", &bad, "Jwt verification fails"),
        bearer(
            "missing is allowed, unknown issuer",
            "/missing",
            &keys.rsa.token(r#"{"iss":"x"}"#),
            "Jwt issuer is not configured",
        ),
        row("failed is allowed, none", "/lenient", "200 "),
        bearer("failed is allowed, good", "/lenient", &one, "x-sub: you"),
        bearer("failed is allowed, bad", "/lenient", &bad, "200 "),
        row("Istio: none", "/istio", "200 "),
        bearer("Istio: the first", "/istio", &one, "x-sub: you"),
        row("Istio: the second", "/istio", "x-payload-two").header("x-two", two.clone()),
        bearer("Istio: the first bad", "/istio", &bad, "Jwt verification fails"),
        row("Istio: the second bad", "/istio", DENIED).header("x-two", bad.clone()),
        bearer("Istio: an unknown issuer", "/istio", &keys.rsa.token(r#"{"iss":"x"}"#), "Jwt issuer is not configured"),
        bearer("Istio: both", "/istio", &one, "200 ").header("x-two", two.clone()),
        row("each: none", "/each", "200 "),
        row("each: a good one", "/each", "x-payload-two").header("x-two", two.clone()),
        row("each: a bad one", "/each", DENIED)
            .header("x-two", keys.stranger.signed(r#"{"alg":"RS256"}"#, r#"{"iss":"two"}"#)),
    ]
}

fn fetched(keys: &Keys) -> Vec<Row> {
    let good = keys.two.token(&claims(""));
    vec![
        bearer("fetched keys", "/remote", &good, "200 "),
        bearer("fetched keys again", "/remote", &good, "200 "),
        bearer(
            "fetched keys, another's token",
            "/remote",
            &keys.rsa.token(&claims("")),
            "Jwks doesn't have key to match kid",
        ),
        bearer("keys of an issuer that has none", "/r-nothing", &good, "Jwks remote fetch is failed")
            .differs("the reason is told", "Jwks does not have [keys] field"),
        bearer("keys of an issuer that fails", "/r-broken", &good, "Jwks remote fetch is failed"),
        bearer("keys of an issuer that is away", "/r-gone", &good, "Jwks remote fetch is failed"),
        bearer(
            "keys of an issuer that is away, expired",
            "/r-gone",
            &keys.two.token(r#"{"iss":"me","exp":1}"#),
            "Jwt is expired",
        ),
        row("keys of an issuer that is away, no token", "/r-gone", "Jwt is missing"),
    ]
}
