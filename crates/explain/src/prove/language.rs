//! Sets of texts that matchers accept, as automata over bytes: with them the texts fall into finitely many classes that
//! no matcher can tell apart.

use evenkeel_base::re2::Regex;
use evenkeel_runtime_config::string_match::StringMatcher;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::{primitives::StateID, start, syntax};
use regex_automata::{Anchored, MatchKind};

/// Maximum size of the automaton of one regular expression, in bytes; with a larger one, nothing is decided.
const MAX_AUTOMATON_BYTES: usize = 4 << 20;
/// A state from which nothing is accepted.
const DEAD: u32 = u32::MAX;

/// A set of texts.
#[derive(Debug, Clone)]
pub enum Language {
    /// Exactly one text.
    Exact(Text),
    /// Texts that begin so.
    Prefix(Text),
    /// Texts that end so, by the automaton of Knuth, Morris and Pratt.
    Suffix(Text),
    /// Texts with this part.
    Contains(Text),
    /// Texts that a regular expression matches as a whole.
    Regex(Box<dense::DFA<Vec<u32>>>),
    /// This text, or one that continues with a slash.
    Separated(Text),
    /// Targets whose path, without query and fragment, is in the set.
    Path(Box<Language>),
    /// Authorities whose host, without the port, is in the set.
    Host(Box<Language>),
    /// Targets with this parameter in their query, the first value of which is in the set.
    Parameter(Box<[u8]>, Option<Box<Language>>),
    /// Targets that are in the set after a route has rewritten them.
    Rewritten(Rewrite, Box<Language>),
    /// All values that an attribute can have.
    Domain(Domain),
}

/// A literal of a matcher.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: Box<[u8]>,
    ignore_case: bool,
    /// For each length, the longest proper border (KMP).
    borders: Box<[usize]>,
}

/// Which part of a path a route replaces.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The length of the prefix that is replaced; `None`: the whole path.
    pub prefix: Option<u32>,
    /// The replacement.
    pub replacement: Box<[u8]>,
}

/// The values that an attribute may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Targets, in the form to which proxies bring them.
    Path(Normal),
    /// `HOST[:PORT]`.
    Authority,
    /// Methods; CONNECT asks for a tunnel and is none.
    Method,
    /// Values of headers.
    Value,
}

/// The normalization of paths before they are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Normal {
    /// Dot segments are removed, escapes of unreserved characters decoded.
    pub dots: bool,
    /// Adjacent slashes become one.
    pub slashes: bool,
    /// Escaped slashes are decoded or refused.
    pub escapes: bool,
    /// Whether only paths without escapes, parameters and backslashes are considered.
    pub plain: bool,
}

/// A regular expression that is too large to be decided about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the regular expression `{0}` is too large to be decided about")]
pub struct TooLarge(pub String);

impl Text {
    pub fn new(bytes: &[u8], ignore_case: bool) -> Self {
        let bytes: Box<[u8]> = if ignore_case { bytes.to_ascii_lowercase().into() } else { bytes.into() };
        let mut borders = vec![0; bytes.len() + 1];
        for at in 1..bytes.len() {
            let mut border = borders[at];
            while border > 0 && bytes[border] != bytes[at] {
                border = borders[border];
            }
            borders[at + 1] = border + usize::from(bytes[border] == bytes[at]);
        }
        Self { bytes, ignore_case, borders: borders.into() }
    }

    fn fold(&self, byte: u8) -> u8 {
        if self.ignore_case { byte.to_ascii_lowercase() } else { byte }
    }

    /// Returns the length of the longest prefix of the text that the bytes so far end with.
    fn search(&self, state: u32, byte: u8) -> u32 {
        let byte = self.fold(byte);
        let mut matched = state as usize;
        while matched > 0 && self.bytes.get(matched) != Some(&byte) {
            matched = self.borders[matched];
        }
        (matched + usize::from(self.bytes.get(matched) == Some(&byte))) as u32
    }

    fn len(&self) -> u32 {
        self.bytes.len() as u32
    }
}

