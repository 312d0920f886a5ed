//! The parameters of a request, as flags: Fortio's names, from the query, a form or JSON.
//!
//! Parameters that name files of this machine are refused, because whoever calls may be another than who started the server.

use clap::{Args as _, FromArgMatches as _};
use serde_json::Value;

use crate::flags::{RequestFlags, RunFlags};

/// A parameter with one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value; empty counts as absent, as in Fortio.
    pub value: String,
}

/// What a request asks for.
#[derive(Debug)]
pub struct RunRequest {
    /// The target, as it was written.
    pub url: String,
    /// Flags of requests.
    pub request: RequestFlags,
    /// Flags of the run.
    pub run: RunFlags,
    /// The response comes at once and does not wait for the run.
    pub is_async: bool,
    /// The result is written to the directory of results.
    pub saves: bool,
}

/// Kinds of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As the flag reads it.
    Text,
    /// A number; 0 is the flag's default, as in Fortio.
    Number,
    /// `on`, as of a form, or `true`.
    Switch,
}

/// Parameters that are flags of the same name.
const FLAGS: [(&str, Kind); 34] = [
    ("H", Kind::Text),
    ("X", Kind::Text),
    ("abort-on", Kind::Number),
    ("c", Kind::Number),
    ("calc-qps", Kind::Switch),
    ("compression", Kind::Switch),
    ("connection-reuse", Kind::Text),
    ("content-type", Kind::Text),
    ("grpc", Kind::Switch),
    ("grpc-ping-delay", Kind::Text),
    ("h2", Kind::Switch),
    ("healthservice", Kind::Text),
    ("http1.0", Kind::Switch),
    ("https-insecure", Kind::Switch),
    ("jitter", Kind::Switch),
    ("keepalive", Kind::Switch),
    ("labels", Kind::Text),
    ("latency-from-sent", Kind::Switch),
    ("log-errors", Kind::Switch),
    ("n", Kind::Number),
    ("nocatchup", Kind::Switch),
    ("offset", Kind::Text),
    ("p", Kind::Text),
    ("payload", Kind::Text),
    ("payload-size", Kind::Number),
    ("ping", Kind::Switch),
    ("r", Kind::Number),
    ("resolve", Kind::Text),
    ("resolve-ip-type", Kind::Text),
    ("s", Kind::Number),
    ("stdclient", Kind::Switch),
    ("timeout", Kind::Text),
    ("udp-timeout", Kind::Text),
    ("uniform", Kind::Switch),
];

/// Reads a query or a form.
pub fn from_query(query: &str) -> Vec<Parameter> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.map(|(name, value)| Parameter { name: name.into_owned(), value: value.into_owned() }).collect()
}

/// Reads JSON: the object at `path` (`.metadata`; `.` is all), whose values are texts, numbers and booleans; `headers` is a list.
///
/// # Errors
/// It is no such JSON; says what is wrong.
pub fn from_json(body: &[u8], path: &str) -> Result<Vec<Parameter>, String> {
    let mut value: &Value = &serde_json::from_slice(body).map_err(|error| format!("the body is no JSON: {error}"))?;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        value = value.get(name).ok_or_else(|| format!("jsonPath: {name:?} is not in the body"))?;
    }
    let fields = value.as_object().ok_or("the body's JSON is no object")?;
    let mut parameters = Vec::new();
    for (name, value) in fields {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let name = if name == "headers" { "H" } else { name };
        for value in values {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
                Value::Null => continue,
                _ => return Err(format!("{name:?}: expected a text, a number or a boolean")),
            };
            parameters.push(Parameter { name: name.to_owned(), value });
        }
    }
    Ok(parameters)
}

/// Makes flags of parameters. Of those that may be there once, the first counts.
///
/// # Errors
/// A parameter is unknown or its value is wrong; says which.
pub fn read(parameters: &[Parameter]) -> Result<RunRequest, String> {
    let (mut arguments, mut seen) = (vec!["load".to_owned()], Vec::new());
    let (mut url, mut is_async, mut saves) = (String::new(), false, false);
    for Parameter { name, value } in parameters {
        if value.is_empty() || name != "H" && seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match name.as_str() {
            "url" => value.trim().clone_into(&mut url),
            "async" => is_async = switch(name, value)?,
            "save" => saves = switch(name, value)?,
            "jsonPath" => {}
            "qps" => arguments.extend(qps(value)),
            "t" => arguments.push(format!("-t={}", if value == "on" { "0" } else { value })),
            "runner" => arguments.extend(runner(value)?),
            name => arguments.extend(flag(name, value)?),
        }
    }
    if url.is_empty() {
        return Err("URL is required".to_owned());
    }
    // As Fortio does for runs that it was asked for by REST.
    arguments.push("--allow-initial-errors".to_owned());
    let command = RunFlags::augment_args(RequestFlags::augment_args(clap::Command::new("load")));
    let matches = command.try_get_matches_from(arguments).map_err(|error| reason(&error))?;
    let request = RequestFlags::from_arg_matches(&matches).map_err(|error| reason(&error))?;
    let run = RunFlags::from_arg_matches(&matches).map_err(|error| reason(&error))?;
    Ok(RunRequest { url, request, run, is_async, saves })
}

