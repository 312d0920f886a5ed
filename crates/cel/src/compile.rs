//! Compiles expressions: what they name must exist, and their size is limited.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::parser::PrattParser;
use evenkeel_base::re2::Regex;
use thiserror::Error;

use crate::attributes;
use crate::functions::{self, Function};
use crate::operators::Operator;
use crate::tree::{Attribute, Expression, Fold, Node};
use crate::value::Value;

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 4096;
/// How deep an expression may be nested.
pub const MAX_DEPTH: u16 = 32;
/// How many parts it may have.
pub const MAX_NODES: usize = 1000;

/// Why a text is no expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message} (line {line}, column {column})")]
pub struct CompileError {
    /// What is wrong.
    pub message: String,
    /// The line in the expression, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
}

impl CompileError {
    fn at_start(message: impl Into<String>) -> Self {
        Self { message: message.into(), line: 1, column: 1 }
    }
}

impl Expression {
    /// Compiles an expression.
    pub fn compile(text: &str) -> Result<Self, CompileError> {
        if text.len() > MAX_BYTES {
            return Err(CompileError::at_start(format!("an expression has at most {MAX_BYTES} bytes")));
        }
        if brackets(text) > MAX_DEPTH.into() {
            return Err(CompileError::at_start(format!("brackets are nested deeper than {MAX_DEPTH}")));
        }
        let parser = PrattParser::new().max_recursion_depth(MAX_DEPTH).max_expression_node_count(MAX_NODES);
        let tree = parser.parse(text).map_err(|errors| match errors.errors.first() {
            Some(error) => CompileError {
                message: error.msg.lines().next().unwrap_or_default().to_owned(),
                line: usize::try_from(error.pos.0).unwrap_or(1).max(1),
                column: usize::try_from(error.pos.1).unwrap_or(1).max(1),
            },
            None => CompileError::at_start("is no expression"),
        })?;
        let mut compiler = Compiler { text, variables: Vec::new(), nodes: 0 };
        Ok(Self { text: text.into(), root: compiler.node(&tree, 0)? })
    }
}

/// How deep brackets are nested, those in texts included. The parser's own limit does not count round ones.
fn brackets(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

struct Compiler<'t> {
    text: &'t str,
    /// Variables of the macros around.
    variables: Vec<String>,
    nodes: usize,
}