impl Language {
    /// Returns the set that a matcher accepts.
    pub fn of(matcher: &StringMatcher) -> Result<Self, TooLarge> {
        Ok(match matcher {
            StringMatcher::Exact { value, ignore_case } => Self::Exact(Text::new(value, *ignore_case)),
            StringMatcher::Prefix { value, ignore_case } => Self::Prefix(Text::new(value, *ignore_case)),
            StringMatcher::Suffix { value, ignore_case } => Self::Suffix(Text::new(value, *ignore_case)),
            StringMatcher::Contains { value, ignore_case } => Self::Contains(Text::new(value, *ignore_case)),
            StringMatcher::Regex(regex) => Self::regex(regex)?,
        })
    }

    /// Returns the set that a regular expression ([`Regex::whole`]) matches, of texts without characters of several bytes.
    pub fn regex(regex: &Regex) -> Result<Self, TooLarge> {
        let build = |unicode: bool| {
            let config = dense::Config::new()
                .start_kind(StartKind::Anchored)
                .match_kind(MatchKind::All)
                .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
                .determinize_size_limit(Some(MAX_AUTOMATON_BYTES));
            let syntax = syntax::Config::new().unicode(unicode).utf8(false);
            dense::Builder::new().configure(config).syntax(syntax).build(regex.translated()).ok()
        };
        // Over single bytes, where that is possible: the matcher takes a byte that is not UTF-8 for one character, too, and the automaton
        // of all of Unicode tells so many bytes apart that searches take too long.
        let automaton = build(false).or_else(|| build(true)).ok_or_else(|| TooLarge(regex.as_str().to_owned()))?;
        Ok(Self::Regex(Box::new(automaton)))
    }

    /// Returns the number of integers in a state.
    pub fn width(&self) -> usize {
        match self {
            Self::Exact(_) | Self::Prefix(_) | Self::Suffix(_) | Self::Contains(_) | Self::Regex(_) => 1,
            Self::Separated(_) => 1,
            Self::Path(inner) => 1 + inner.width(),
            Self::Host(inner) => 1 + 2 * inner.width(),
            Self::Parameter(_, inner) => 2 + inner.as_ref().map_or(0, |inner| inner.width()),
            Self::Rewritten(_, inner) => 2 + inner.width(),
            Self::Domain(_) => 2,
        }
    }

    /// The state before the first byte.
    pub fn start(&self, out: &mut Vec<u32>) {
        match self {
            Self::Exact(_) | Self::Prefix(_) | Self::Suffix(_) | Self::Contains(_) | Self::Separated(_) => out.push(0),
            Self::Regex(automaton) => {
                let start = automaton.start_state(&start::Config::new().anchored(Anchored::Yes));
                out.push(start.map_or(DEAD, |state| state.as_u32()));
            }
            Self::Path(inner) => {
                out.push(0);
                inner.start(out);
            }
            Self::Host(inner) => {
                out.push(0);
                inner.start(out);
                inner.start(out);
            }
            Self::Parameter(_, inner) => {
                out.extend([0, 0]);
                inner.iter().for_each(|inner| inner.start(out));
            }
            Self::Rewritten(_, inner) => {
                out.extend([0, 0]);
                inner.start(out);
            }
            Self::Domain(_) => out.extend([0, 0]),
        }
    }

    /// Reads a byte.
    pub fn step(&self, state: &mut [u32], byte: u8) {
        match self {
            Self::Exact(text) => state[0] = exact(text, state[0], byte),
            Self::Prefix(text) if state[0] == text.len() => {}
            Self::Prefix(text) => state[0] = exact(text, state[0], byte),
            Self::Suffix(text) => {
                // A complete match continues from its border.
                let from = if state[0] == text.len() { text.borders[text.bytes.len()] as u32 } else { state[0] };
                state[0] = if text.bytes.is_empty() { 0 } else { text.search(from, byte) };
            }
            Self::Contains(text) if state[0] == text.len() => {}
            Self::Contains(text) => state[0] = text.search(state[0], byte),
            Self::Separated(text) => {
                state[0] = match state[0] {
                    at if at == text.len() && byte == b'/' => at + 1,
                    at if at == text.len() + 1 => at,
                    at => exact(text, at, byte),
                }
            }
            Self::Regex(_) if state[0] == DEAD => {}
            Self::Regex(automaton) => {
                let next = StateID::new(state[0] as usize).map(|at| automaton.next_state(at, byte));
                state[0] = next.map_or(DEAD, |next| if automaton.is_dead_state(next) { DEAD } else { next.as_u32() });
            }
            Self::Path(inner) => {
                if state[0] == 0 {
                    match byte {
                        b'?' | b'#' => state[0] = 1,
                        _ => inner.step(&mut state[1..], byte),
                    }
                }
            }
            Self::Host(inner) => host_step(inner, state, byte),
            Self::Parameter(name, inner) => parameter_step(name, inner.as_deref(), state, byte),
            Self::Rewritten(rewrite, inner) => rewrite.step(inner, state, byte),
            Self::Domain(domain) => domain.step(state, byte),
        }
    }

