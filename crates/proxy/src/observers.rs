//! What sees the end of requests and connections. All observers see one [`Record`], which format strings, filters and logs read, too; what an
//! observer needs besides, it holds. The lists of them are in `http/log.rs`, for requests, and in `tcp/mod.rs`, for connections.

use evenkeel_filters::format::Record;

/// Sees the end of a request, or of a connection that carries no HTTP.
pub(crate) trait Observer {
    /// The request or connection has ended, however it ended.
    fn ended(&mut self, end: &Record<'_>);
}

/// Shows an end to observers, in this order.
#[inline]
pub(crate) fn show(end: &Record<'_>, observers: &mut [&mut dyn Observer]) {
    for observer in observers {
        observer.ended(end);
    }
}
