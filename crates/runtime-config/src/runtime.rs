//! Values of runtime keys (`layered_runtime` of the bootstrap), which take the place of the defaults of fields with a
//! `runtime_key`.

use std::collections::BTreeMap;

use crate::fraction::Fraction;

/// The values of all static layers, by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runtime {
    values: BTreeMap<Box<str>, RuntimeValue>,
}

/// A value, as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RuntimeValue {
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A `FractionalPercent`.
    Fraction(Fraction),
}

impl Runtime {
    /// Sets a value. Layers are set from the first to the last: the last one counts.
    pub fn set(&mut self, key: &str, value: RuntimeValue) {
        self.values.insert(key.into(), value);
    }

    /// The value of a `RuntimeFeatureFlag`. As in Envoy, a value of another kind leaves the field its default.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.values.get(key)? {
            RuntimeValue::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The value of a `RuntimeDouble`.
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.values.get(key)? {
            RuntimeValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The value of a `RuntimeUInt32`.
    pub fn whole_number(&self, key: &str) -> Option<u32> {
        let number = self.number(key).filter(|number| *number >= 0.0 && number.fract() == 0.0)?;
        // Saturates.
        Some(number as u32)
    }

    /// The value of a `RuntimeFractionalPercent`; a whole number is a percentage, whatever the default's denominator.
    pub fn fraction(&self, key: &str) -> Option<Fraction> {
        match self.values.get(key)? {
            RuntimeValue::Fraction(fraction) => Some(*fraction),
            _ => self.whole_number(key).map(|percent| Fraction { numerator: percent.min(100), denominator: 100 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_fields_of_its_kind() {
        let of = |numerator, denominator| Fraction { numerator, denominator };
        let check = |value, flag: Option<bool>, whole: Option<u32>, fraction: Option<Fraction>| {
            let mut runtime = Runtime::default();
            runtime.set("a", RuntimeValue::Flag(true));
            runtime.set("a", value);
            assert_eq!((runtime.flag("a"), runtime.whole_number("a")), (flag, whole), "{value:?}");
            assert_eq!((runtime.fraction("a"), runtime.fraction("b")), (fraction, None), "{value:?}");
        };
        check(RuntimeValue::Flag(false), Some(false), None, None);
        check(RuntimeValue::Number(30.0), None, Some(30), Some(of(30, 100)));
        check(RuntimeValue::Number(1e12), None, Some(u32::MAX), Some(Fraction::ALL));
        check(RuntimeValue::Number(0.5), None, None, None);
        check(RuntimeValue::Number(-1.0), None, None, None);
        check(RuntimeValue::Number(f64::NAN), None, None, None);
        check(RuntimeValue::Fraction(of(5, 10_000)), None, None, Some(of(5, 10_000)));
    }
}
