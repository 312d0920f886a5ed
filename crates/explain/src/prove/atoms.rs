//! The classes of texts that a set of languages cannot tell apart, each with its shortest member.

use std::collections::{HashMap, HashSet, VecDeque};

use super::language::{Domain, Language};

/// Maximum number of states of all automata together; with more, nothing is decided.
const MAX_STATES: usize = 100_000;
/// Maximum number of classes of a header's values.
const MAX_CLASSES: usize = 4096;

/// There are too many classes to be decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the matchers distinguish too many values to be decided about")]
pub struct TooMany;

/// Which languages a text is in.
type Class = Vec<bool>;

/// Returns one text for each class. `liked`: texts preferred as representatives of their class, in this order.
pub fn classes(domain: Domain, languages: &[Language], liked: &[String]) -> Result<Vec<(Class, String)>, TooMany> {
    let all = Product::new(Language::Domain(domain), languages);
    let mut found: Vec<(Class, String)> = Vec::new();
    let mut known: HashSet<Class> = HashSet::new();
    let mut add = |class: Class, text: String| {
        if known.insert(class.clone()) {
            found.push((class, text));
        }
    };
    for text in liked {
        if let Some(class) = all.class_of(text.as_bytes()) {
            add(class, text.clone());
        }
    }
    let alphabet = alphabet(&all.languages);
    let start = all.start();
    let mut nodes: Vec<(usize, u8)> = vec![(0, 0)];
    let mut seen: HashSet<Vec<u32>> = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([(0_usize, start)]);
    while let Some((node, state)) = queue.pop_front() {
        if let Some(class) = all.class(&state) {
            add(class, spelled(&nodes, node));
        }
        for byte in &alphabet {
            let next = all.step(&state, *byte);
            if all.is_dead(&next) || seen.contains(&next) {
                continue;
            }
            if seen.len() >= MAX_STATES {
                return Err(TooMany);
            }
            seen.insert(next.clone());
            nodes.push((node, *byte));
            queue.push_back((nodes.len() - 1, next));
        }
    }
    Ok(found)
}

/// The classes of the lines that a header may have: none, one, or several, of which each matcher asks for any.
pub fn line_classes(languages: &[Language], liked: &[String]) -> Result<Vec<Vec<String>>, TooMany> {
    let single = classes(Domain::Value, languages, liked)?;
    let mut found: HashMap<Class, Vec<String>> = HashMap::new();
    let mut order: Vec<Vec<String>> = vec![Vec::new()];
    let mut queue: VecDeque<Class> = VecDeque::new();
    for (class, text) in &single {
        found.insert(class.clone(), vec![text.clone()]);
        order.push(vec![text.clone()]);
        queue.push_back(class.clone());
    }
    while let Some(class) = queue.pop_front() {
        for (other, text) in &single {
            let joined: Class = class.iter().zip(other).map(|(a, b)| *a || *b).collect();
            if found.contains_key(&joined) {
                continue;
            }
            if found.len() >= MAX_CLASSES {
                return Err(TooMany);
            }
            let lines: Vec<String> = found.get(&class).into_iter().flatten().chain([text]).cloned().collect();
            order.push(lines.clone());
            found.insert(joined.clone(), lines);
            queue.push_back(joined);
        }
    }
    Ok(order)
}

/// Automata that read the same bytes.
struct Product<'l> {
    domain: Language,
    languages: Vec<&'l Language>,
    widths: Vec<usize>,
}

impl<'l> Product<'l> {
    fn new(domain: Language, languages: &'l [Language]) -> Self {
        let widths = std::iter::once(&domain).chain(languages).map(Language::width).collect();
        Self { domain, languages: languages.iter().collect(), widths }
    }

    fn all(&self) -> impl Iterator<Item = &Language> {
        std::iter::once(&self.domain).chain(self.languages.iter().copied())
    }

    fn start(&self) -> Vec<u32> {
        let mut state = Vec::new();
        self.all().for_each(|language| language.start(&mut state));
        state
    }

    fn step(&self, state: &[u32], byte: u8) -> Vec<u32> {
        let mut next = state.to_vec();
        let mut rest = next.as_mut_slice();
        for (language, width) in self.all().zip(&self.widths) {
            let (own, others) = rest.split_at_mut(*width);
            language.step(own, byte);
            rest = others;
        }
        next
    }

    fn is_dead(&self, state: &[u32]) -> bool {
        self.domain.is_dead(state)
    }

    /// The class of the text that has led to a state; `None`: it is not in the domain.
    fn class(&self, state: &[u32]) -> Option<Class> {
        let mut rest = state;
        let mut class = Vec::with_capacity(self.languages.len() + 1);
        for (language, width) in self.all().zip(&self.widths) {
            let (own, others) = rest.split_at(*width);
            class.push(language.accepts(own));
            rest = others;
        }
        class.remove(0).then_some(class)
    }

    fn class_of(&self, text: &[u8]) -> Option<Class> {
        let mut state = self.start();
        for byte in text {
            state = self.step(&state, *byte);
            if self.is_dead(&state) {
                return None;
            }
        }
        self.class(&state)
    }
}

