//! Reading a file with any content ends with values or findings.

use proptest::prelude::*;

/// Words that get deep into the decoder.
const WORDS: &[&str] = &[
    "apiVersion: ",
    "kind: ",
    "metadata: ",
    "spec: ",
    "v1\n",
    "apps/v1\n",
    "networking.istio.io/v1\n",
    "security.istio.io/v1\n",
    "VirtualService\n",
    "Sidecar\n",
    "egress: ",
    "Gateway\n",
    "Service\n",
    "Deployment\n",
    "AuthorizationPolicy\n",
    "List\n",
    "items: ",
    "\n  name: a\n",
    "\n  ",
    "\n    ",
    "- ",
    "http: ",
    "match: ",
    "route: ",
    "destination: ",
    "host: ",
    "hosts: ",
    "servers: ",
    "port: ",
    "number: ",
    "80",
    "-1",
    "99999999999999999999",
    "{}",
    "[]",
    "{",
    "}",
    "[",
    "]",
    ": ",
    "\"",
    "'",
    "*",
    "&a ",
    "*a",
    "<<: ",
    "|\n",
    "true",
    "null",
    "rules: ",
    "when: ",
    "key: ",
    "é",
    "\t",
    "\n---\n",
    "#",
];

fn load(text: &str) {
    let (objects, diagnostics) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    let sources = evenkeel_base::Sources::from_iter([("a.yaml", text)]);
    diagnostics.render(&sources, true);
    drop(objects);
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "\\PC*") {
        load(&text);
    }

    #[test]
    fn any_words_are_survived(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        load(&words.concat());
    }

    #[test]
    fn any_damage_is_survived(at in 0usize..2000, cut in 0usize..40, insert in prop::sample::select(WORDS)) {
        let text = include_str!("../golden/everything.yaml");
        let start = (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        let end = (start..=(start + cut).min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(start);
        load(&format!("{}{insert}{}", &text[..start], &text[end..]));
    }
}
