//! Compiled expressions.

use std::fmt;

use evenkeel_base::re2::Regex;

use crate::functions::Function;
use crate::operators::Operator;
use crate::value::Value;

/// A compiled expression.
pub struct Expression {
    pub(crate) text: Box<str>,
    pub(crate) root: Node,
}

/// An attribute: a root, and a field of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    /// `request`.
    pub root: &'static str,
    /// `path`; `None`: the root is a value of its own.
    pub field: Option<&'static str>,
}

impl Expression {
    /// The expression, as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.text)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

/// A part of an expression.
pub(crate) enum Node {
    Constant(Value),
    Attribute(Attribute),
    /// A root with all its fields.
    Root(&'static str),
    /// A variable of a macro.
    Variable(Box<str>),
    Select(Box<Node>, Box<str>),
    /// `has(operand.field)`
    Has(Box<Node>, Box<str>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    /// `condition ? then : otherwise`
    Conditional(Box<[Node; 3]>),
    /// Of macros: whether it is anything but false.
    NotFalse(Box<Node>),
    Operator(Operator, Vec<Node>),
    Function(Function, Vec<Node>),
    Matches(Box<Node>, Box<Regex>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Fold(Box<Fold>),
}

/// A macro: `all`, `exists`, `exists_one`, `filter`, `map`.
pub(crate) struct Fold {
    pub(crate) range: Node,
    /// The variable that each element gets.
    pub(crate) element: Box<str>,
    /// The variable with the result so far.
    pub(crate) result: Box<str>,
    pub(crate) start: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) end: Node,
}
