//! Expressions mean what they mean to another reader of RE2's dialect.

use evenkeel_base::re2::Regex;
use evenkeel_testkit::re2::{Question, ask_go};
use evenkeel_testkit::{Random, cases};

/// Parts of expressions, those that readers may take differently among them.
const PARTS: [&str; 74] = [
    "a",
    "b",
    "z",
    "-",
    "_",
    "/",
    ".",
    "é",
    "1",
    "9",
    "&",
    "~",
    "#",
    " ",
    ":",
    "=",
    "!",
    "<",
    ">",
    ",",
    "]",
    "}",
    "{",
    "{id}",
    "{2}",
    "{1,2}",
    "{,2}",
    "{0}",
    "{01}",
    "{2,1}",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "|",
    "(",
    ")",
    "(?:",
    "(?i)",
    "(?i:",
    "(?s)",
    "(?P<n>",
    "(?=",
    "(?x)",
    "^",
    "$",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\b",
    r"\B",
    r"\A",
    r"\z",
    r"\Q",
    r"\E",
    r"\.",
    r"\-",
    r"\_",
    r"\101",
    r"\07",
    r"\1",
    r"\x41",
    r"\x{e9}",
    r"\pL",
    r"\p{Greek}",
    r"\PN",
    r"\n",
    r"\q",
    "\\",
];
/// Parts of classes.
const IN_CLASS: [&str; 36] = [
    "a",
    "z",
    "b-y",
    "-",
    "--",
    "_",
    "&&",
    "&",
    "~~",
    "[",
    "]",
    "^",
    ".",
    "é",
    "à-ü",
    "[:alpha:]",
    "[:^digit:]",
    "[:foo:]",
    "[:",
    ":]",
    r"\d",
    r"\W",
    r"\s",
    r"\]",
    r"\-",
    r"\[",
    r"\101-\103",
    r"\x{41}",
    r"\pL",
    r"\n",
    "A-Z",
    "z-a",
    "a-",
    r"\b",
    "0-9",
    "#",
];
/// Parts of values.
const VALUES: [&[u8]; 24] = [
    b"a",
    b"b",
    b"z",
    b"A",
    b"B",
    b"-",
    b"_",
    b"/",
    b".",
    "é".as_bytes(),
    b"1",
    b"9",
    b"&",
    b"~",
    b"{id}",
    b"{",
    b"}",
    b"]",
    b"[",
    b" ",
    b"\n",
    b"\xff",
    "α".as_bytes(),
    b"C",
];

fn pattern(random: &mut Random) -> String {
    let mut pattern = String::new();
    for _ in 0..=random.below(7) {
        if random.below(4) > 0 {
            pattern.push_str(random.pick(&PARTS));
            continue;
        }
        pattern.push_str(if random.below(3) == 0 { "[^" } else { "[" });
        for _ in 0..=random.below(3) {
            pattern.push_str(random.pick(&IN_CLASS));
        }
        if random.below(8) > 0 {
            pattern.push(']');
        }
    }
    pattern
}

fn value(random: &mut Random) -> Vec<u8> {
    (0..random.below(5)).flat_map(|_| random.pick(&VALUES).to_vec()).collect()
}

#[test]
fn random_expressions_match_as_in_go() {
    let mut random = Random::new(7);
    let questions: Vec<_> = (0..cases(6_000, 400_000))
        .map(|_| Question { pattern: pattern(&mut random), values: (0..12).map(|_| value(&mut random)).collect() })
        .collect();
    let mut valid = 0;
    for (question, expected) in questions.iter().zip(ask_go(&questions)) {
        let Question { pattern, values } = question;
        match (Regex::whole(pattern), expected) {
            (Err(_), Err(_)) => {}
            (Ok(regex), Ok(expected)) => {
                valid += 1;
                for (value, expected) in values.iter().zip(expected) {
                    let shown = String::from_utf8_lossy(value);
                    assert_eq!(regex.is_match(value), expected, "{pattern:?} ({}) {shown:?}", regex.translated());
                }
            }
            (Ok(regex), Err(error)) => panic!("{pattern:?}: {} here, and in Go: {error}", regex.translated()),
            (Err(error), Ok(_)) => panic!("{pattern:?}: valid in Go, and here: {error}"),
        }
    }
    assert!(valid > questions.len() / 10, "only {valid} of {} expressions are valid", questions.len());
}
