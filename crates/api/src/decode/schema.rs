//! The schema of a field: the values that it accepts.

use evenkeel_base::suggest::one_of;

/// One field of a struct.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name in YAML.
    pub name: &'static str,
    /// Whether it works.
    pub status: Status,
    /// Its schema; for fields that work.
    pub schema: Option<fn() -> Schema>,
    /// Whether it must be there.
    pub required: fn() -> bool,
    /// Why it does not work, and what happens instead; may be empty.
    pub note: &'static str,
}

/// Whether a field works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Yes.
    Works,
    /// It is known, but not supported yet: ignored with a warning.
    Later,
    /// It is known, but not supported yet, and ignoring it would change the meaning of the rest (a rule would let more
    /// pass): an error.
    Refused,
    /// It is known and has a meaning only in a cluster: ignored with a note.
    Inert,
    /// It is known and has no meaning any more, in the original API neither: ignored with a warning, whose note says what
    /// to write instead.
    Removed,
}

/// The values that are accepted.
#[derive(Debug, Clone)]
pub enum Schema {
    /// Text, with a description of its content, e.g. `a duration such as 1.5s`.
    String(&'static str),
    /// A whole number within bounds.
    Integer {
        /// The smallest value.
        min: i64,
        /// The greatest value.
        max: i64,
    },
    /// A number, whole or not.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A whole number or text.
    IntOrString,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A list.
    List(Box<Schema>),
    /// Any names with values of one kind.
    Map(Box<Schema>),
    /// Named fields.
    Object(&'static [Field]),
}

impl Schema {
    /// Describes the expected value in words.
    pub fn describe(&self) -> String {
        match self {
            Self::String(what) => (*what).to_owned(),
            Self::Integer { min: 0, max: i64::MAX } => "a whole number".to_owned(),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number => "a number".to_owned(),
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::IntOrString => "a whole number or a string".to_owned(),
            Self::Choice(values) => one_of(values.iter().copied()),
            Self::List(item) => format!("a list, each entry {}", item.describe_briefly()),
            Self::Map(value) => format!("a mapping from names, each value {}", value.describe_briefly()),
            Self::Object(fields) => {
                let works = fields.iter().filter(|f| f.status == Status::Works);
                let names: Vec<_> = works.map(|f| format!("`{}`", f.name)).collect();
                match names.as_slice() {
                    [] => "a mapping".to_owned(),
                    [only] => format!("a mapping with the field {only}"),
                    _ => format!("a mapping with the fields {}", names.join(", ")),
                }
            }
        }
    }

    /// What is expected, without the fields of a struct: for use inside another description.
    fn describe_briefly(&self) -> String {
        match self {
            Self::Object(_) => "a mapping".to_owned(),
            other => other.describe(),
        }
    }
}
