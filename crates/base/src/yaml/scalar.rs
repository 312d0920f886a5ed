//! YAML 1.2's core schema (section 10.3.2): what an unquoted text means.

use super::ScalarType;

/// Resolves an unquoted scalar.
pub(super) fn resolve(text: &str) -> ScalarType {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarType::Null,
        "true" | "True" | "TRUE" => ScalarType::Bool(true),
        "false" | "False" | "FALSE" => ScalarType::Bool(false),
        ".nan" | ".NaN" | ".NAN" => ScalarType::Float(f64::NAN),
        _ => {
            integer(text).map(ScalarType::Int).or_else(|| float(text).map(ScalarType::Float)).unwrap_or(ScalarType::Str)
        }
    }
}

fn integer(text: &str) -> Option<i128> {
    if let Some(hex) = text.strip_prefix("0x") {
        return all(hex, |c| c.is_ascii_hexdigit()).then(|| i128::from_str_radix(hex, 16).ok())?;
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return all(octal, |c| matches!(c, '0'..='7')).then(|| i128::from_str_radix(octal, 8).ok())?;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    // YAML 1.1's octal numbers, as both Kubernetes and Envoy read them: `defaultMode: 0644`.
    if digits.len() > 1 && digits.starts_with('0') && all(digits, |c| matches!(c, '0'..='7')) {
        let value = i128::from_str_radix(digits, 8).ok()?;
        return Some(if text.starts_with('-') { -value } else { value });
    }
    all(digits, |c| c.is_ascii_digit()).then(|| text.parse().ok())?
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    // Rust's own parser also takes `inf`, `nan` and the like, so the shape is checked first.
    let starts_right = unsigned.starts_with(|c: char| c.is_ascii_digit())
        || unsigned.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let shape =
        starts_right && unsigned.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+'));
    if shape { text.parse().ok() } else { None }
}

fn all(text: &str, accept: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(accept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_core_schema() {
        let check = |text: &str, expected: ScalarType| assert_eq!(resolve(text), expected, "{text}");
        check("", ScalarType::Null);
        check("~", ScalarType::Null);
        check("True", ScalarType::Bool(true));
        check("yes", ScalarType::Str);
        check("0x1F", ScalarType::Int(31));
        check("0o17", ScalarType::Int(15));
        check("0644", ScalarType::Int(420));
        check("-010", ScalarType::Int(-8));
        check("08", ScalarType::Int(8));
        check("00", ScalarType::Int(0));
        check("-12", ScalarType::Int(-12));
        check("18446744073709551615", ScalarType::Int(u64::MAX.into()));
        check("1.5", ScalarType::Float(1.5));
        check("1e3", ScalarType::Float(1000.0));
        check(".5", ScalarType::Float(0.5));
        check("-.inf", ScalarType::Float(f64::NEG_INFINITY));
        check("inf", ScalarType::Str);
        check("nan", ScalarType::Str);
        check("1.2.3", ScalarType::Str);
        check("1s", ScalarType::Str);
        check("0x", ScalarType::Str);
        check("-", ScalarType::Str);
        check("e5", ScalarType::Str);
    }
}
