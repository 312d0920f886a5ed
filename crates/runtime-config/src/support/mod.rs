//! The table of supported fields of the Envoy API, which is checked before anything is compiled, and rendered into the documentation.
//!
//! A field that is set but not in the table is rejected, by its full path. A field is listed as accepted without effect
//! only if ignoring it cannot change what a user sees, with the reason.

mod authorization;
mod extensions;
mod load_balancing;
mod render;
mod resources;
mod tracing;
mod wire;

use std::sync::LazyLock;

use evenkeel_xds::fields::{Descend, Visit, walk_any};
use evenkeel_xds::{Any, Schema, type_url};

use crate::FastMap;
use crate::rejection::Problem;

pub use render::markdown;
pub(crate) use wire::{field, is_supported};

/// How a field is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Supported.
    Full,
    /// Supported for these values; others are rejected.
    Values(&'static str),
    /// Accepted without effect, for this reason.
    NoEffect(&'static str),
}

/// The kind of a message type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A resource or a part of one.
    Part,
    /// An extension: the message in a `typed_config`.
    Extension,
}

/// The supported fields of one message.
#[derive(Debug)]
pub struct MessageSupport {
    /// Full name.
    pub name: &'static str,
    /// Its kind.
    pub role: Role,
    /// Supported fields.
    pub full: &'static [&'static str],
    /// Fields supported for some values.
    pub values: &'static [(&'static str, &'static str)],
    /// Reasons, each with the fields it applies to.
    pub no_effect: &'static [(&'static str, &'static [&'static str])],
}

impl MessageSupport {
    /// How a field is treated; `None`: rejected.
    pub fn field(&self, field: &str) -> Option<Support> {
        if self.full.contains(&field) {
            return Some(Support::Full);
        }
        let values = self.values.iter().find(|(name, _)| *name == field).map(|(_, what)| Support::Values(what));
        let no_effect = self.no_effect.iter().find(|(_, fields)| fields.contains(&field));
        values.or_else(|| no_effect.map(|(reason, _)| Support::NoEffect(reason)))
    }
}

/// The table.
pub fn messages() -> impl Iterator<Item = &'static MessageSupport> {
    resources::MESSAGES
        .iter()
        .chain(extensions::MESSAGES)
        .chain(authorization::MESSAGES)
        .chain(load_balancing::MESSAGES)
        .chain(tracing::MESSAGES)
}

/// The entry of a message type.
pub fn message(full_name: &str) -> Option<&'static MessageSupport> {
    static BY_NAME: LazyLock<FastMap<&'static str, &'static MessageSupport>> =
        LazyLock::new(|| messages().map(|message| (message.name, message)).collect());
    BY_NAME.get(full_name).copied()
}

/// Checks all fields set in a resource. Nearly free if all are supported.
pub fn check(resource: &Any) -> Vec<Problem> {
    match wire::only_supported(resource) {
        true => Vec::new(),
        false => named_problems(&Schema::acquire(), resource),
    }
}

/// Messages whose extension may be unknown if `is_optional` is set, and the field that holds it.
const OPTIONAL: [(&str, &str); 2] = [
    ("envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter", "typed_config"),
    ("envoy.config.route.v3.FilterConfig", "config"),
];

/// Withdraws the problem that the extension beside `is_optional`, at this path, is unsupported as a whole.
fn forgive(problems: &mut Vec<Problem>, holder: &str, path: &str) {
    let Some((_, field)) = OPTIONAL.iter().find(|(name, _)| *name == holder) else { return };
    let extension = path.strip_suffix("is_optional").map(|beside| format!("{beside}{field}"));
    problems.retain(|problem| Some(&problem.path) != extension.as_ref());
}

/// The unsupported fields of a resource, by the descriptors. [`check`] gives the same result, faster.
pub fn named_problems(schema: &Schema, resource: &Any) -> Vec<Problem> {
    let mut problems = Vec::new();
    walk_any(schema, resource, &mut |path, visit| {
        let reason = match visit {
            // An optional extension may be unknown: it was visited just before.
            Visit::Field { message: name, field: "is_optional" }
                if OPTIONAL.iter().any(|(holder, _)| *holder == name) =>
            {
                forgive(&mut problems, name, path);
                return Descend::No;
            }
            // An empty one only enables the filter.
            Visit::OpaqueAny { type_url: "" } if path.ends_with("].config") => return Descend::No,
            Visit::Field { message: name, field } => match message(name).and_then(|message| message.field(field)) {
                Some(Support::NoEffect(_)) => return Descend::No,
                Some(_) => return Descend::Yes,
                None => "not supported".to_owned(),
            },
            Visit::Extension { message: name } => match message(name) {
                Some(MessageSupport { role: Role::Extension, .. }) => return Descend::Yes,
                _ => format!("extension {name} is not supported"),
            },
            Visit::UnknownField { message, number } => {
                format!("{message} has no field number {number} in the API version this build knows")
            }
            Visit::OpaqueAny { type_url: url } => {
                format!("extension {} is not supported", type_url::message_name(url))
            }
            Visit::TypedStruct { type_url: url } => {
                format!("extension {} (in a TypedStruct) is not supported", type_url::message_name(url))
            }
        };
        problems.push(Problem { path: path.to_owned(), reason });
        Descend::No
    });
    problems
}
