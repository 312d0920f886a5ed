//! The mesh that the questions are about.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_explain::question::parse_header;
use evenkeel_explain::{Answer, Caller, Question, QuestionError, Target, World};
use evenkeel_filters::explain::query::{QueriedCall, QueriedHead, RecentRequest};

/// The mesh of `mesh.yaml`, and further documents in `more.yaml`.
pub fn world(more: &str) -> World {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/mesh.yaml");
    let text = std::fs::read_to_string(path).expect("a file");
    let files: Vec<(Arc<str>, Arc<str>)> = vec![("mesh.yaml".into(), text.into()), ("more.yaml".into(), more.into())];
    let (objects, found) = evenkeel_api::load(&files);
    assert!(!found.has_errors(), "{found}");
    World::new(objects, files.into_iter().collect::<BTreeMap<_, _>>())
}

/// A question in words: `FROM METHOD URL [NAME:VALUE]…`, `FROM tcp HOST:PORT`, `FROM udp HOST:PORT`, `FROM tls SNI HOST:PORT`.
pub fn question(text: &str) -> Question {
    let words: Vec<&str> = text.split(' ').collect();
    let from = match words[0] {
        "outside" => Caller::Outside,
        name => Caller::parse(name),
    };
    let target = match words[1] {
        "tcp" => Target::parse_tcp(words[2], None),
        "udp" => Target::parse_udp(words[2]),
        "tls" => Target::parse_tcp(words[3], Some(words[2].to_owned())),
        method => {
            let headers = words[3..].iter().map(|text| parse_header(text)).collect::<Result<_, _>>().expect("headers");
            Target::parse_url(words[2], method, headers)
        }
    };
    Question { from, target: target.expect("a target"), socket: None, random: 0 }
}

/// Asks.
pub fn ask(world: &World, text: &str) -> Result<Answer, QuestionError> {
    world.ask(&question(text))
}

/// A recent request at a Pod of the mesh: `METHOD URL [NAME:VALUE]…` in words, sent to an address.
pub fn recent(id: &str, words: &str, (direction, destination): (&str, &str)) -> RecentRequest {
    let words: Vec<&str> = words.split(' ').collect();
    let headers: Vec<(String, String)> = words[2..].iter().map(|text| parse_header(text).expect("a header")).collect();
    let (host, path) = words[1].trim_start_matches("http://").split_once('/').expect("a path");
    let secret = |name: &&String| matches!(name.as_str(), "authorization" | "cookie");
    let request = QueriedHead {
        method: words[0].to_owned(),
        authority: host.to_owned(),
        path: format!("/{path}"),
        scheme: "http".to_owned(),
        redacted: headers.iter().map(|(name, _)| name).filter(secret).cloned().collect(),
        headers,
        left_out: 0,
    };
    let call = QueriedCall {
        source: Some("10.244.0.1:40000".parse().expect("an address")),
        destination: Some(destination.parse().expect("an address")),
        request: Some(request),
        ..QueriedCall::default()
    };
    let (id, direction) = (id.to_owned(), direction.to_owned());
    RecentRequest { id, direction, call, started_us: 1_700_000_000_000_000, ..RecentRequest::default() }
}

/// The mesh with objects in the place of its own of the same kind and name.
pub fn with(change: &str) -> World {
    let before = world("");
    let name: Arc<str> = "change.yaml".into();
    let (objects, found) = evenkeel_api::load(&[(name.clone(), change.into())]);
    assert!(!found.has_errors(), "{found}");
    let is_new = |object: &evenkeel_api::Object| {
        objects
            .iter()
            .any(|own| (own.kind(), &own.name, &own.namespace) == (object.kind(), &object.name, &object.namespace))
    };
    let others = before.objects().iter().filter(|object| !is_new(object)).cloned();
    World::new(others.chain(objects.clone()).collect(), [(name, change.into())].into_iter().collect())
}
