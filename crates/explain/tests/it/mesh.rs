//! The mesh that is asked about.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_explain::question::parse_header;
use evenkeel_explain::{Answer, Caller, Question, QuestionError, Target, World};

/// The mesh of `mesh.yaml`, and further documents in `more.yaml`.
pub fn world(more: &str) -> World {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/mesh.yaml");
    let text = std::fs::read_to_string(path).expect("a file");
    let files: Vec<(Arc<str>, Arc<str>)> = vec![("mesh.yaml".into(), text.into()), ("more.yaml".into(), more.into())];
    let (objects, found) = evenkeel_api::load(&files);
    assert!(!found.has_errors(), "{found}");
    World::new(objects, files.into_iter().collect::<BTreeMap<_, _>>())
}

/// A question in words: `FROM METHOD URL [NAME:VALUE]…`, `FROM tcp HOST:PORT`, `FROM tls SNI HOST:PORT`.
pub fn question(text: &str) -> Question {
    let words: Vec<&str> = text.split(' ').collect();
    let from = match words[0] {
        "outside" => Caller::Outside,
        name => Caller::parse(name),
    };
    let target = match words[1] {
        "tcp" => Target::parse_tcp(words[2], None),
        "tls" => Target::parse_tcp(words[3], Some(words[2].to_owned())),
        method => {
            let headers = words[3..].iter().map(|text| parse_header(text)).collect::<Result<_, _>>().expect("headers");
            Target::parse_url(words[2], method, headers)
        }
    };
    Question { from, target: target.expect("a target"), random: 0 }
}

/// Asks.
pub fn ask(world: &World, text: &str) -> Result<Answer, QuestionError> {
    world.ask(&question(text))
}
