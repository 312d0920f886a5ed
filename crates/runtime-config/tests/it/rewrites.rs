//! Path rewriting and redirect locations.

use std::sync::Arc;

use evenkeel_runtime_config::rewrite::{https_location, path_as_location};
use evenkeel_runtime_config::route::{Route, RouteAction};
use evenkeel_runtime_config::view::PlainRequest;

use crate::{input, routes};

fn compiled(matched: &str, action: &str) -> Arc<Route> {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&routes::rds_listener("t"))).unwrap();
    let text = format!(
        "name: t\nvirtual_hosts: [{{ name: h, domains: [\"*\"], routes: [{{ match: {matched}, {action} }}] }}]"
    );
    builder.set_route(&input::route(&text)).unwrap_or_else(|e| panic!("{e}"));
    builder.build().routes["t"].virtual_hosts[0].routes[0].clone()
}

#[test]
fn forwarded_paths() {
    for (matched, rewrite, path, expected) in [
        ("{ prefix: / }", "timeout: 0s", "/a?b", "/a?b"),
        ("{ prefix: /api/ }", "prefix_rewrite: /", "/api/x?y=/api/", "/x?y=/api/"),
        ("{ prefix: /api }", "prefix_rewrite: /v2", "/api", "/v2"),
        ("{ prefix: /API, case_sensitive: false }", "prefix_rewrite: /v2", "/api/x", "/v2/x"),
        ("{ path: /a }", "prefix_rewrite: /b", "/a?q", "/b?q"),
        ("{ path_separated_prefix: /api }", "prefix_rewrite: /v2", "/api/x", "/v2/x"),
        ("{ safe_regex: { regex: \"/a/.*\" } }", "prefix_rewrite: /b", "/a/c?q", "/b?q"),
        (
            "{ prefix: / }",
            r#"regex_rewrite: { pattern: { regex: "^/service/([^/]+)(/.*)$" }, substitution: "\\2/instance/\\1" }"#,
            "/service/foo/v1/api?x=/service/",
            "/v1/api/instance/foo?x=/service/",
        ),
        (
            "{ prefix: / }",
            r#"regex_rewrite: { pattern: { regex: "one" }, substitution: "two" }"#,
            "/xxx/one/yyy/one/zzz",
            "/xxx/two/yyy/two/zzz",
        ),
        (
            "{ prefix: / }",
            r#"regex_rewrite: { pattern: { regex: "b+" }, substitution: "<\\0\\\\>" }"#,
            "/abb",
            "/a<bb\\>",
        ),
        // What is left is a path, and nothing that a host could be read from.
        ("{ prefix: /app }", "prefix_rewrite: x", "/app/y", "/x/y"),
        (
            "{ prefix: / }",
            r#"regex_rewrite: { pattern: { regex: "^/app" }, substitution: "" }"#,
            "/apphttp://evil.example/",
            "/http://evil.example/",
        ),
        ("{ prefix: / }", r#"regex_rewrite: { pattern: { regex: "^/app" }, substitution: "" }"#, "/app?q", "/?q"),
    ] {
        let route = compiled(matched, &format!("route: {{ cluster: c, {rewrite} }}"));
        let RouteAction::Forward(action) = &route.action else { panic!("{route:?}") };
        let got = action.rewrite_path(&route.matches, path.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), expected, "{matched} {rewrite} {path}");
    }
}

#[test]
fn redirect_locations() {
    for (redirect, authority, path, expected) in [
        ("https_redirect: true", "a.com", "/x?y", "https://a.com/x?y"),
        ("https_redirect: true", "a.com:80", "/x", "https://a.com/x"),
        ("https_redirect: true", "a.com:8080", "/x", "https://a.com:8080/x"),
        ("https_redirect: true, port_redirect: 8443", "a.com:8080", "/", "https://a.com:8443/"),
        ("https_redirect: true", "[2001:db8::1]:80", "/", "https://[2001:db8::1]/"),
        ("https_redirect: true", "[2001:db8::1]", "/", "https://[2001:db8::1]/"),
        ("scheme_redirect: ftp", "a.com:80", "/", "ftp://a.com/"),
        ("host_redirect: b.com", "a.com:8080", "/x?y", "http://b.com/x?y"),
        ("host_redirect: b.com, port_redirect: 81", "a.com", "/x", "http://b.com:81/x"),
        ("path_redirect: /new", "a.com:81", "/old?y=1", "http://a.com:81/new?y=1"),
        ("path_redirect: /new, strip_query: true", "a.com", "/old?y=1", "http://a.com/new"),
        ("path_redirect: \"/new?z\", strip_query: true", "a.com", "/old?y=1", "http://a.com/new?z"),
        ("prefix_rewrite: /new/", "a.com", "/old/x?y", "http://a.com/new/x?y"),
        ("prefix_rewrite: /new/, strip_query: true", "a.com", "/old/x?y", "http://a.com/new/x"),
        (
            r#"regex_rewrite: { pattern: { regex: "^/old/(.*)$" }, substitution: "/\\1/new" }"#,
            "a.com",
            "/old/x?y",
            "http://a.com/x/new?y",
        ),
        (
            r#"regex_rewrite: { pattern: { regex: "^/old" }, substitution: "" }"#,
            "a.com",
            "/old@evil.example/",
            "http://a.com/@evil.example/",
        ),
        (
            r#"regex_rewrite: { pattern: { regex: "^/old" }, substitution: "" }"#,
            "a.com",
            "/old.evil.example/",
            "http://a.com/.evil.example/",
        ),
        (r#"regex_rewrite: { pattern: { regex: "^/old" }, substitution: "" }"#, "a.com", "/old?x", "http://a.com?x"),
    ] {
        let route = compiled("{ prefix: /old/ }", &format!("redirect: {{ {redirect} }}"));
        let RouteAction::Redirect(action) = &route.action else { panic!("{route:?}") };
        let got = action.location(&route.matches, &PlainRequest::new("GET", authority, path));
        assert_eq!(String::from_utf8_lossy(&got), expected, "{redirect} {authority} {path}");
        assert_eq!(action.status, 301);
    }
    let got = https_location(&PlainRequest::new("GET", "a.com:80", "/x?y"));
    assert_eq!(String::from_utf8_lossy(&got), "https://a.com/x?y");
}

/// A path is never another host, whatever browsers take for a slash.
#[test]
fn paths_as_locations() {
    for (path, expected) in [
        ("/a//b?c=//d", "/a//b?c=//d"),
        ("/", "/"),
        ("//evil.example/", "/.//evil.example/"),
        ("///evil.example/", "/.///evil.example/"),
        ("/\\evil.example/", "/./\\evil.example/"),
        ("\\/evil.example/", "/.\\/evil.example/"),
    ] {
        assert_eq!(String::from_utf8_lossy(&path_as_location(path.as_bytes())), expected, "{path}");
    }
}