impl Compiler<'_> {
    /// An error where `word` stands, if it stands anywhere: the parser keeps no places of names.
    fn error<T>(&self, word: &str, message: String) -> Result<T, CompileError> {
        let at = self.text.find(word).filter(|_| !word.is_empty()).unwrap_or_default();
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Err(CompileError { message, line, column })
    }

    fn node(&mut self, tree: &IdedExpr, depth: u16) -> Result<Node, CompileError> {
        self.nodes += 1;
        // Macros nest deeper than what is written.
        if depth > MAX_DEPTH * 4 || self.nodes > MAX_NODES * 8 {
            return Err(CompileError::at_start("the expression is too large"));
        }
        let depth = depth + 1;
        match &tree.expr {
            Expr::Literal(literal) => Ok(Node::Constant(constant(literal))),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => self.select(select, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::List(list) => Ok(Node::List(self.nodes(&list.elements, depth)?)),
            Expr::Map(map) => {
                let mut entries = Vec::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return self.error("{", "messages cannot be made".to_owned());
                    };
                    entries.push((self.node(&entry.key, depth)?, self.node(&entry.value, depth)?));
                }
                Ok(Node::Map(entries))
            }
            Expr::Comprehension(fold) => self.fold(fold, depth),
            Expr::Struct(made) => self.error(&made.type_name, "messages cannot be made".to_owned()),
            Expr::Unspecified => Err(CompileError::at_start("is no expression")),
        }
    }

    fn nodes(&mut self, trees: &[IdedExpr], depth: u16) -> Result<Vec<Node>, CompileError> {
        trees.iter().map(|tree| self.node(tree, depth)).collect()
    }

    fn name(&self, name: &str) -> Result<Node, CompileError> {
        if self.variables.iter().any(|known| known == name) {
            return Ok(Node::Variable(name.into()));
        }
        match attributes::root(name) {
            Some(root) if attributes::fields(root).is_empty() => Ok(Node::Attribute(Attribute { root, field: None })),
            Some(root) => Ok(Node::Root(root)),
            None => {
                let known: Vec<&str> = attributes::roots().collect();
                self.error(name, format!("`{name}` is no attribute; there are {}", known.join(", ")))
            }
        }
    }

    fn select(&mut self, select: &SelectExpr, depth: u16) -> Result<Node, CompileError> {
        let of = self.node(&select.operand, depth)?;
        let field = select.field.as_str();
        match (of, select.test) {
            (Node::Root(root), test) => {
                let Some(known) = attributes::fields(root).iter().find(|known| **known == field) else {
                    let known = attributes::fields(root).join(", ");
                    return self.error(field, format!("`{root}` has no `{field}`; it has {known}"));
                };
                let has = || Node::Has(Box::new(Node::Root(root)), field.into());
                Ok(if test { has() } else { Node::Attribute(Attribute { root, field: Some(known) }) })
            }
            (of, true) => Ok(Node::Has(Box::new(of), field.into())),
            (of, false) => Ok(Node::Select(Box::new(of), field.into())),
        }
    }

    fn call(&mut self, call: &CallExpr, depth: u16) -> Result<Node, CompileError> {
        let name = call.func_name.as_str();
        let mut arguments = Vec::new();
        for argument in call.target.iter().map(|target| &**target).chain(&call.args) {
            arguments.push(self.node(argument, depth)?);
        }
        let count = arguments.len();
        if let Some(operator) = Operator::named(name, count) {
            return Ok(Node::Operator(operator, arguments));
        }
        if name == "matches" {
            return self.matches(arguments);
        }
        if let Some(function) = Function::named(name, count) {
            return Ok(Node::Function(function, arguments));
        }
        match (name, two(&mut arguments), count) {
            ("_&&_", Some(both), 2) => Ok(Node::And(both)),
            ("_||_", Some(both), 2) => Ok(Node::Or(both)),
            ("_?_:_", _, 3) => match <[Node; 3]>::try_from(arguments) {
                Ok(parts) => Ok(Node::Conditional(Box::new(parts))),
                Err(_) => Err(CompileError::at_start("is no expression")),
            },
            ("@not_strictly_false", _, 1) if let Some(of) = arguments.pop() => Ok(Node::NotFalse(Box::new(of))),
            _ => {
                let known: Vec<&str> = functions::names().chain(["matches"]).collect();
                let known = known.join(", ");
                self.error(name, format!("there is no function `{name}` with {count} arguments; there are {known}"))
            }
        }
    }

    fn matches(&self, arguments: Vec<Node>) -> Result<Node, CompileError> {
        let Ok([text, pattern]) = <[Node; 2]>::try_from(arguments) else {
            return self.error("matches", "`matches` wants a text and a pattern".to_owned());
        };
        let Node::Constant(Value::Text(pattern)) = pattern else {
            return self.error("matches", "the pattern of `matches` must be a literal".to_owned());
        };
        match Regex::anywhere(&pattern) {
            Ok(pattern) => Ok(Node::Matches(Box::new(text), Box::new(pattern))),
            Err(error) => self.error("matches", format!("the pattern is no regular expression: {error}")),
        }
    }

    fn fold(&mut self, fold: &ComprehensionExpr, depth: u16) -> Result<Node, CompileError> {
        if fold.iter_var2.is_some() {
            return Err(CompileError::at_start("macros with two variables are not supported"));
        }
        let (range, start) = (self.node(&fold.iter_range, depth)?, self.node(&fold.accu_init, depth)?);
        let before = self.variables.len();
        self.variables.extend([fold.accu_var.clone(), fold.iter_var.clone()]);
        let (condition, step) = (self.node(&fold.loop_cond, depth)?, self.node(&fold.loop_step, depth)?);
        let end = self.node(&fold.result, depth)?;
        self.variables.truncate(before);
        let (element, result) = (fold.iter_var.as_str().into(), fold.accu_var.as_str().into());
        Ok(Node::Fold(Box::new(Fold { range, element, result, start, condition, step, end })))
    }
}

/// Takes the operands if there are two.
fn two(nodes: &mut Vec<Node>) -> Option<Box<[Node; 2]>> {
    if nodes.len() != 2 {
        return None;
    }
    <[Node; 2]>::try_from(std::mem::take(nodes)).ok().map(Box::new)
}

fn constant(literal: &LiteralValue) -> Value {
    match literal {
        LiteralValue::Boolean(value) => Value::Bool(*value.inner()),
        LiteralValue::Bytes(value) => Value::Bytes(value.inner().into()),
        LiteralValue::Double(value) => Value::Double(*value.inner()),
        LiteralValue::Int(value) => Value::Int(*value.inner()),
        LiteralValue::Null => Value::Null,
        LiteralValue::String(value) => Value::text(value.inner()),
        LiteralValue::UInt(value) => Value::Uint(*value.inner()),
    }
}
