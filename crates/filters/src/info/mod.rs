//! What is known of connections and of what goes over them: what filters, logs, statistics and traces all read.

mod connection;
mod flags;
mod stream;
mod times;

pub use connection::ConnectionInfo;
pub use flags::ResponseFlags;
pub use stream::{Form, HostOverride, StateObject, StreamInfo};
pub use times::Times;
