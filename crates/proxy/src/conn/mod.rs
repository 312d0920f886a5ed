//! Connections as the data path sees them: a stream, a buffer for what was read, a deadline.

pub(crate) mod buffer;
pub(crate) mod deadline;
pub(crate) mod stream;

pub(crate) use buffer::Buffer;
pub(crate) use deadline::Deadline;
pub(crate) use stream::Stream;
