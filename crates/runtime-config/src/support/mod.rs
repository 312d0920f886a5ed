//! The table of supported fields of the Envoy API, which is checked before anything is compiled, and rendered into the documentation.
//!
//! A field that is set but not in the table is rejected, by its full path. A field is listed as accepted without effect
//! only if ignoring it cannot change what a user sees, with the reason.

mod extensions;
mod load_balancing;
pub(crate) mod message;
mod render;
mod resources;
mod services;
mod tracing;
mod wire;

use std::sync::LazyLock;

use evenkeel_xds::fields::{Descend, Visit, walk_any};
use evenkeel_xds::{Any, Schema, type_url};

use crate::compile::rate_limit;
use crate::filters::custom::CustomFilterKind;
use crate::rejection::Problem;
use crate::{FastMap, filters, http_filters, network_filters};

pub use message::{MessageSupport, Role, Support};
pub use render::markdown;
pub(crate) use wire::{field, is_supported};

/// The table.
pub fn messages() -> impl Iterator<Item = &'static MessageSupport> {
    resources::MESSAGES
        .iter()
        .chain(extensions::MESSAGES)
        .chain(http_filters::SUPPORTED.iter().copied().flatten())
        .chain(filters::compression::FIELDS)
        .chain(rate_limit::FIELDS)
        .chain(network_filters::SUPPORTED.iter().copied().flatten())
        .chain(services::MESSAGES)
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
    check_with(resource, &[])
}

/// Like [`check`]; the messages of these custom filters are theirs to check.
pub(crate) fn check_with(resource: &Any, custom: &[CustomFilterKind]) -> Vec<Problem> {
    if wire::only_supported(resource) { Vec::new() } else { problems(&Schema::acquire(), resource, custom) }
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
    problems(schema, resource, &[])
}

fn problems(schema: &Schema, resource: &Any, custom: &[CustomFilterKind]) -> Vec<Problem> {
    let is_custom = |name: &str| custom.iter().any(|kind| kind.has_message(name));
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
            Visit::Extension { message: name } if is_custom(name) => return Descend::No,
            Visit::OpaqueAny { type_url: url } if is_custom(type_url::message_name(url)) => return Descend::No,
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
