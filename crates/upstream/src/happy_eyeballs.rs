//! Connects to the first address of a host that answers (RFC 8305), as Envoy does with the addresses of a LOGICAL_DNS cluster.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

/// How long an attempt is alone before the next address is tried, too: Envoy's, and in the range of RFC 8305 section 5.
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// An attempt to connect.
type Attempt<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + 'a>>;

/// Tries the addresses in order, the next one as soon as an attempt fails or [`ATTEMPT_DELAY`] has passed, and returns the
/// first connection. The other attempts end with that.
///
/// # Errors
/// That of the last attempt, when all have failed.
pub(super) async fn first_to_answer<'a, T: 'a, F: Future<Output = io::Result<T>> + 'a>(
    first: SocketAddr,
    further: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    if further.is_empty() {
        return connect(first).await;
    }
    let mut left = further.iter();
    let mut attempts: Vec<Attempt<'a, T>> = vec![Box::pin(connect(first))];
    loop {
        let ended = tokio::select! {
            result = any_of(&mut attempts) => Some(result),
            () = sleep(ATTEMPT_DELAY), if !left.as_slice().is_empty() => None,
        };
        let next = left.next();
        attempts.extend(next.map(|address| Box::pin(connect(*address)) as Attempt<'a, T>));
        match ended {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(error)) if attempts.is_empty() => return Err(error),
            _ => {}
        }
    }
}

/// The result of the attempt that ends first, which is removed.
async fn any_of<T>(attempts: &mut Vec<Attempt<'_, T>>) -> io::Result<T> {
    poll_fn(|cx| {
        for at in 0..attempts.len() {
            if let Some(Poll::Ready(result)) = attempts.get_mut(at).map(|attempt| attempt.as_mut().poll(cx)) {
                drop(attempts.swap_remove(at));
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What an attempt at an address does, by its port: it answers or fails after a time, or does neither.
    async fn attempt(address: SocketAddr, log: &RefCell<Vec<u16>>) -> io::Result<u16> {
        let port = address.port();
        log.borrow_mut().push(port);
        match port {
            1 => Err(io::ErrorKind::ConnectionRefused.into()),
            2 => std::future::pending().await,
            _ => {
                sleep(Duration::from_millis(u64::from(port))).await;
                Ok(port)
            }
        }
    }

    #[tokio::test]
    async fn the_first_address_that_answers_is_taken() {
        let check = async |ports: &[u16], expected: Option<u16>, tried: &[u16]| {
            let all: Vec<SocketAddr> = ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
            let (first, further) = all.split_first().expect("an address");
            let log = RefCell::default();
            let found = first_to_answer(*first, further, |address| attempt(address, &log)).await;
            assert_eq!((found.ok(), &**log.borrow()), (expected, tried), "{ports:?}");
        };
        check(&[10], Some(10), &[10]).await;
        check(&[10, 20], Some(10), &[10]).await;
        check(&[1], None, &[1]).await;
        check(&[1, 1, 20], Some(20), &[1, 1, 20]).await;
        check(&[1, 1], None, &[1, 1]).await;
        // One that does not answer delays the next one for a moment only.
        check(&[2, 10], Some(10), &[2, 10]).await;
        check(&[2, 2, 1, 10], Some(10), &[2, 2, 1, 10]).await;
        // A slow one may still win.
        check(&[400, 60_000], Some(400), &[400, 60_000]).await;
        check(&[60_000, 50], Some(50), &[60_000, 50]).await;
    }
}