    /// Whether the bytes so far are in the set.
    pub fn accepts(&self, state: &[u32]) -> bool {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text) | Self::Contains(text) => {
                state[0] == text.len()
            }
            Self::Separated(text) => state[0] == text.len() || state[0] == text.len() + 1,
            Self::Regex(_) if state[0] == DEAD => false,
            Self::Regex(automaton) => {
                StateID::new(state[0] as usize).is_ok_and(|at| automaton.is_match_state(automaton.next_eoi_state(at)))
            }
            Self::Path(inner) => inner.accepts(&state[1..]),
            Self::Host(inner) => {
                let (whole, before) = state[1..].split_at(inner.width());
                // If digits follow the last colon, the host ends before it.
                inner.accepts(if state[0] == COLON { before } else { whole })
            }
            Self::Parameter(name, inner) => parameter_accepts(name, inner.as_deref(), state),
            Self::Rewritten(rewrite, inner) => rewrite.accepts(inner, state),
            Self::Domain(domain) => domain.accepts(state),
        }
    }

    /// Whether no text that begins with the bytes so far is in the set; false if that is not known.
    pub fn is_dead(&self, state: &[u32]) -> bool {
        match self {
            Self::Domain(_) => state[0] == DEAD,
            _ => false,
        }
    }

    /// Adds the bytes that the set tells apart from others.
    pub fn bytes(&self, all: &mut [bool; 256]) {
        let mut add = |byte: u8| all[usize::from(byte)] = true;
        let mut add_text = |text: &Text| {
            for byte in &text.bytes {
                add(*byte);
                if text.ignore_case {
                    add(byte.to_ascii_uppercase());
                }
            }
        };
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text) | Self::Contains(text) => add_text(text),
            Self::Separated(text) => {
                add_text(text);
                add(b'/');
            }
            Self::Regex(automaton) => {
                let mut last = None;
                for byte in 0..=255 {
                    let class = automaton.byte_classes().get(byte);
                    // Classes are ranges of bytes: both ends of each stand for it.
                    if last.is_some_and(|last| last != class) {
                        add(byte);
                        add(byte - 1);
                    }
                    last = Some(class);
                }
            }
            Self::Path(inner) => {
                b"?#".iter().for_each(|byte| add(*byte));
                inner.bytes(all);
            }
            Self::Host(inner) => {
                b":0]".iter().for_each(|byte| add(*byte));
                inner.bytes(all);
            }
            Self::Parameter(name, inner) => {
                name.iter().chain(b"?#&=").for_each(|byte| add(*byte));
                inner.iter().for_each(|inner| inner.bytes(all));
            }
            Self::Rewritten(_, inner) => {
                b"/?#".iter().for_each(|byte| add(*byte));
                inner.bytes(all);
            }
            Self::Domain(domain) => domain.bytes().iter().for_each(|byte| add(*byte)),
        }
    }
}

fn exact(text: &Text, state: u32, byte: u8) -> u32 {
    match text.bytes.get(state as usize) {
        Some(wanted) if *wanted == text.fold(byte) => state + 1,
        _ => DEAD,
    }
}

/// States of [`Language::Host`]: no colon that could begin a port, digits behind one.
const COLON: u32 = 1;
/// A colon that belongs to an IPv6 address without brackets.
const NO_PORT: u32 = 2;
/// After `]` a colon begins a port again.
const BRACKET: u32 = 3;

