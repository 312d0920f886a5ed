//! Rotation: changes the authority without an outage.
//!
//! ```text
//!  Steady ──► Distributing ──► Replacing ──► Retiring ──► Steady
//!             the new root      workloads     servers too   the old root is
//!             is trusted        get leaves    show the      no longer trusted,
//!             everywhere        of the new    new leaves    its key is gone
//! ```
//!
//! [`State`] is the state of a rotation, and [`State::advance`] decides when it continues: both are values, and time is an
//! argument. [`Ledger`] records which workload has which certificate and trusts which roots. [`AuthorityStore`] keeps state and
//! authorities in the state directory, so that any control plane that shares the directory can continue after a crash at any
//! step. [`Signing`] is derived from the state: which authority signs what, and which roots are trusted.

mod ledger;
mod signing;
mod state;
mod store;

pub use ledger::{HOLDER_SKEW, Holder, Ledger, Ledgers, MAX_HOLDERS, Record};
pub use signing::Signing;
pub use state::{EXTERNAL, Kind, Observed, Origin, Phase, SETTLE, Signer, State, Step, Waiting};
pub use store::{AuthorityStore, BUNDLE_FILE, FurtherRoot, MAX_WITHOUT_BYTES, Reloaded, StoreError};
