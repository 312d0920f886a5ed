//! Operators that have a value for all values of their types.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::value::{Failure, Value};

/// An operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Not,
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    At,
}

/// Operators by the parser's names, with the number of their operands.
const TABLE: [(&str, Operator, usize, &str); 15] = [
    ("!_", Operator::Not, 1, "!"),
    ("-_", Operator::Negate, 1, "-"),
    ("_+_", Operator::Add, 2, "+"),
    ("_-_", Operator::Subtract, 2, "-"),
    ("_*_", Operator::Multiply, 2, "*"),
    ("_/_", Operator::Divide, 2, "/"),
    ("_%_", Operator::Modulo, 2, "%"),
    ("_==_", Operator::Equal, 2, "=="),
    ("_!=_", Operator::NotEqual, 2, "!="),
    ("_<_", Operator::Less, 2, "<"),
    ("_<=_", Operator::LessOrEqual, 2, "<="),
    ("_>_", Operator::Greater, 2, ">"),
    ("_>=_", Operator::GreaterOrEqual, 2, ">="),
    ("@in", Operator::In, 2, "in"),
    ("_[_]", Operator::At, 2, "[]"),
];

impl Operator {
    /// The operator of this name with this number of operands.
    pub(crate) fn named(name: &str, operands: usize) -> Option<Self> {
        TABLE.iter().find(|(known, _, count, _)| *known == name && *count == operands).map(|(_, it, ..)| *it)
    }

    fn sign(self) -> &'static str {
        TABLE.iter().find(|(_, it, ..)| *it == self).map_or("", |(.., sign)| sign)
    }

    pub(crate) fn apply(self, values: &[Value]) -> Result<Value, Failure> {
        match values {
            [value] => self.unary(value),
            [left, right] => self.binary(left, right),
            _ => Err(Failure::types(self.sign(), &[])),
        }
    }

    fn unary(self, value: &Value) -> Result<Value, Failure> {
        match (self, value) {
            (Self::Not, Value::Bool(value)) => Ok(Value::Bool(!value)),
            (Self::Negate, Value::Int(value)) => value.checked_neg().map(Value::Int).ok_or(Failure::Range("-")),
            (Self::Negate, Value::Double(value)) => Ok(Value::Double(-value)),
            _ => Err(Failure::types(self.sign(), &[value])),
        }
    }

    fn binary(self, left: &Value, right: &Value) -> Result<Value, Failure> {
        let ordered = |is: fn(Ordering) -> bool| match (left, right) {
            (Value::Double(number), _) | (_, Value::Double(number)) if number.is_nan() => Ok(Value::Bool(false)),
            _ => left
                .ordering(right)
                .map(|found| Value::Bool(is(found)))
                .ok_or_else(|| Failure::types(self.sign(), &[left, right])),
        };
        match self {
            Self::Equal => Ok(Value::Bool(left.equals(right))),
            Self::NotEqual => Ok(Value::Bool(!left.equals(right))),
            Self::Less => ordered(Ordering::is_lt),
            Self::LessOrEqual => ordered(Ordering::is_le),
            Self::Greater => ordered(Ordering::is_gt),
            Self::GreaterOrEqual => ordered(Ordering::is_ge),
            Self::At => left.at(right),
            Self::In => match right {
                Value::List(values) => Ok(Value::Bool(values.iter().any(|value| value.equals(left)))),
                Value::Map(entries) => Ok(Value::Bool(entries.iter().any(|(key, _)| key.equals(left)))),
                _ => Err(Failure::types("in", &[left, right])),
            },
            Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Modulo => self.arithmetic(left, right),
            Self::Not | Self::Negate => Err(Failure::types(self.sign(), &[left, right])),
        }
    }

    fn arithmetic(self, left: &Value, right: &Value) -> Result<Value, Failure> {
        let sign = self.sign();
        match (left, right) {
            (Value::Int(left), Value::Int(right)) => self.of_ints(*left, *right).map(Value::Int),
            (Value::Uint(left), Value::Uint(right)) => {
                let value = match self {
                    Self::Add => left.checked_add(*right),
                    Self::Subtract => left.checked_sub(*right),
                    Self::Multiply => left.checked_mul(*right),
                    Self::Divide => left.checked_div(*right),
                    _ => left.checked_rem(*right),
                };
                value.map(Value::Uint).ok_or(Failure::Range(sign))
            }
            (Value::Double(left), Value::Double(right)) => match self {
                Self::Add => Ok(Value::Double(left + right)),
                Self::Subtract => Ok(Value::Double(left - right)),
                Self::Multiply => Ok(Value::Double(left * right)),
                Self::Divide => Ok(Value::Double(left / right)),
                _ => Err(Failure::types(sign, &[&Value::Double(*left), &Value::Double(*right)])),
            },
            (Value::Time(left), Value::Duration(right)) if matches!(self, Self::Add | Self::Subtract) => {
                self.of_ints(*left, *right).map(Value::Time)
            }
            (Value::Duration(left), Value::Time(right)) if self == Self::Add => {
                self.of_ints(*left, *right).map(Value::Time)
            }
            (Value::Duration(left), Value::Duration(right)) if matches!(self, Self::Add | Self::Subtract) => {
                self.of_ints(*left, *right).map(Value::Duration)
            }
            (Value::Time(left), Value::Time(right)) if self == Self::Subtract => {
                self.of_ints(*left, *right).map(Value::Duration)
            }
            (left, right) if self == Self::Add => joined(left, right),
            _ => Err(Failure::types(sign, &[left, right])),
        }
    }

    fn of_ints(self, left: i64, right: i64) -> Result<i64, Failure> {
        let value = match self {
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            Self::Divide => left.checked_div(right),
            _ => left.checked_rem(right),
        };
        value.ok_or(Failure::Range(self.sign()))
    }
}

fn joined(left: &Value, right: &Value) -> Result<Value, Failure> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Ok(Value::Text([&**left, &**right].concat().into())),
        (Value::Bytes(left), Value::Bytes(right)) => Ok(Value::Bytes([&**left, &**right].concat().into())),
        (Value::List(left), Value::List(right)) => Ok(Value::List(Arc::new([&***left, &***right].concat()))),
        _ => Err(Failure::types("+", &[left, right])),
    }
}
