//! Expressions, and what they give.

use evenkeel_testkit::Random;

use crate::{Attribute, Attributes, CompileError, Expression, Failure, MAX_BYTES, Value};

/// A request.
struct Request;

impl Attributes for Request {
    fn attribute(&self, attribute: Attribute) -> Option<Value> {
        match (attribute.root, attribute.field) {
            ("request", Some("path")) => Some(Value::text("/a/b?c=d")),
            ("request", Some("method")) => Some(Value::text("GET")),
            ("request", Some("headers")) => {
                Some(Value::map([("x-a", Value::text("1")), ("user-agent", Value::text("curl"))]))
            }
            ("request", Some("duration")) => Some(Value::Duration(1_500_000_000)),
            ("request", Some("time")) => Some(Value::Time(1_700_000_000_000_000_000)),
            ("response", Some("code")) => Some(Value::Int(503)),
            ("filter_state", None) => Some(Value::map([("a", Value::map([("app", Value::text("web"))]))])),
            _ => None,
        }
    }
}

fn evaluate(text: &str) -> Result<Value, Failure> {
    Expression::compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).evaluate(&Request)
}

#[test]
fn expressions_have_values() {
    let check = |text: &str, expected: &str| {
        let found = evaluate(text).map(|value| value.to_text()).unwrap_or_else(|failure| failure.to_string());
        assert_eq!(found, expected, "{text}");
    };
    check("1 + 2 * 3", "7");
    check("7 / 2 == 3 && 7 % 2 == 1", "true");
    check("1u + 2u", "3");
    check("1.5 * 2.0", "3");
    check("-(3) < 1u", "true");
    check("'a' + 'b'", "ab");
    check("[1, 2] + [3]", "[1, 2, 3]");
    check("{'a': 1}['a']", "1");
    check("{'a': 1}.a == 1.0", "true");
    check("[1, 2][1]", "2");
    check("'x-a' in request.headers", "true");
    check("request.headers['user-agent'].startsWith('cu')", "true");
    check("request['headers']['x-a']", "1");
    check("response.code >= 500 ? 'failed' : 'fine'", "failed");
    check("request.path.matches('^/a/[a-z]')", "true");
    check("matches(request.path, 'z')", "false");
    check("has(request.headers.cookie)", "false");
    check("has(response.grpc_status) || has(request.path)", "true");
    check("filter_state['a'].app", "web");
    check("[1, 2, 3].filter(x, x > 1).map(x, x * 2)", "[4, 6]");
    check("[1, 2].exists(x, x == 2) && [1, 2].all(x, x > 0) && [1, 2].exists_one(x, x == 1)", "true");
    check("request.headers.exists(name, name == 'x-a')", "true");
    check("[[1], [2]].map(x, x.map(y, y + 1))", "[[2], [3]]");
    check("size('äb') + size([1]) + size({})", "3");
    check("string(1) + string(true) + string(1.5)", "1true1.5");
    check("int('12') + int(3u) + int(2.9)", "17");
    check("request.duration > duration('1s')", "true");
    check("request.duration - duration('1h1m500ms')", "-3659s");
    check("request.time + duration('1s') > request.time", "true");
    check("request.duration.getMilliseconds()", "1500");
    check("request.time > timestamp('2023-11-14T22:13:19.5Z')", "true");
    check("request.time - timestamp('2023-11-14T22:13:10Z')", "10s");
    check("timestamp(request.time) == timestamp(1700000000)", "true");
    check("[request.time.getFullYear(), request.time.getMonth(), request.time.getDate()]", "[2023, 10, 14]");
    check("[request.time.getDayOfMonth(), request.time.getDayOfWeek(), request.time.getDayOfYear()]", "[13, 2, 317]");
    check("[request.time.getHours(), request.time.getMinutes(), request.time.getSeconds()]", "[22, 13, 20]");
    check("duration('90m').getHours() + duration('90m').getMinutes()", "91");
    check("'ABC'.lowerAscii()", "abc");
    // Sides of which one decides need no value of the other.
    check("response.grpc_status == 1 || true", "true");
    check("false && response.grpc_status == 1", "false");
}

#[test]
fn what_has_no_value_says_why() {
    let check = |text: &str, expected: &str| {
        assert_eq!(evaluate(text).unwrap_err().to_string(), expected, "{text}");
    };
    check("response.grpc_status", "there is no `grpc_status`");
    check("request.headers['no']", "there is no `no`");
    check("[1][7]", "there is no `7`");
    check("1 + 'a'", "`+` has no meaning for int and string");
    check("9223372036854775807 + 1", "a number leaves its range in `+`");
    check("1 / 0", "a number leaves its range in `/`");
    check("-9223372036854775808 / -1", "a number leaves its range in `/`");
    check("timestamp('yesterday')", "the text is no value of the type that `timestamp` makes");
    check("int('a')", "the text is no value of the type that `int` makes");
    check("1 ? 2 : 3", "`?:` has no meaning for int");
    check("1 && true", "`&&` has no meaning for int and bool");
    let nested = "[1,2,3,4,5,6,7,8,9,0]";
    let long = format!("{nested}.all(a, {nested}.all(b, {nested}.all(c, {nested}.all(d, {nested}.all(e, true)))))");
    check(&long, "it takes more than 20000 steps");
    assert!(!Expression::compile("response.grpc_status == 1").unwrap().holds(&Request));
    assert!(!Expression::compile("'text'").unwrap().holds(&Request));
}

#[test]
fn what_is_wrong_has_a_place() {
    let check = |text: &str, place: (usize, usize), message: &str| {
        let CompileError { message: found, line, column } = Expression::compile(text).unwrap_err();
        assert!(found.contains(message), "{text}: {found}");
        assert_eq!((line, column), place, "{text}: {found}");
    };
    check("request.path ==", (1, 16), "");
    check("1 +\n+", (2, 1), "");
    check("nothing == 1", (1, 1), "`nothing` is no attribute; there are request,");
    check("true &&\n  request.size2 == 1", (2, 11), "`request` has no `size2`");
    check("true || 'a'.reverse()", (1, 13), "there is no function `reverse` with 1 arguments");
    check("'a'.matches('(')", (1, 5), "regular expression");
    check("'a'.matches(request.path)", (1, 5), "must be a literal");
    check(&format!("'{}'", "a".repeat(MAX_BYTES)), (1, 1), "4096 bytes");
    assert!(Expression::compile("").is_err());
    assert!(Expression::compile(&format!("{}1{}", "(".repeat(1000), ")".repeat(1000))).is_err());
    assert!(Expression::compile(&"!".repeat(3000)).is_err());
    assert!(Expression::compile(&["1"; 1500].join("+")).is_err());
}

#[test]
fn no_text_makes_it_panic() {
    const PARTS: [&str; 34] = [
        "request",
        ".",
        "headers",
        "[",
        "]",
        "(",
        ")",
        "'a'",
        "\"",
        "'",
        "1",
        "-",
        "+",
        "9223372036854775807",
        "u",
        "==",
        "&&",
        "||",
        "!",
        "?",
        ":",
        "{",
        "}",
        ",",
        "map",
        "x",
        "in",
        "has",
        "matches",
        "\\",
        "é",
        "\n",
        "0x",
        "1e999",
    ];
    let mut random = Random::new(7);
    for _ in 0..evenkeel_testkit::cases(20_000, 2_000_000) {
        let parts: String = (0..random.below(12)).map(|_| PARTS[random.below(PARTS.len())]).collect();
        if let Ok(expression) = Expression::compile(&parts) {
            _ = expression.evaluate(&Request);
        }
    }
}
