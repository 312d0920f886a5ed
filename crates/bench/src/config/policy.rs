//! An authorization policy of many rules, as the control plane writes it.

use std::fmt::Write;

/// The client's identity: in its certificate, and in the one rule that lets it in.
pub const CLIENT_IDENTITY: &str = "spiffe://cluster.local/ns/bench/sa/client";

/// The HTTP filter with `count` ALLOW rules. Each names one caller, two methods and a path; only the last in the order of names
/// fits the load, so that an evaluator that goes through them has to try all.
pub fn http_filter(count: usize) -> String {
    let mut text = String::from(
        r#"
          - name: envoy.filters.http.rbac
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
              rules:
                action: ALLOW
                policies:"#,
    );
    for rule in 0..count {
        let last = rule + 1 == count;
        let caller = if last { CLIENT_IDENTITY.to_owned() } else { format!("{CLIENT_IDENTITY}-{rule}") };
        let path = if last { "exact: /hello".to_owned() } else { format!("prefix: /api/v1/resource-{rule}/") };
        let _ = write!(
            text,
            r#"
                  "ns[bench]-policy[callers]-rule[{rule:03}]":
                    permissions:
                    - and_rules:
                        rules:
                        - or_rules:
                            rules:
                            - header: {{name: ":method", string_match: {{exact: GET}}}}
                            - header: {{name: ":method", string_match: {{exact: POST}}}}
                        - or_rules: {{rules: [{{url_path: {{path: {{{path}}}}}}}]}}
                    principals:
                    - and_ids:
                        ids:
                        - or_ids: {{ids: [{{authenticated: {{principal_name: {{exact: "{caller}"}}}}}}]}}"#
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::http_filter;

    #[test]
    fn only_the_last_rule_lets_the_load_in() {
        let text = http_filter(100);
        assert_eq!(text.matches("-rule[").count(), 100);
        let at = text.find("exact: /hello").unwrap();
        assert!(text.find("-rule[099]").unwrap() < at);
        assert_eq!(text.matches("exact: /hello").count(), 1);
    }
}
