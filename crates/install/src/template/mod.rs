//! Templates of a chart: Go's template language with the functions that this chart uses. Values go into them as JSON, so no text of
//! a user's value can change the structure of an object.

mod functions;
mod json;

use gtmpl::{Context, Template};
use serde_json::Value;

use crate::chart;

/// Renders one template of the chart with the others' definitions.
pub(crate) fn render(template: &chart::Template, shared: &[chart::Template], root: &Value) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("templates/{}: {error}", template.name);
    let mut engine = Template::with_name(template.name);
    functions::ALL.iter().for_each(|(name, function)| engine.add_func(name, *function));
    for other in shared {
        engine.add_template(other.name, other.text).map_err(|error| failed(&error))?;
    }
    engine.parse(template.text).map_err(|error| failed(&error))?;
    engine.render(&Context::from(json::to_template(root))).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn functions_mean_what_helm_means() {
        let check = |text: &'static str, expected: Result<&str, &str>| {
            let template = chart::Template { name: "test", text };
            let root =
                json!({"Values": {"no": "", "name": "a\"b", "list": [1, "x"], "map": {"b": 1, "a": true}, "n": 3}});
            match (render(&template, &[], &root), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        };
        check("{{ .Values.no | default \"x\" }}", Ok("x"));
        check("{{ .Values.absent | default \"x\" }}", Ok("x"));
        check("{{ .Values.n | default 4 }}", Ok("3"));
        check("{{ .Values.name | quote }}", Ok("\"a\\\"b\""));
        check("{{ .Values.n | toString | quote }}", Ok("\"3\""));
        check("{{ .Values.list | toJson }}", Ok("[1,\"x\"]"));
        check("{{ .Values.map | toJson }}", Ok("{\"a\":true,\"b\":1}"));
        check("{{ dict \"a\" 1 | toJson }}", Ok("{\"a\":1}"));
        check("{{ merge (dict) (dict \"a\" 1) (dict \"a\" 2 \"b\" 3) | toJson }}", Ok("{\"a\":1,\"b\":3}"));
        check(
            "{{ range (keys .Values.map | sortAlpha) }}{{ . }}={{ index $.Values.map . }} {{ end }}",
            Ok("a=true b=1 "),
        );
        check("{{ if has \"x\" .Values.list }}yes{{ end }}", Ok("yes"));
        check("{{ if not (has \"y\" .Values.list) }}no{{ end }}", Ok("no"));
        check("{{ fail \"because\" }}", Err("because"));
        check("{{ dict \"a\" }}", Err("dict"));
        check("{{ nothing }}", Err("nothing"));
    }
}
