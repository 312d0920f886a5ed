//! From RE2's dialect to that of the crate `regex`.

use std::collections::HashSet;
use std::iter::Peekable;
use std::str::CharIndices;

/// How often an expression may be repeated, nested repetitions multiplied (RE2's `kMaxRepeat`).
const MAX_REPEAT: u32 = 1000;
/// How deep groups may be nested. RE2 allows 1000; the engine has a limit of 250.
const MAX_NESTING: usize = 200;

/// Why an expression is not one of RE2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("missing closing `]`: `{0}`")]
    MissingBracket(String),
    #[error("missing closing `)`")]
    MissingParenthesis,
    #[error("unexpected `)`")]
    UnexpectedParenthesis,
    #[error("a backslash ends the expression")]
    TrailingBackslash,
    #[error("`{0}` has nothing to repeat")]
    NothingToRepeat(String),
    #[error("`{operator}` repeats a repetition: `{before}`")]
    RepeatedRepetition { operator: String, before: String },
    #[error(
        "`{0}`: a repetition has at most {MAX_REPEAT} times, those that it contains multiplied, and its first number is the smaller one"
    )]
    RepeatSize(String),
    #[error("unknown escape `{0}`")]
    Escape(String),
    #[error("`{0}` is no range of characters")]
    Range(String),
    #[error("`{0}` is no class of characters that RE2 knows")]
    Class(String),
    #[error("`{0}`: RE2 knows no such group; look-around and back references are not supported")]
    Group(String),
    #[error("`{0}` names two groups")]
    DuplicateName(String),
    #[error("groups are nested deeper than {MAX_NESTING}")]
    TooDeep,
}

/// Translates an expression of RE2 (as Envoy compiles it: Perl's classes and groups, one line, UTF-8) to an equivalent one of the crate
/// `regex` in its Unicode mode. Groups keep their numbers and lose their names.
pub fn translate(pattern: &str) -> Result<String, Error> {
    let mut translator = Translator {
        pattern,
        chars: pattern.char_indices().peekable(),
        out: String::with_capacity(pattern.len() + 8),
        open: Vec::new(),
        repeats: 1,
        last: Last::Nothing,
        flags: String::new(),
        names: HashSet::new(),
    };
    translator.run()?;
    Ok(translator.out)
}

/// What a repetition operator would repeat.
#[derive(Clone, Copy)]
enum Last {
    /// The beginning of a group or of an alternative.
    Nothing,
    /// An expression in which repetitions come to this number of times.
    Expression(u32),
    /// A repetition.
    Repetition,
}

struct Translator<'p> {
    pattern: &'p str,
    chars: Peekable<CharIndices<'p>>,
    out: String,
    /// For each open group, the repetitions of what is around it so far.
    open: Vec<u32>,
    /// The largest number of times that an expression of the current group is repeated.
    repeats: u32,
    last: Last,
    /// Flags that have been read, for what follows: an operator after them repeats what is before them.
    flags: String,
    names: HashSet<&'p str>,
}

impl<'p> Translator<'p> {
    fn run(&mut self) -> Result<(), Error> {
        while let Some((at, c)) = self.chars.next() {
            let counted = if c == '{' { self.counted(at) } else { None };
            match (c, counted) {
                ('*' | '+' | '?', _) => self.repetition(at, 0, None)?,
                (_, Some((min, max))) => self.repetition(at, min, max)?,
                _ => {
                    if c != '(' {
                        self.push_flags();
                    }
                    self.other(at, c)?;
                }
            }
        }
        if self.open.is_empty() { Ok(()) } else { Err(Error::MissingParenthesis) }
    }

    /// What is no repetition operator.
    fn other(&mut self, at: usize, c: char) -> Result<(), Error> {
        match c {
            '(' => self.group(at)?,
            ')' => self.end_of_group()?,
            '|' => {
                self.out.push('|');
                self.last = Last::Nothing;
            }
            '[' => {
                self.class(at)?;
                self.last = Last::Expression(1);
            }
            '\\' => self.escape(at)?,
            '^' | '$' | '.' => {
                self.out.push(c);
                self.last = Last::Expression(1);
            }
            c => self.literal(c),
        }
        Ok(())
    }

