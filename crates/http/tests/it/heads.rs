//! Heads of HTTP/1 under rules that are not the defaults.

use evenkeel_http::{HeadError, HeadScan, Limits, RequestHead, RequestRules, Underscores, parse_request};

/// Path, authority and fields, and how many lines were left out.
fn parse(text: &str, rules: RequestRules) -> Result<(String, u32), HeadError> {
    let mut head = RequestHead::default();
    let info = parse_request(text.as_bytes(), &mut HeadScan::default(), rules, &mut head)?.expect("a whole head");
    let mut told = format!("{} {}", head.authority().escape_ascii(), head.path().escape_ascii());
    for (_, name, value) in head.headers.iter() {
        told += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
    }
    Ok((told, info.dropped))
}

#[test]
fn names_with_underscores_are_dropped_or_refused() {
    let limits = Limits { max_headers: 3, ..Limits::default() };
    let check = |underscores, fields: &str, expected: Result<(&str, u32), HeadError>| {
        let rules = RequestRules { limits, underscores, ..RequestRules::default() };
        let parsed = parse(&format!("GET /p_q HTTP/1.1\r\nHost: a_b\r\n{fields}\r\n"), rules);
        assert_eq!(
            parsed.as_ref().map(|(told, dropped)| (told.as_str(), *dropped)),
            expected.as_ref().copied(),
            "{fields}"
        );
    };
    let two = "x_a: 1\r\nb: c_d\r\n";
    check(Underscores::Allow, two, Ok(("a_b /p_q x_a=1 b=c_d", 0)));
    check(Underscores::Drop, two, Ok(("a_b /p_q b=c_d", 1)));
    check(Underscores::Reject, two, Err(HeadError::Underscore));
    check(Underscores::Reject, "b: c_d\r\n", Ok(("a_b /p_q b=c_d", 0)));
    // What is left out counts against no limit, and what is refused is refused for its first fault.
    let many = "x_a: 1\r\n".repeat(9);
    check(Underscores::Allow, &many, Err(HeadError::TooManyHeaders));
    check(Underscores::Drop, &many, Ok(("a_b /p_q", 9)));
    check(Underscores::Reject, &many, Err(HeadError::Underscore));
    // More than the parser has room for at first.
    let crowd = "x_a: 1\r\n".repeat(2000) + "b: c\r\n";
    check(Underscores::Allow, &crowd, Err(HeadError::TooManyHeaders));
    check(Underscores::Drop, &crowd, Ok(("a_b /p_q b=c", 2000)));
    check(Underscores::Drop, &(crowd.clone() + &"b: c\r\n".repeat(3)), Err(HeadError::TooManyHeaders));
    check(Underscores::Reject, &crowd, Err(HeadError::Underscore));
    check(Underscores::Drop, &"x_a: 1\r\n".repeat(10_000), Err(HeadError::TooLarge));
}

#[test]
fn urls_are_left_alone_where_they_are_refused() {
    let check = |target: &str, expected: Result<&str, HeadError>| {
        let rules = RequestRules { absolute_urls: false, ..RequestRules::default() };
        let parsed = parse(&format!("{target} HTTP/1.1\r\nHost: a\r\n\r\n"), rules).map(|(told, _)| told);
        assert_eq!(parsed.as_deref(), expected.as_ref().map(|told| *told), "{target}");
    };
    check("GET /p", Ok("a /p"));
    check("GET http://b/p", Ok("a http://b/p"));
    check("GET HTTPS://b", Ok("a HTTPS://b"));
    check("GET http://[/p#f", Ok("a http://[/p#f"));
    check("GET /p#f", Err(HeadError::Fragment));
    check("GET b/p", Err(HeadError::Malformed));
    check("OPTIONS *", Ok("a *"));
    check("GET *", Ok("a *"));
    check("CONNECT b:80", Ok("b:80 "));
    check("CONNECT *", Err(HeadError::InvalidTarget));
}

#[test]
fn an_asterisk_is_for_options_alone() {
    let check = |method: &str, expected: Result<&str, HeadError>| {
        let parsed = parse(&format!("{method} * HTTP/1.1\r\nHost: a\r\n\r\n"), RequestRules::default());
        assert_eq!(parsed.as_ref().map(|(told, _)| told.as_str()), expected.as_ref().map(|told| *told), "{method}");
    };
    check("OPTIONS", Ok("a *"));
    for method in ["GET", "HEAD", "POST", "CONNECT"] {
        check(method, Err(HeadError::InvalidTarget));
    }
}
