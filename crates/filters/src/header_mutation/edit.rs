//! Edits of a message's headers.

use evenkeel_http::Headers;
use evenkeel_runtime_config::header_edits::HeaderMutation;
use evenkeel_runtime_config::substitution_format::Format;

use crate::header_edits::add_header;

/// Headers or trailers that edits apply to, in the context that their values are formatted in. A value may refer to what earlier edits
/// have made of the message.
pub(super) trait Edited {
    /// What is edited.
    fn fields(&mut self) -> &mut Headers;
    /// The value of a format string at this point.
    fn value_of(&self, format: &Format) -> Vec<u8>;

    /// Applies edits, in order.
    fn edit(&mut self, mutations: &[HeaderMutation]) {
        for mutation in mutations {
            match mutation {
                HeaderMutation::Remove(name) => self.fields().remove_name(name.as_bytes()),
                HeaderMutation::RemoveMatching(names) => self.fields().remove_where(|_, name| names.matches(name)),
                HeaderMutation::Add(addition) => {
                    let value = self.value_of(&addition.value);
                    add_header(self.fields(), addition, &value);
                }
            }
        }
    }
}
