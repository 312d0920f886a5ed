//! What every connection is driven with: a buffer for what was read, one for what is to be written, a deadline, a pipe for bulk,
//! a queue to another thread, a worker's sends one after the other, and an ear for clients that leave.

pub(crate) mod buffer;
pub(crate) mod burst;
pub(crate) mod deadline;
pub(crate) mod hangup;
pub(crate) mod held;
pub(crate) mod outgoing;
pub(crate) mod pipe;
mod spare;
pub(crate) mod splice;

pub(crate) use buffer::Buffer;
pub(crate) use deadline::Deadline;
pub(crate) use held::HeldBytes;
pub(crate) use outgoing::Outgoing;
