//! What an installation consists of, as pure functions: read [`Release::render`] first. It makes the objects of the chart
//! `charts/evenkeel`, whose files are part of the program, so that `helm install` and `evenkeel install` apply the same.

#![forbid(unsafe_code)]

mod chart;
pub mod checks;
pub mod crds;
pub mod injectors;
mod order;
mod release;
mod set;
pub mod tags;
mod template;
pub mod upgrade;
mod values;

/// Field manager of what `evenkeel install` applies, and the label `app.kubernetes.io/managed-by` of its objects.
pub const MANAGER: &str = "evenkeel";

pub use order::{in_install_order, in_uninstall_order};
pub use release::{InstallError, Release, Rendered};
pub use set::SetError;
pub use values::{Values, ValuesError};
