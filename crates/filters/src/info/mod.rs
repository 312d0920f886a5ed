//! Data about connections and streams, as read by filters, logs, statistics and traces.

mod connection;
pub mod edges;
mod flags;
mod stream;
mod times;

pub use connection::{ConnectionInfo, Hello};
pub use flags::ResponseFlags;
pub use stream::{EXEMPLAR, EarlierTry, Form, HostOverride, MessageCounts, StateObject, StreamInfo};
pub use times::Times;