    /// The byte where the next character is.
    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.pattern.len(), |(at, _)| *at)
    }

    fn rest(&mut self) -> &'p str {
        let at = self.at();
        self.pattern.get(at..).unwrap_or_default()
    }

    fn text(&self, range: std::ops::Range<usize>) -> String {
        self.pattern.get(range).unwrap_or_default().to_owned()
    }

    fn since(&mut self, start: usize) -> String {
        let end = self.at();
        self.text(start..end)
    }

    fn skip_to(&mut self, end: usize) {
        while self.chars.next_if(|(at, _)| *at < end).is_some() {}
    }

    fn push_flags(&mut self) {
        self.out.push_str(&std::mem::take(&mut self.flags));
    }

    fn literal(&mut self, c: char) {
        if c.is_ascii_punctuation() && c != '_' || c.is_ascii_control() {
            self.out.push_str(&format!(r"\x{{{:X}}}", u32::from(c)));
        } else {
            self.out.push(c);
        }
        self.last = Last::Expression(1);
    }

    /// `(`, which has been read, and what may follow it: `(?:`, `(?P<name>`, `(?<name>`, `(?flags)`, `(?flags:`.
    fn group(&mut self, start: usize) -> Result<(), Error> {
        let rest = self.rest();
        if !rest.starts_with('?') {
            return self.begin_group("(");
        }
        if let Some(named) = rest.strip_prefix("?P<").or_else(|| rest.strip_prefix("?<")) {
            let begins = self.at() + rest.len() - named.len();
            let name = named.split_once('>').map(|(name, _)| name);
            let Some(name) = name.filter(|name| !name.is_empty() && name.chars().all(is_word)) else {
                let end = (begins + 1..=self.pattern.len()).find(|end| self.pattern.is_char_boundary(*end));
                return Err(Error::Group(self.text(start..end.unwrap_or(begins))));
            };
            if !self.names.insert(name) {
                return Err(Error::DuplicateName(name.to_owned()));
            }
            self.skip_to(begins + name.len() + 1);
            return self.begin_group("(");
        }
        self.flags(start)
    }

    fn flags(&mut self, start: usize) -> Result<(), Error> {
        self.chars.next();
        let (mut has_flag, mut is_negative) = (false, false);
        while let Some((_, c)) = self.chars.next() {
            match c {
                'i' | 'm' | 's' | 'U' => has_flag = true,
                '-' if !is_negative => (is_negative, has_flag) = (true, false),
                ':' | ')' if is_negative && !has_flag => break,
                ':' => {
                    let text = self.since(start);
                    return self.begin_group(&text);
                }
                // Without a flag, `(?)` changes nothing.
                ')' => {
                    if has_flag {
                        let flags = self.since(start);
                        self.flags.push_str(&flags);
                    }
                    self.after_nothing();
                    return Ok(());
                }
                _ => break,
            }
        }
        Err(Error::Group(self.since(start)))
    }

    /// After something that matches nothing, such as flags, an operator may repeat a repetition.
    fn after_nothing(&mut self) {
        if let Last::Repetition = self.last {
            self.last = Last::Expression(self.repeats);
        }
    }

    fn begin_group(&mut self, text: &str) -> Result<(), Error> {
        if self.open.len() >= MAX_NESTING {
            return Err(Error::TooDeep);
        }
        self.push_flags();
        self.out.push_str(text);
        self.open.push(self.repeats);
        self.repeats = 1;
        self.last = Last::Nothing;
        Ok(())
    }

    fn end_of_group(&mut self) -> Result<(), Error> {
        let around = self.open.pop().ok_or(Error::UnexpectedParenthesis)?;
        self.out.push(')');
        self.last = Last::Expression(self.repeats);
        self.repeats = self.repeats.max(around);
        Ok(())
    }

    /// The numbers of `{n}`, `{n,}` and `{n,m}`, whose `{` has been read; everything else is text (RE2's `MaybeParseRepeat`).
    fn counted(&mut self, start: usize) -> Option<(u32, Option<u32>)> {
        let inside = self.pattern.get(start + 1..)?.split_once('}')?.0;
        let number = |text: &str| -> Option<u32> {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let has_leading_zero = text.len() > 1 && text.starts_with('0');
            (is_number && !has_leading_zero).then(|| text.parse().ok().filter(|n| *n < 100_000_000))?
        };
        let numbers = match inside.split_once(',') {
            None => number(inside).map(|n| (n, Some(n))),
            Some((min, "")) => number(min).map(|n| (n, None)),
            Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| (min, Some(max))),
        }?;
        self.skip_to(start + 1 + inside.len() + 1);
        Some(numbers)
    }

    /// A repetition operator that has been read.
    fn repetition(&mut self, start: usize, min: u32, max: Option<u32>) -> Result<(), Error> {
        let operator = self.since(start);
        let repeats = match self.last {
            Last::Nothing => return Err(Error::NothingToRepeat(operator)),
            Last::Repetition => return Err(Error::RepeatedRepetition { before: self.since(0), operator }),
            Last::Expression(repeats) => repeats.saturating_mul(max.unwrap_or(min).max(1)),
        };
        if min > MAX_REPEAT || max.is_some_and(|max| max < min) || repeats > MAX_REPEAT {
            return Err(Error::RepeatSize(operator));
        }
        self.out.push_str(&operator);
        if self.chars.next_if(|(_, c)| *c == '?').is_some() {
            self.out.push('?');
        }
        self.push_flags();
        self.repeats = self.repeats.max(repeats);
        self.last = Last::Repetition;
        Ok(())
    }

    /// What follows a backslash outside of classes.
    fn escape(&mut self, start: usize) -> Result<(), Error> {
        let Some((_, c)) = self.chars.peek().copied() else { return Err(Error::TrailingBackslash) };
        let translated = match c {
            'b' => r"(?-u:\b)".to_owned(),
            'B' => r"(?-u:\B)".to_owned(),
            'A' => r"\A".to_owned(),
            'z' => r"\z".to_owned(),
            'C' => "(?s-u:.)".to_owned(),
            'p' | 'P' => {
                self.chars.next();
                let property = self.property(start, c == 'P')?;
                self.out.push_str(&property);
                self.last = Last::Expression(1);
                return Ok(());
            }
            'Q' => {
                self.chars.next();
                self.quotation();
                return Ok(());
            }
            c => match perl_class(c) {
                Some(class) => class.to_owned(),
                None => {
                    let c = self.escaped_character(start)?;
                    self.literal(c);
                    return Ok(());
                }
            },
        };
        self.chars.next();
        self.out.push_str(&translated);
        self.last = Last::Expression(1);
        Ok(())
    }

    /// The text between `\Q` and `\E` (or the end).
    fn quotation(&mut self) {
        while let Some((at, c)) = self.chars.next() {
            if self.pattern.get(at..).is_some_and(|rest| rest.starts_with(r"\E")) {
                self.chars.next();
                self.after_nothing();
                return;
            }
            self.literal(c);
        }
    }

    /// The character of an escape whose backslash has been read, if it is that of one character (RE2's `UnescapeCCChar`).
    fn escaped_character(&mut self, start: usize) -> Result<char, Error> {
        let Some((_, c)) = self.chars.next() else { return Err(Error::TrailingBackslash) };
        let found = match c {
            '0'..='7' => self.octal(c),
            'x' => self.hexadecimal(),
            'a' => Some('\u{7}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(c),
            _ => None,
        };
        found.ok_or_else(|| Error::Escape(self.since(start)))
    }

    /// Up to three digits; a single one that is not 0 would be a back reference.
    fn octal(&mut self, first: char) -> Option<char> {
        let mut code = first.to_digit(8)?;
        let mut digits = 1;
        while digits < 3
            && let Some((_, c)) = self.chars.next_if(|(_, c)| c.is_digit(8))
        {
            code = code * 8 + c.to_digit(8)?;
            digits += 1;
        }
        if first != '0' && digits == 1 { None } else { char::from_u32(code) }
    }

    /// `\xHH` or `\x{H…}`.
    fn hexadecimal(&mut self) -> Option<char> {
        let (digits, end) = match self.rest().strip_prefix('{') {
            Some(braced) => {
                let digits = braced.split_once('}').map(|(digits, _)| digits)?;
                (digits, self.at() + digits.len() + 2)
            }
            None => (self.rest().get(..2)?, self.at() + 2),
        };
        self.skip_to(end);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32))?
    }

    /// `\pN` or `\p{Name}`, whose letter has been read: a general category or a script.
    fn property(&mut self, start: usize, is_negative: bool) -> Result<String, Error> {
        let rest = self.rest();
        let name = match rest.strip_prefix('{') {
            Some(braced) => {
                let name = braced.split_once('}').map(|(name, _)| name);
                let Some(name) = name else { return Err(Error::Class(self.text(start..self.pattern.len()))) };
                let end = self.at() + name.len() + 2;
                self.skip_to(end);
                name
            }
            None => {
                let letter = rest.chars().next().map_or("", |c| &rest[..c.len_utf8()]);
                self.chars.next();
                letter
            }
        };
        let (name, is_negative) = match name.strip_prefix('^') {
            Some(name) => (name, !is_negative),
            None => (name, is_negative),
        };
        let letters = name.as_bytes();
        let begins = letters.first().is_some_and(u8::is_ascii_uppercase);
        let continues = letters.iter().skip(1).all(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
        let what = match name {
            "Any" => "Any".to_owned(),
            _ if !begins || !continues => return Err(Error::Class(self.since(start))),
            name if name.len() <= 2 => format!("gc={name}"),
            name => format!("sc={name}"),
        };
        Ok(format!(r"\{}{{{what}}}", if is_negative { 'P' } else { 'p' }))
    }

    /// `[…]`, whose `[` has been read.
    fn class(&mut self, start: usize) -> Result<(), Error> {
        self.out.push('[');
        if self.chars.next_if(|(_, c)| *c == '^').is_some() {
            self.out.push('^');
        }
        let mut is_first = true;
        loop {
            let rest = self.rest();
            let at = self.at();
            match rest.chars().next() {
                None => return Err(Error::MissingBracket(self.text(start..self.pattern.len()))),
                Some(']') if !is_first => break,
                Some('[') if rest.starts_with("[:") && rest[2..].contains(":]") => self.posix_class()?,
                Some('\\') if rest.starts_with(r"\p") || rest.starts_with(r"\P") => {
                    self.chars.next();
                    self.chars.next();
                    let property = self.property(at, rest.starts_with(r"\P"))?;
                    self.out.push_str(&property);
                }
                Some('\\') => match rest.chars().nth(1).and_then(perl_class) {
                    Some(class) => {
                        self.skip_to(at + 2);
                        self.out.push_str(class);
                    }
                    None => self.range(start)?,
                },
                Some(_) => self.range(start)?,
            }
            is_first = false;
        }
        self.chars.next();
        self.out.push(']');
        Ok(())
    }

    /// `[:name:]` inside a class.
    fn posix_class(&mut self) -> Result<(), Error> {
        const NAMES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
            "word", "xdigit",
        ];
        let rest = self.rest();
        let inside = rest.get(2..).and_then(|rest| rest.split_once(":]")).map_or("", |(inside, _)| inside);
        let text = rest.get(..inside.len() + 4).unwrap_or_default();
        if !NAMES.contains(&inside.strip_prefix('^').unwrap_or(inside)) {
            return Err(Error::Class(text.to_owned()));
        }
        self.out.push_str(text);
        let end = self.at() + text.len();
        self.skip_to(end);
        Ok(())
    }

    /// One character of a class, or a range of them.
    fn range(&mut self, class: usize) -> Result<(), Error> {
        let start = self.at();
        let low = self.class_character(class)?;
        let rest = self.rest();
        self.push_class_character(low);
        if rest.starts_with('-') && rest.len() > 1 && !rest.starts_with("-]") {
            self.chars.next();
            let high = self.class_character(class)?;
            if high < low {
                return Err(Error::Range(self.since(start)));
            }
            self.out.push('-');
            self.push_class_character(high);
        }
        Ok(())
    }

    fn class_character(&mut self, class: usize) -> Result<char, Error> {
        match self.chars.next() {
            None => Err(Error::MissingBracket(self.text(class..self.pattern.len()))),
            Some((at, '\\')) => self.escaped_character(at),
            Some((_, c)) => Ok(c),
        }
    }

    fn push_class_character(&mut self, c: char) {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            self.out.push(c)
        } else {
            self.out.push_str(&format!(r"\x{{{:X}}}", u32::from(c)))
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Perl's classes, which are ASCII in RE2.
fn perl_class(c: char) -> Option<&'static str> {
    Some(match c {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r\x20]",
        'S' => r"[^\t\n\f\r\x20]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}