fn host_step(inner: &Language, state: &mut [u32], byte: u8) {
    let (flag, rest) = state.split_at_mut(1);
    let (whole, before) = rest.split_at_mut(inner.width());
    flag[0] = match (flag[0], byte) {
        (0 | BRACKET, b':') => {
            before.copy_from_slice(whole);
            COLON
        }
        (COLON, b'0'..=b'9') => COLON,
        (_, b']') => BRACKET,
        (COLON | NO_PORT, _) => NO_PORT,
        (BRACKET, _) => NO_PORT,
        (other, _) => other,
    };
    inner.step(whole, byte);
}

/// States of [`Language::Parameter`]: before the query, in a name that may be it, in another name or value, in the value, after it.
const BEFORE: u32 = 0;
const NAME: u32 = 1;
const OTHER: u32 = 2;
const VALUE: u32 = 3;
const AFTER: u32 = 4;

fn parameter_step(name: &[u8], inner: Option<&Language>, state: &mut [u32], byte: u8) {
    let (phase, at) = (state[0], state[1]);
    let is_name = phase == NAME && at as usize == name.len();
    (state[0], state[1]) = match (phase, byte) {
        (AFTER, _) => (AFTER, 0),
        (BEFORE, b'#') => (AFTER, 1),
        (BEFORE, b'?') => (NAME, 0),
        (BEFORE, _) => (BEFORE, 0),
        (NAME, b'=') if is_name => (VALUE, 0),
        (NAME, b'&' | b'#') if is_name => (AFTER, 0),
        (VALUE, b'&' | b'#') => (AFTER, 0),
        (VALUE, _) => (VALUE, 0),
        (_, b'#') => (AFTER, 1),
        (_, b'&') => (NAME, 0),
        (NAME, byte) if name.get(at as usize) == Some(&byte) => (NAME, at + 1),
        _ => (OTHER, 0),
    };
    // `AFTER` with 1: there was no such parameter.
    if phase == AFTER {
        state[1] = at;
    }
    if let (VALUE, VALUE, Some(inner)) = (phase, state[0], inner) {
        inner.step(&mut state[2..], byte);
    }
}

fn parameter_accepts(name: &[u8], inner: Option<&Language>, state: &[u32]) -> bool {
    let is_there = match state[0] {
        NAME => state[1] as usize == name.len(),
        VALUE => true,
        AFTER => state[1] == 0,
        _ => false,
    };
    is_there && inner.is_none_or(|inner| inner.accepts(&state[2..]))
}

impl Rewrite {
    /// What a target becomes.
    fn feed(&self, inner: &Language, state: &mut [u32], next: Option<u8>) {
        self.replacement.iter().for_each(|byte| inner.step(state, *byte));
        // A path begins with a slash whatever was removed.
        if self.replacement.is_empty() && next != Some(b'/') {
            inner.step(state, b'/');
        } else if self.replacement.first().is_some_and(|first| *first != b'/') {
            debug_assert!(false, "routes replace by paths");
        }
    }

    fn step(&self, inner: &Language, state: &mut [u32], byte: u8) {
        let is_over = match self.prefix {
            Some(length) => state[0] >= length,
            None => matches!(byte, b'?' | b'#'),
        };
        if state[1] == 0 {
            if !is_over {
                state[0] += u32::from(self.prefix.is_some());
                return;
            }
            state[1] = 1;
            self.feed(inner, &mut state[2..], Some(byte));
        }
        inner.step(&mut state[2..], byte);
    }

    fn accepts(&self, inner: &Language, state: &[u32]) -> bool {
        if state[1] == 1 {
            return inner.accepts(&state[2..]);
        }
        let mut state = state[2..].to_vec();
        self.feed(inner, &mut state, None);
        inner.accepts(&state)
    }
}

/// Phases of a path: before its slash, behind a slash, behind one or two dots that are a segment so far, elsewhere in it, in the
/// query, behind a percent sign (and one digit of it).
const SLASH: u32 = 1;
const DOT: u32 = 2;
const DOTS: u32 = 3;
const INSIDE: u32 = 4;
const QUERY: u32 = 5;
const PERCENT: u32 = 6;
/// Behind `%` and a digit, which is in the second number.
const DIGIT: u32 = 7;

