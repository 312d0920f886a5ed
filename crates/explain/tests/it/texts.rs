//! The text for people, as golden files: read them after a change (`BLESS=1` accepts them).

use std::path::PathBuf;

use evenkeel_testkit::golden;

use crate::mesh::{ask, world};

#[test]
fn people_read_this() {
    let world = world("");
    let questions = [
        ("beta", "web.shop GET http://reviews/beta/x end-user:jason"),
        ("split", "web.shop GET http://reviews/x"),
        ("denied", "web.shop DELETE http://reviews/x"),
        ("admin", "web.shop GET http://reviews/admin/x"),
        ("strict", "legacy.shop GET http://web/"),
        ("outside", "outside GET https://shop.example.com:8443/reviews/1"),
        ("tcp", "web.shop tcp db.data:5432"),
        ("redirect", "web.shop GET http://reviews/old"),
        ("gone", "web.shop GET http://reviews/gone"),
    ];
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    for (name, question) in questions {
        let text = ask(&world, question).expect("an answer").to_text(false);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        golden::check(&folder.join(format!("{name}.txt")), &text);
    }
}
