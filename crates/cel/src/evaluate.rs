//! Evaluates expressions, with a limit to their steps.

use crate::attributes;
use crate::tree::{Attribute, Expression, Fold, Node};
use crate::value::{Failure, MAX_STEPS, Value};

/// The attributes of a request or connection.
pub trait Attributes {
    /// The value of an attribute; `None`: there is none.
    fn attribute(&self, attribute: Attribute) -> Option<Value>;
}

impl Expression {
    /// Its value for these attributes.
    pub fn evaluate(&self, attributes: &dyn Attributes) -> Result<Value, Failure> {
        Evaluation { attributes, variables: Vec::new(), steps: 0 }.value(&self.root)
    }

    /// Whether it is true for these attributes. As in Envoy, one that fails or has another type is not.
    pub fn holds(&self, attributes: &dyn Attributes) -> bool {
        matches!(self.evaluate(attributes), Ok(Value::Bool(true)))
    }
}

struct Evaluation<'e> {
    attributes: &'e dyn Attributes,
    /// Of the macros around, the innermost last.
    variables: Vec<(&'e str, Value)>,
    steps: usize,
}

impl<'e> Evaluation<'e> {
    fn count(&mut self, steps: usize) -> Result<(), Failure> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS { Err(Failure::Steps) } else { Ok(()) }
    }

    /// Recursion depth is bounded by the parser.
    fn value(&mut self, node: &'e Node) -> Result<Value, Failure> {
        self.count(1)?;
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Attribute(attribute) => self.attribute(*attribute),
            Node::Root(root) => self.root(root),
            Node::Variable(name) => self.variable(name),
            Node::Select(of, field) => self.value(of)?.at(&Value::text(field)),
            Node::Has(of, field) => self.has(of, field),
            Node::And(both) => self.unless_decided(both, false),
            Node::Or(both) => self.unless_decided(both, true),
            Node::Conditional(parts) => self.conditional(parts),
            Node::NotFalse(of) => Ok(Value::Bool(self.value(of) != Ok(Value::Bool(false)))),
            Node::Operator(operator, operands) => operator.apply(&self.values(operands)?),
            Node::Function(function, arguments) => function.apply(&self.values(arguments)?),
            Node::Matches(text, pattern) => match self.value(text)? {
                Value::Text(text) => {
                    self.count(text.len() / 8)?;
                    Ok(Value::Bool(pattern.is_match(text.as_bytes())))
                }
                other => Err(Failure::types("matches", &[&other])),
            },
            Node::List(items) => Ok(Value::list(self.values(items)?)),
            Node::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| Ok((self.value(key)?, self.value(value)?)));
                Ok(Value::Map(std::sync::Arc::new(entries.collect::<Result<_, _>>()?)))
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    fn values(&mut self, nodes: &'e [Node]) -> Result<Vec<Value>, Failure> {
        let mut values = Vec::with_capacity(nodes.len());
        for node in nodes {
            let value = self.value(node)?;
            self.count(value.weight())?;
            values.push(value);
        }
        Ok(values)
    }

    fn attribute(&self, attribute: Attribute) -> Result<Value, Failure> {
        let name = attribute.field.unwrap_or(attribute.root);
        self.attributes.attribute(attribute).ok_or_else(|| Failure::Missing(name.into()))
    }

    fn root(&mut self, root: &'static str) -> Result<Value, Failure> {
        let fields = attributes::fields(root);
        if fields.is_empty() {
            return self.attribute(Attribute { root, field: None });
        }
        self.count(fields.len())?;
        let known = fields.iter().filter_map(|field| {
            let value = self.attributes.attribute(Attribute { root, field: Some(field) })?;
            Some((*field, value))
        });
        Ok(Value::map(known))
    }

    fn variable(&self, name: &str) -> Result<Value, Failure> {
        let found = self.variables.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone()).ok_or_else(|| Failure::Missing(name.into()))
    }

    fn has(&mut self, of: &'e Node, field: &str) -> Result<Value, Failure> {
        match self.value(of)?.at(&Value::text(field)) {
            Ok(_) => Ok(Value::Bool(true)),
            Err(Failure::Missing(_)) => Ok(Value::Bool(false)),
            Err(failure) => Err(failure),
        }
    }

    /// `&&` and `||`: if one side decides, it does not matter that the other has no value.
    fn unless_decided(&mut self, [left, right]: &'e [Node; 2], decides: bool) -> Result<Value, Failure> {
        let left = self.value(left);
        if left == Ok(Value::Bool(decides)) {
            return left;
        }
        match (left, self.value(right)?) {
            (_, Value::Bool(right)) if right == decides => Ok(Value::Bool(decides)),
            (Ok(Value::Bool(_)), Value::Bool(right)) => Ok(Value::Bool(right)),
            (Ok(left), right) => Err(Failure::types(if decides { "||" } else { "&&" }, &[&left, &right])),
            (Err(failure), _) => Err(failure),
        }
    }

    fn conditional(&mut self, [condition, then, otherwise]: &'e [Node; 3]) -> Result<Value, Failure> {
        match self.value(condition)? {
            Value::Bool(condition) => self.value(if condition { then } else { otherwise }),
            other => Err(Failure::types("?:", &[&other])),
        }
    }

    fn fold(&mut self, fold: &'e Fold) -> Result<Value, Failure> {
        let range = self.value(&fold.range)?;
        self.count(range.weight())?;
        let elements: Vec<Value> = match &range {
            Value::List(values) => values.to_vec(),
            Value::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            other => return Err(Failure::types("a macro", &[other])),
        };
        let start = self.value(&fold.start)?;
        let depth = self.variables.len();
        self.variables.push((&fold.result, start));
        let result = self.fold_elements(fold, elements);
        let result = result.and_then(|()| self.value(&fold.end));
        self.variables.truncate(depth);
        result
    }

    fn fold_elements(&mut self, fold: &'e Fold, elements: Vec<Value>) -> Result<(), Failure> {
        for element in elements {
            self.variables.push((&fold.element, element));
            let goes_on = self.value(&fold.condition)? == Value::Bool(true);
            let next = if goes_on { Some(self.value(&fold.step)?) } else { None };
            self.variables.pop();
            match (next, self.variables.last_mut()) {
                (Some(next), Some((_, result))) => *result = next,
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}
