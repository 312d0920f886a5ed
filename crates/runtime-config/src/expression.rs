//! Expressions (CEL) in configurations.

use std::sync::Arc;

use crate::tracing::OwnNode;

/// An expression over the attributes of a request or connection.
#[derive(Debug, Clone)]
pub struct Expression {
    /// The expression.
    pub compiled: Arc<evenkeel_cel::Expression>,
    /// The attributes `node` and `xds.node`.
    pub node: Arc<OwnNode>,
}