/// The bytes that some language tells apart, and two that none does. Letters come first: they make texts that people can read.
fn alphabet(languages: &[&Language]) -> Vec<u8> {
    let mut told = [false; 256];
    languages.iter().for_each(|language| language.bytes(&mut told));
    for domain in [Domain::Path(super::language::Normal::default()), Domain::Authority, Domain::Value] {
        Language::Domain(domain).bytes(&mut told);
    }
    let is_told = |byte: u8| told.get(usize::from(byte)).copied().unwrap_or_default();
    let others = (b'a'..=b'z').chain(b'A'..=b'Z').chain(b'0'..=b'9').filter(|byte| !is_told(*byte));
    let mut all: Vec<u8> = (0..=255).filter(|byte| is_told(*byte)).collect();
    // Among hexadecimal digits and among other letters: escapes tell these apart.
    let (hex, plain): (Vec<u8>, Vec<u8>) = others.partition(|byte| byte.is_ascii_hexdigit());
    all.extend(hex.first());
    all.extend(plain.first());
    // Some byte that is neither a letter nor a digit.
    all.extend((b'!'..=b'~').find(|byte| !byte.is_ascii_alphanumeric() && !is_told(*byte)));
    all.sort_by_key(|byte| (!byte.is_ascii_lowercase(), !byte.is_ascii_alphanumeric(), *byte));
    all.dedup();
    all
}

/// The text that has led to a node.
fn spelled(nodes: &[(usize, u8)], mut node: usize) -> String {
    let mut bytes = Vec::new();
    while let Some((parent, byte)) = nodes.get(node).filter(|_| node > 0) {
        bytes.push(*byte);
        node = *parent;
    }
    bytes.reverse();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use evenkeel_base::re2::Regex;

    use super::super::language::{Normal, Rewrite, Text};
    use super::*;

    fn text(text: &str) -> Text {
        Text::new(text.as_bytes(), false)
    }

    /// All texts over some bytes, up to a length.
    fn texts(alphabet: &[u8], longest: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..longest {
            last = last
                .iter()
                .flat_map(|text| alphabet.iter().map(move |byte| format!("{text}{}", char::from(*byte))))
                .collect();
            all.extend(last.iter().cloned());
        }
        all
    }

    #[test]
    fn every_class_of_short_texts_is_found_and_every_member_is_right() {
        let normal = Normal { dots: true, slashes: false, ..Normal::default() };
        let path = |language| Language::Path(Box::new(language));
        let languages = vec![
            path(Language::Exact(text("/a/b"))),
            path(Language::Prefix(text("/a"))),
            path(Language::Suffix(text("b/a"))),
            path(Language::Contains(text("aab"))),
            path(Language::regex(&Regex::whole("/[^/]+/a").expect("valid")).expect("a small one")),
            Language::Separated(text("/ab")),
            Language::Parameter(b"a".as_slice().into(), Some(Box::new(Language::Prefix(text("b"))))),
            Language::Rewritten(
                Rewrite { prefix: Some(2), replacement: b"/b/".as_slice().into() },
                Box::new(path(Language::Suffix(text("/b/b")))),
            ),
        ];
        let found = classes(Domain::Path(normal), &languages, &[]).expect("few");
        let all = Product::new(Language::Domain(Domain::Path(normal)), &languages);
        for (class, text) in &found {
            assert_eq!(all.class_of(text.as_bytes()).as_ref(), Some(class), "{text}");
        }
        let known: HashSet<&Class> = found.iter().map(|(class, _)| class).collect();
        for text in texts(b"/ab?=", 7) {
            let Some(class) = all.class_of(text.as_bytes()) else { continue };
            assert!(known.contains(&class), "the class of {text} is missing");
        }
    }

    #[test]
    fn automata_accept_what_matchers_do() {
        let check = |language: &Language, wanted: &dyn Fn(&str) -> bool| {
            for text in texts(b"/ab.:1", 5) {
                let mut state = Vec::new();
                language.start(&mut state);
                text.bytes().for_each(|byte| language.step(&mut state, byte));
                assert_eq!(language.accepts(&state), wanted(&text), "{text:?} {language:?}");
            }
        };
        check(&Language::Suffix(text("aba")), &|text| text.ends_with("aba"));
        check(&Language::Suffix(text("aa")), &|text| text.ends_with("aa"));
        check(&Language::Contains(text("aab")), &|text| text.contains("aab"));
        check(&Language::Suffix(text("")), &|_| true);
        check(&Language::Prefix(text("")), &|_| true);
        check(&Language::Separated(text("/a")), &|text| text == "/a" || text.starts_with("/a/"));
        let host = |text: &str| {
            String::from_utf8_lossy(evenkeel_runtime_config::route_match::without_port(text.as_bytes())).into_owned()
        };
        check(&Language::Host(Box::new(Language::Exact(super::tests::text("a")))), &|text| host(text) == "a");
        check(&Language::Host(Box::new(Language::Suffix(super::tests::text("a:1")))), &|text| {
            host(text).ends_with("a:1")
        });
    }

    #[test]
    fn normal_paths_are_those_that_proxies_leave_alone() {
        use evenkeel_http::path;
        let check = |normal: Normal| {
            for text in texts(b"/.a%2", 6) {
                let target = text.as_bytes();
                let is_left = target.first() == Some(&b'/')
                    && (!normal.dots || path::normalize(target) == Ok(None))
                    && (!normal.slashes || path::merge_slashes(target).is_none());
                // Invalid escapes are left alone, too, but should not be sent.
                let is_escaped = text.match_indices('%').all(|(at, _)| {
                    text.get(at + 1..at + 3).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                });
                if is_escaped {
                    assert_eq!(normal.is_normal(target), is_left, "{text} {normal:?}");
                }
            }
        };
        check(Normal { dots: true, slashes: false, ..Normal::default() });
        check(Normal { dots: true, slashes: true, ..Normal::default() });
        check(Normal::default());
    }

    #[test]
    fn several_lines_of_a_header_may_match_what_one_cannot() {
        let languages = vec![Language::Exact(text("a")), Language::Exact(text("b"))];
        let found = line_classes(&languages, &[]).expect("few");
        assert!(found.iter().any(|lines| lines.is_empty()));
        assert!(
            found.iter().any(|lines| lines.contains(&"a".to_owned()) && lines.contains(&"b".to_owned())),
            "{found:?}"
        );
    }
}
