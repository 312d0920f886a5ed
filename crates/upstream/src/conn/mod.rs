//! The building blocks of every connection: a read buffer, a write buffer, a deadline, a pipe for bulk data, a queue to
//! another thread, batched sends per worker, and detection of clients that hang up while they are not read from.

pub mod buffer;
pub mod burst;
pub mod deadline;
pub mod hangup;
pub mod held;
pub mod outgoing;
pub mod pipe;
mod spare;
pub mod splice;

pub use buffer::Buffer;
pub use deadline::Deadline;
pub use held::HeldBytes;
pub use outgoing::Outgoing;
