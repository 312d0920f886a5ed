//! `/tap`: requests as they end, for `evenkeel tap`. While nobody reads, a request costs one branch at its end.
//!
//! | question | file |
//! |---|---|
//! | what is shown of a request? | `entry.rs` |
//! | how are entries kept until a reader fetches them? | `ring.rs` |
//! | how is an entry made? | `capture.rs` |

mod capture;
mod entry;
mod ring;

pub(crate) use capture::TapRecorder;
pub use entry::{TapPage, TappedRequest};
pub(crate) use ring::Tap;
