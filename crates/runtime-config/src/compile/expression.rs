//! Expressions (CEL).

use std::sync::Arc;

use evenkeel_cel::Expression as Compiled;

use super::Cx;
use crate::expression::Expression;

/// The expression in a field.
pub(crate) fn expression(cx: &mut Cx<'_>, field: &str, text: &str) -> Option<Expression> {
    match Compiled::compile(text) {
        Ok(compiled) => Some(Expression { compiled: Arc::new(compiled), node: Arc::clone(&cx.env.tracing.node) }),
        Err(error) => cx.fail_at(field, error.to_string()),
    }
}