impl Domain {
    fn step(self, state: &mut [u32], byte: u8) {
        state[0] = match self {
            Self::Method => match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => connect(state, byte),
                _ => DEAD,
            },
            Self::Authority => match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => INSIDE,
                _ => DEAD,
            },
            // Spaces at its ends are not part of a value.
            Self::Value => match (state[0], byte) {
                (0 | SLASH, b' ') if state[1] == 0 => DEAD,
                (_, b' ') => SLASH,
                (_, b'!'..=b'~') => INSIDE,
                _ => DEAD,
            },
            Self::Path(normal) => return normal.step(state, byte),
        };
        if self == Self::Value && state[0] == INSIDE {
            state[1] = 1;
        }
    }

    fn accepts(self, state: &[u32]) -> bool {
        match self {
            Self::Method => state[0] != DEAD && state[0] != 0 && !(state[0] == INSIDE && state[1] == 7),
            Self::Authority => state[0] == INSIDE,
            Self::Value => matches!(state[0], 0 | INSIDE),
            Self::Path(normal) => match state[0] {
                SLASH | INSIDE | QUERY => true,
                DOT | DOTS => !normal.dots,
                _ => false,
            },
        }
    }

    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Method => b"CONNECT",
            Self::Authority => b":.",
            Self::Value => b" ",
            Self::Path(_) => b"/.?#%025cCfF\\",
        }
    }
}

/// Counts how much of `CONNECT` the method is; 8 and more: it is another.
fn connect(state: &mut [u32], byte: u8) -> u32 {
    let at = state[1] as usize;
    state[1] = match b"CONNECT".get(at) {
        Some(wanted) if *wanted == byte => state[1] + 1,
        _ => 8,
    };
    INSIDE
}

impl Normal {
    /// The bytes that plain paths do not have.
    pub const NOT_PLAIN: [u8; 3] = [b'%', b';', b'\\'];

    fn step(self, state: &mut [u32], byte: u8) {
        let is_plain = matches!(byte, b'!'..=b'~')
            && !matches!(byte, b'#' | b'\\' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}');
        state[0] = match (state[0], byte) {
            (DEAD, _) => DEAD,
            (QUERY, _) if is_plain => QUERY,
            (0, b'/') => SLASH,
            (0 | QUERY, _) => DEAD,
            (_, b'%' | b';' | b'\\') if self.plain => DEAD,
            (DOT | DOTS, b'/' | b'?') if self.dots => DEAD,
            (_, b'\\') if self.dots => DEAD,
            (PERCENT, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                state[1] = u32::from(byte);
                DIGIT
            }
            (PERCENT, _) => DEAD,
            (DIGIT, byte) => match hex(state[1], byte) {
                None | Some(0) => DEAD,
                Some(decoded) if self.dots && (decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded)) => DEAD,
                Some(b'/' | b'\\') if self.escapes => DEAD,
                Some(_) => INSIDE,
            },
            (_, b'%') => PERCENT,
            (_, b'?') => QUERY,
            (SLASH, b'/') if self.slashes => DEAD,
            (_, b'/') => SLASH,
            (SLASH, b'.') => DOT,
            (DOT, b'.') => DOTS,
            (_, _) if is_plain => INSIDE,
            _ => DEAD,
        };
    }

    /// Returns a normalization that does what both do.
    pub fn and(self, other: Self) -> Self {
        Self {
            dots: self.dots || other.dots,
            slashes: self.slashes || other.slashes,
            escapes: self.escapes || other.escapes,
            plain: self.plain || other.plain,
        }
    }

    /// Whether a target is in the form to which proxies bring it.
    pub fn is_normal(self, target: &[u8]) -> bool {
        let domain = Domain::Path(self);
        let mut state = [0, 0];
        target.iter().for_each(|byte| domain.step(&mut state, *byte));
        domain.accepts(&state)
    }
}

fn hex(high: u32, low: u8) -> Option<u8> {
    let high = char::from_u32(high)?.to_digit(16)?;
    u8::try_from(high << 4 | char::from(low).to_digit(16)?).ok()
}
