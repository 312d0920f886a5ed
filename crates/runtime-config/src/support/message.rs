//! The supported fields of one message.

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

/// Reasons that several messages share.
pub(crate) const NO_RUNTIME: &str = "this filter reads no runtime key; the configured value applies";
pub(crate) const NO_UPSTREAM_MATCHER: &str =
    "nothing reads the saved address: the matcher of upstream addresses is not supported";
pub(crate) const NO_SPAN: &str = "calls of filters have no spans";
pub(crate) const NO_READER: &str = "only user-written Envoy extensions read it";
pub(crate) const NO_TYPED_METADATA: &str = "nothing here sets metadata of a message type";

/// A message in a `typed_config` whose fields work.
pub(crate) const fn extension(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    message_of(name, Role::Extension, full)
}

/// A part of other messages whose fields work.
pub(crate) const fn part(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    message_of(name, Role::Part, full)
}

const fn message_of(name: &'static str, role: Role, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role, full, values: &[], no_effect: &[] }
}
