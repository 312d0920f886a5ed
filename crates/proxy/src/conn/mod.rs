//! What every connection is driven with: a buffer for what was read, a deadline, a pipe for bulk.

pub(crate) mod buffer;
pub(crate) mod deadline;
pub(crate) mod splice;

pub(crate) use buffer::Buffer;
pub(crate) use deadline::Deadline;
