//! `FractionalPercent` and `RuntimeFractionalPercent`.

use evenkeel_xds::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use evenkeel_xds::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};

use super::Cx;
use crate::fraction::Fraction;

pub(crate) fn fraction(cx: &mut Cx<'_>, fraction: &FractionalPercent) -> Option<Fraction> {
    let denominator = match DenominatorType::try_from(fraction.denominator) {
        Ok(DenominatorType::Hundred) => 100,
        Ok(DenominatorType::TenThousand) => 10_000,
        Ok(DenominatorType::Million) => 1_000_000,
        Err(_) => return cx.fail_at("denominator", format!("unknown value {}", fraction.denominator)),
    };
    Some(Fraction { numerator: fraction.numerator, denominator })
}

/// The share by the runtime key, or else by the default value. `absent`: the result if the field is not set.
pub(crate) fn runtime_fraction(
    cx: &mut Cx<'_>,
    field: &str,
    runtime: Option<&RuntimeFractionalPercent>,
    absent: Fraction,
) -> Option<Fraction> {
    match runtime {
        None => Some(absent),
        Some(runtime) => cx.at(field, |cx| {
            let default = cx.required("default_value", runtime.default_value.as_ref())?;
            let default = cx.at("default_value", |cx| fraction(cx, default))?;
            Some(cx.runtime.fraction(&runtime.runtime_key).unwrap_or(default))
        }),
    }
}

pub(super) fn parts_per_million(cx: &mut Cx<'_>, percent: &FractionalPercent) -> Option<u32> {
    fraction(cx, percent).map(Fraction::parts_per_million)
}
