//! State shared by the connections of one worker thread: its configuration, the roster of its connections, its peers'
//! inboxes, its log and its upstream pools. Nothing here depends on how a connection or request is served or on the
//! thread itself: the crate's module `pool` runs the threads, `listener` and `http` serve on them.

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
