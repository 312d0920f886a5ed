//! The form of names in which they are compared and looked up.

/// Normalizes a name for comparison.
pub(crate) fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}
