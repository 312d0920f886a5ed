//! Format strings with command operators (Envoy's `SubstitutionFormatString`): in access logs, headers, tags of spans and local replies.
//!
//! A [`Format`] is parsed when a configuration is read, by the control plane and by the proxy alike, so that both name the same mistakes.
//! What the operators print is in crate `filters`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod arguments;
mod names;
mod operator;
mod parse;

pub use names::{ONLY_ENVOY, is_known, known};
pub use operator::{
    AddressOf, AddressPart, Attempted, Certificate, CertificateField, Conversion, FilterStateFormat, Format,
    FormatPart, GrpcStatusFormat, HeadOf, HostSource, Operator, PathSource, Precision, Side, TimePoint, TlsField,
    Whose,
};
pub use parse::{ENVOY_DEFAULT_FORMAT, FormatError, ISTIO_DEFAULT_FORMAT, Surroundings, operator_at};
