//! Tests on texts.

use evenkeel_base::yaml::Node;

use crate::decode::{Context, RegexText};

object! {
    /// A test on a text: one of the three, or none, which any existing text passes.
    pub struct StringMatch {
        /// The whole text.
        exact: Option<String> = "exact",
        /// Its beginning.
        prefix: Option<String> = "prefix",
        /// The whole text against an expression.
        regex: Option<RegexText> = "regex",
    }
    check: check;
}

fn check(value: &StringMatch, node: &Node, cx: &mut Context) {
    let given = [value.exact.is_some(), value.prefix.is_some(), value.regex.is_some()];
    if given.into_iter().filter(|is| *is).count() > 1 {
        cx.error("conflict", &node.span, "only one of `exact`, `prefix` and `regex` can be given", "remove the others");
    }
}
