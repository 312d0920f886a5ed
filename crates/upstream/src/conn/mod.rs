//! What every connection is driven with: a buffer for what was read, one for what is to be written, a deadline, a pipe for bulk,
//! a queue to another thread, a worker's sends one after the other, and an ear for clients that leave.

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
