//! Connections of whoever comes to a listener: with too many of them, an old one ends, so that nobody who keeps connections open
//! keeps others out.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves the connections of a listener until aborted, `most` at a time. A further one ends the oldest of the address that has most.
pub async fn serve_newest<F>(
    listener: &TcpListener,
    most: usize,
    mut each: impl FnMut(TcpStream, SocketAddr) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = Open::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                open.make_room(most);
                let served = tokio::spawn(each(stream, peer));
                open.0.push_back((peer.ip().to_canonical(), served.abort_handle()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Connections, oldest first.
#[derive(Debug, Default)]
struct Open(VecDeque<(IpAddr, AbortHandle)>);

impl Open {
    /// Leaves room for one more.
    fn make_room(&mut self, most: usize) {
        self.0.retain(|(_, connection)| !connection.is_finished());
        if self.0.len() < most {
            return;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.0.iter().for_each(|(address, _)| *counts.entry(*address).or_default() += 1);
        let largest = counts.values().max().copied().unwrap_or_default();
        let oldest = self.0.iter().position(|(address, _)| counts.get(address) == Some(&largest));
        if let Some((_, connection)) = oldest.and_then(|at| self.0.remove(at)) {
            connection.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these connections, each with its address, ends for one more.
    #[tokio::test]
    async fn the_oldest_of_whoever_has_most_ends() {
        let check = async |most: usize, addresses: &[u8], expected: Option<usize>| {
            let tasks: Vec<_> = addresses.iter().map(|_| tokio::spawn(std::future::pending::<()>())).collect();
            let address = |last: &u8| IpAddr::from([127, 0, 0, *last]);
            let all = addresses.iter().map(address).zip(tasks.iter().map(|task| task.abort_handle()));
            let mut open = Open(all.collect());
            open.make_room(most);
            assert_eq!(open.0.len(), addresses.len() - usize::from(expected.is_some()), "{most} {addresses:?}");
            for (at, task) in tasks.into_iter().enumerate() {
                let ends = expected == Some(at);
                if ends {
                    assert!(task.await.is_err_and(|error| error.is_cancelled()), "{most} {addresses:?}");
                } else {
                    assert!(!task.is_finished(), "{most} {addresses:?}: {at}");
                    task.abort();
                }
            }
        };
        check(4, &[1, 1, 1], None).await;
        check(3, &[1, 1, 1], Some(0)).await;
        // The one that came first has fewer.
        check(4, &[2, 1, 1, 2], Some(0)).await;
        check(4, &[2, 1, 1, 1], Some(1)).await;
        check(4, &[1, 2, 2, 1, 2], Some(1)).await;
        check(1, &[7], Some(0)).await;
    }

    #[tokio::test]
    async fn what_has_ended_takes_no_room() {
        let ended = tokio::spawn(async {});
        let handle = ended.abort_handle();
        ended.await.expect("it ended");
        let still = tokio::spawn(std::future::pending::<()>());
        let address = IpAddr::from([127, 0, 0, 1]);
        let mut open = Open(VecDeque::from([(address, still.abort_handle()), (address, handle)]));
        open.make_room(2);
        assert_eq!(open.0.len(), 1);
        assert!(!still.is_finished());
        still.abort();
    }
}
