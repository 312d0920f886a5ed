//! The two ways to declare a type of the API.

/// Declares a struct with its table of fields.
///
/// `field: Type = "yamlName"` works; the type says whether the field is required. The lists name the fields that are
/// known but do not work: `later` (warning), `refused` (error, see [`Status`](super::Status)), `inert` (note), `removed`
/// (warning); `"name" = "reason"` says what happens instead. `check` is a function `(&Self, &Node, &mut Context)` for checks that involve several fields.
macro_rules! object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty = $yaml:literal, )*
        }
        $( later: [$($later:literal $(= $later_note:literal)?),* $(,)?]; )?
        $( refused: [$($refused:literal),* $(,)?]; )?
        $( inert: [$($inert:literal $(= $inert_note:literal)?),* $(,)?]; )?
        $( removed: [$($removed:literal = $removed_note:literal),* $(,)?]; )?
        $( check: $check:path; )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        impl $name {
            /// Every field the original API has here.
            pub const FIELDS: &'static [$crate::decode::Field] = &[
                $( $crate::decode::Field {
                    name: $yaml,
                    status: $crate::decode::Status::Works,
                    schema: Some(<$ty as $crate::decode::Decode>::schema),
                    required: || <$ty as $crate::decode::Decode>::absent().is_none(),
                    note: "",
                }, )*
                $( $( $crate::decode::macros::without_schema(
                    $later, $crate::decode::Status::Later, concat!($($later_note)?),
                ), )* )?
                $( $( $crate::decode::macros::without_schema($refused, $crate::decode::Status::Refused, ""), )* )?
                $( $( $crate::decode::macros::without_schema(
                    $inert, $crate::decode::Status::Inert, concat!($($inert_note)?),
                ), )* )?
                $( $( $crate::decode::macros::without_schema(
                    $removed, $crate::decode::Status::Removed, $removed_note,
                ), )* )?
            ];
        }

        impl $crate::decode::Decode for $name {
            fn schema() -> $crate::decode::Schema {
                $crate::decode::Schema::Object(Self::FIELDS)
            }

            fn decode(node: &evenkeel_base::yaml::Node, cx: &mut $crate::decode::Context) -> Option<Self> {
                let _mapping = cx.mapping(node, Self::FIELDS)?;
                // All fields are read before the first failure ends the decoding, so that all mistakes are reported at
                // once.
                $( let $field = cx.field::<$ty>(node, _mapping, $yaml); )*
                let value = Self { $( $field: $field?, )* };
                $( $check(&value, node, cx); )?
                Some(value)
            }
        }
    };
}

/// Declares an enumeration of texts. `later` lists values that are known but not supported yet: an error that says so.
macro_rules! choices {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $yaml:literal, )*
        }
        $( later: [$($later:literal),* $(,)?]; )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )*
        }

        impl $name {
            /// Every value, as written.
            pub const VALUES: &'static [&'static str] = &[$($yaml),*];

            /// As written.
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $yaml, )* }
            }
        }

        impl $crate::decode::Decode for $name {
            fn schema() -> $crate::decode::Schema {
                $crate::decode::Schema::Choice(Self::VALUES)
            }

            fn decode(node: &evenkeel_base::yaml::Node, cx: &mut $crate::decode::Context) -> Option<Self> {
                const LATER: &[&str] = &[$($($later),*)?];
                match $crate::decode::macros::choice(node, cx, Self::VALUES, LATER)? {
                    $( $yaml => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use super::{Context, Field, Schema, Status};

/// A field of which only the name is known.
pub(crate) const fn without_schema(name: &'static str, status: Status, note: &'static str) -> Field {
    Field { name, status, schema: None, required: || false, note }
}

/// Reads a value that must be one of those allowed.
pub(crate) fn choice<'n>(
    node: &'n Node,
    cx: &mut Context,
    values: &'static [&'static str],
    later: &[&str],
) -> Option<&'n str> {
    let Some(text) = node.as_str() else {
        cx.wrong_type(node, &Schema::Choice(values));
        return None;
    };
    if values.contains(&text) {
        return Some(text);
    }
    let allowed = one_of(values.iter().copied());
    if later.contains(&text) {
        let message = format!("`{text}` is a known value, but not supported yet");
        cx.error("unsupported-value", &node.span, message, format!("supported: {allowed}"));
        return None;
    }
    let help = match closest(text, values.iter().copied()) {
        Some(value) => format!("did you mean `{value}`? Allowed: {allowed}"),
        None => format!("allowed: {allowed}"),
    };
    cx.error("bad-value", &node.span, format!("`{text}` is not allowed here"), help);
    None
}
