//! What an installation consists of, as pure functions: read [`Release::render`] first. It makes the objects of the chart
//! `charts/evenkeel`, whose files are part of the program, so that `helm install` and `evenkeel install` apply the same.

#![forbid(unsafe_code)]

mod chart;
mod order;
mod release;
mod set;
mod template;
mod values;

pub use order::{in_install_order, in_uninstall_order};
pub use release::{InstallError, Release, Rendered};
pub use set::SetError;
pub use values::{Values, ValuesError};
