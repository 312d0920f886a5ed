//! The side that a request to a server is made for: what [`super::exchange`] does not know of it.

use std::rc::Rc;
use std::time::Duration;

use evenkeel_http::ResponseInfo;
use evenkeel_upstream::{Host, PickError, PooledConnection};

use super::failure::Failure;
use super::request::Request;
use super::timers::Timers;
use super::upstream::Upstream;

/// The client side of an exchange: a client's stream, a call of the proxy's own, or a tunnel of the TCP proxy.
pub(super) trait ClientSide {
    /// The request, with the record of its tries.
    fn request(&self) -> &Request;

    /// The same, to change it.
    fn request_mut(&mut self) -> &mut Request;

    /// A random number.
    fn random(&self) -> u64;

    /// Picks a host for a try. `previous`: the hosts of those before.
    fn pick(&self, previous: &[Rc<Host>]) -> Result<Rc<Host>, PickError>;

    /// A host was picked. `raced`: for the same try as before.
    fn picked(&mut self, raced: bool);

    /// The host with the connections that the request may use, which depend on whom it calls and on whose behalf.
    fn connections_of(&self, host: &Rc<Host>) -> Rc<Host>;

    /// A connection that is ready.
    fn ready_connection(&self, host: &Rc<Host>) -> Option<PooledConnection>;

    /// Waits for a connection. `raced`: the one before was closed under the request.
    async fn connect(&mut self, host: &Rc<Host>, raced: bool, timers: &mut Timers)
    -> Result<PooledConnection, Failure>;

    /// The upstream side over this connection.
    fn upstream(&self, connection: PooledConnection) -> Upstream;

    /// There is a connection to this host.
    fn connected(&mut self, host: &Rc<Host>, up: &Upstream);

    /// Whether all that was sent of the body can be sent again.
    fn can_replay(&self) -> bool;

    /// Sends the request, and waits for the response head, which may come before the body is sent.
    async fn exchange_heads(&mut self, up: &mut Upstream, timers: &mut Timers) -> Result<ResponseInfo, Failure>;

    /// A try has failed.
    fn failed(&mut self, failure: &Failure);

    /// There will be another try. `more`: the response of this one has a body, which nobody reads.
    fn abandoned(&mut self, more: bool);

    /// Waits before another try.
    async fn pause(&mut self, pause: Duration, timers: &mut Timers) -> Result<(), Failure>;
}
