//! What the connections of one worker thread share, and what everything that serves them may know of the worker: its
//! configuration, its connections' entries, its peers' inboxes, its log and its pools. Nothing here knows a listener's
//! connection, a request or the thread itself: crate module `pool` runs the threads, `listener` and `http` serve on them.

mod charged;
mod context;
mod cores;
mod drains;
mod generation;
mod hold;
mod idle_meter;
mod inbox;
mod local;
mod orders;
mod registration;
mod roster;
mod work;

pub(crate) use charged::spawn;
pub(crate) use context::{Seed, Worker};
pub use cores::available_cores;
pub use drains::DrainScope;
pub use generation::Generation;
pub(crate) use hold::{HoldError, MAX_DEMANDS};
pub(crate) use inbox::{Delivery, MAX_INBOX_MESSAGES, Message};
pub(crate) use local::{ConnectionStats, HttpManager, TcpStats};
pub(crate) use registration::{Directive, Registration};
pub(crate) use work::Cause;
