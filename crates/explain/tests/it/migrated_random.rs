//! Random VirtualServices: what is written for them decides alike, or they remain.

use evenkeel_analyze::routes::RouteOptions;

use crate::migrated::{agree, moved};

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

fn condition(numbers: &mut Numbers) -> String {
    let mut fields = Vec::new();
    if !numbers.one_in(4) {
        let kinds = [
            "exact: /x",
            "exact: /x/y",
            "prefix: /x",
            "prefix: /x/",
            "prefix: /",
            "regex: '/x/.*'",
            "exact: /y",
            "prefix: /y",
            "exact: '/a b'",
        ];
        fields.push(format!("uri: {{{}}}", numbers.of(&kinds)));
        if numbers.one_in(6) && !fields[0].contains("regex") {
            fields.push("ignoreUriCase: true".to_owned());
        }
    }
    if numbers.one_in(3) {
        fields.push(format!(
            "headers: {{k: {{{}}}}}",
            numbers.of(&["exact: v", "prefix: v", "regex: 'v|w'", "exact: w", ""])
        ));
    }
    if numbers.one_in(5) {
        fields.push(format!("method: {{{}}}", numbers.of(&["exact: GET", "exact: PUT", "regex: GET|PUT"])));
    }
    if numbers.one_in(6) {
        fields
            .push(format!("queryParams: {{q: {{{}}}}}", numbers.of(&["exact: '1'", "exact: '2'", "regex: '1.*'", ""])));
    }
    if numbers.one_in(8) {
        fields.push(format!("port: {}", numbers.of(&["80", "8080"])));
    }
    if numbers.one_in(12) {
        fields.push("withoutHeaders: {k: {exact: v}}".to_owned());
    }
    format!("{{{}}}", fields.join(", "))
}

fn route(numbers: &mut Numbers) -> String {
    let mut fields = Vec::new();
    let count = numbers.below(3);
    let matches: Vec<String> = (0..count).map(|_| condition(numbers)).collect();
    let has_regex = matches.iter().any(|condition| condition.contains("regex: '/"));
    if !matches.is_empty() {
        fields.push(format!("match: [{}]", matches.join(", ")));
    }
    if numbers.one_in(4) {
        fields.push(format!(
            "headers: {{request: {{{}}}}}",
            numbers.of(&["set: {k: w}", "add: {z: '1'}", "remove: [k]"])
        ));
    }
    if numbers.one_in(6) {
        let code = numbers.of(&[
            "",
            ", redirectCode: 308",
            ", scheme: https",
            ", port: 8443",
            ", derivePort: FROM_REQUEST_PORT",
        ]);
        let target =
            numbers.of(&["uri: /new", "authority: b.test", "prefixRewrite: /p/", "uri: /new, authority: b.test"]);
        let target = if has_regex { "uri: /new" } else { target };
        fields.push(format!("redirect: {{{target}{code}}}"));
        return format!("{{{}}}", fields.join(", "));
    }
    if numbers.one_in(4) && !has_regex {
        fields.push(format!(
            "rewrite: {{{}}}",
            numbers.of(&["uri: /z", "uri: /z/", "authority: c.test", "uri: /, authority: c.test"])
        ));
    }
    if numbers.one_in(4) {
        fields.push(format!("timeout: {}", numbers.of(&["1s", "0s", "250ms"])));
    }
    if numbers.one_in(5) {
        let retries = ["attempts: 0", "attempts: 3", "attempts: 1, perTryTimeout: 100ms", "attempts: 2, retryOn: 5xx"];
        fields.push(format!("retries: {{{}}}", numbers.of(&retries)));
    }
    if numbers.one_in(8) {
        fields.push("mirrors: [{destination: {host: a}, percentage: {value: 40}}]".to_owned());
    }
    let destinations = [
        "{destination: {host: a}}",
        "{destination: {host: b, port: {number: 8080}}}",
        "{destination: {host: b}}",
        "{destination: {host: far.data.svc.cluster.local, port: {number: 80}}}",
        "{destination: {host: a}, weight: 20}, {destination: {host: b, port: {number: 80}}, weight: 80}",
        "{destination: {host: a}, weight: 0}, {destination: {host: b, port: {number: 80}}, weight: 5, headers: {request: {set: {m: n}}}}",
        "{destination: {host: maps.example.com}}",
    ];
    fields.push(format!("route: [{}]", numbers.of(&destinations)));
    format!("{{{}}}", fields.join(", "))
}

fn service(numbers: &mut Numbers, name: &str) -> String {
    let places = [
        "hosts: [a]",
        "hosts: [b]",
        "hosts: [a, b]",
        "hosts: [far.data.svc.cluster.local]",
        "hosts: [far.data.svc.cluster.local], exportTo: ['.']",
        "hosts: [a.example.com], gateways: [edge/front]",
        "hosts: ['*.example.com'], gateways: [edge/front]",
        "hosts: ['*'], gateways: [edge/front]",
        "hosts: [b.example.com, maps.example.com], gateways: [edge/front]",
        "hosts: [maps.example.com]",
    ];
    let place = numbers.of(&places);
    let routes: Vec<String> = (0..1 + numbers.below(3)).map(|_| route(numbers)).collect();
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{place}, http: [{}]}}\n",
        routes.join(", ")
    )
}

fn calls() -> Vec<String> {
    let places = [
        "web.shop M http://a",
        "web.shop M http://b",
        "web.shop M http://b:8080",
        "batch.data M http://far",
        "web.shop M http://far.data",
        "web.shop M http://maps.example.com",
        "outside M http://a.example.com",
        "outside M http://b.example.com",
    ];
    let requests =
        ["GET /", "GET /x", "PUT /x/y k:v", "GET /x/y?q=1", "GET /xy k:w", "GET /y?q=12 k:v1", "PUT /X", "GET /y"];
    let mut all = Vec::new();
    for place in places {
        for request in requests {
            let (method, rest) = request.split_once(' ').expect("a method");
            let (path, header) = rest.split_once(' ').map_or((rest, None), |(path, header)| (path, Some(header)));
            let header = header.map(|header| format!(" {header}")).unwrap_or_default();
            all.push(format!("{}{path}{header}", place.replace('M', method)));
        }
    }
    all
}

#[test]
fn what_is_written_decides_alike() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let count = number("MIGRATE_CASES").unwrap_or_else(|| evenkeel_testkit::cases(30, 1000));
    let first = number("MIGRATE_FIRST").unwrap_or_default() as u64;
    let calls = calls();
    let mut replaced = 0;
    for seed in first..first + count as u64 {
        let mut numbers = Numbers(seed * 7919 + 1);
        let mut text = service(&mut numbers, "one");
        if numbers.one_in(3) {
            text.push_str(&service(&mut numbers, "two"));
        }
        let moved = moved(&text, &RouteOptions::default());
        let is_service = |object: &&evenkeel_base::ObjectRef| object.kind == "VirtualService";
        let own = moved.written.replaced.iter().filter(is_service).count();
        replaced += own;
        assert!(
            moved.written.findings.iter().all(|finding| finding.severity < evenkeel_base::Severity::Error),
            "{}\n{text}",
            moved.written.findings
        );
        if own == 0 {
            continue;
        }
        agree(&moved, &calls, &[0, 50], &format!("seed {seed}\n{text}"));
    }
    // Otherwise it says nothing.
    assert!(replaced > count / 4, "{replaced} of {count}");
}