/// The first line of an error about flags.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(format!("{name}={value:?}: expected on or off")),
    }
}

/// The rate: less than 0 or `max` is without limit; 0 is the default, as in Fortio.
fn qps(value: &str) -> Option<String> {
    let rate: Option<f64> = value.parse().ok();
    match rate {
        Some(0.0) => None,
        Some(rate) if rate < 0.0 => Some("--qps=max".to_owned()),
        _ => Some(format!("--qps={value}")),
    }
}

/// Fortio's kind of run; that of TCP and UDP is said by the target, too.
fn runner(value: &str) -> Result<Option<String>, String> {
    match value {
        "grpc" => Ok(Some("--grpc".to_owned())),
        "http" | "tcp" | "udp" => Ok(None),
        _ => Err(format!("runner={value:?}: expected http, grpc, tcp or udp")),
    }
}

fn flag(name: &str, value: &str) -> Result<Option<String>, String> {
    let Some((_, kind)) = FLAGS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = FLAGS.iter().map(|(known, _)| *known).collect();
        return Err(format!(
            "unknown parameter {name:?}: expected url, qps, t, runner, async, save, jsonPath, {}",
            known.join(", ")
        ));
    };
    let dashes = if name.len() == 1 { "-" } else { "--" };
    Ok(match kind {
        Kind::Number if value.parse() == Ok(0.0) => None,
        Kind::Text | Kind::Number => Some(format!("{dashes}{name}={value}")),
        Kind::Switch => Some(format!("{dashes}{name}={}", switch(name, value)?)),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flags::Rate;

    #[test]
    fn query_and_json_ask_for_the_same() {
        let query = "url=http%3A%2F%2Flocalhost%3A8080%2F&qps=-1&t=10s&c=2&n=&p=50%2C99&H=a%3Ab&H=c%3A+d&h2=on&save=on\
                     &payload=-x&labels=a+b&url=ignored";
        let json =
            br#"{"metadata": {"load": {"url": "http://localhost:8080/", "qps": -1, "t": "10s", "c": 2, "n": null,
            "p": "50,99", "headers": ["a:b", "c: d"], "h2": true, "save": "on", "payload": "-x", "labels": "a b"}}}"#;
        for parameters in [from_query(query), from_json(json, ".metadata.load").expect("JSON")] {
            let wanted = read(&parameters).expect("parameters");
            let RunRequest { url, request, run, is_async, saves } = &wanted;
            assert_eq!((url.as_str(), *is_async, *saves), ("http://localhost:8080/", false, true));
            assert_eq!(
                (run.qps, run.duration, run.connections, run.exactly),
                (Rate::Max, Duration::from_secs(10), 2, 0)
            );
            assert_eq!((&run.percentiles, run.allow_initial_errors), (&vec![50.0, 99.0], true));
            assert_eq!(request.headers, ["a:b", "c: d"]);
            assert_eq!(
                (request.h2, request.payload.as_deref(), run.labels.as_deref()),
                (true, Some("-x"), Some("a b"))
            );
        }
    }

    #[test]
    fn zero_is_the_default_as_in_fortio() {
        let wanted = read(&from_query("url=a&qps=0&c=0&n=0&r=0&t=on&jitter=off")).expect("parameters");
        let run = wanted.run;
        assert_eq!((run.qps, run.connections, run.exactly, run.resolution), (Rate::PerSecond(8.0), 4, 0, 0.001));
        assert_eq!((run.duration, run.jitter), (Duration::ZERO, false));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |query: &str, expected: &str| {
            let error = read(&from_query(query)).expect_err(query);
            assert!(error.contains(expected), "{query}: {error}");
        };
        check("qps=1", "URL is required");
        check("url=a&nosuch=1", "unknown parameter \"nosuch\"");
        check("url=a&jitter=maybe", "jitter=\"maybe\": expected on or off");
        check("url=a&t=5", "invalid duration");
        check("url=a&runner=x", "expected http, grpc, tcp or udp");
        check("url=a&qps=NaN", "finite");
        // Files of this machine are nobody's but its user's.
        for name in ["payload-file", "cacert", "cert", "key", "json", "data-dir", "a", "gomaxprocs"] {
            check(&format!("url=a&{name}=/etc/passwd"), "unknown parameter");
        }
        for (body, path, expected) in [
            ("{", ".", "no JSON"),
            ("[]", ".", "no object"),
            (r#"{"a": 1}"#, ".b", "\"b\" is not in the body"),
            (r#"{"url": {}}"#, ".", "\"url\": expected"),
        ] {
            let error = from_json(body.as_bytes(), path).expect_err(body);
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
