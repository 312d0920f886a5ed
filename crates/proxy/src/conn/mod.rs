//! What every connection is driven with: a buffer for what was read, a deadline.

pub(crate) mod buffer;
pub(crate) mod deadline;

pub(crate) use buffer::Buffer;
pub(crate) use deadline::Deadline;
