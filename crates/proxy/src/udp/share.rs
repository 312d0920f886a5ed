//! How many sessions a socket may have: all sockets of the process share half of the descriptors, so that the rest remains for TCP.

use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::resource::{Resource, getrlimit};

/// Sessions of one socket at most. Each has a socket, and so a descriptor, of its own.
const MAX_SESSIONS: usize = 16_384;
/// Sessions that a socket may have however many sockets there are.
const MIN_SESSIONS: usize = 16;
/// The descriptors of a process whose limit is not known.
const USUAL_DESCRIPTORS: u64 = 1024;

/// The sockets of the process that clients send datagrams to.
static SOCKETS: AtomicUsize = AtomicUsize::new(0);

/// A socket's part of the descriptors, until it is dropped. It becomes smaller with further sockets.
#[derive(Debug)]
pub(super) struct Share {
    /// What all sockets share.
    descriptors: usize,
}

impl Share {
    /// Takes part.
    pub(super) fn new() -> Self {
        SOCKETS.fetch_add(1, Ordering::Relaxed);
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL_DESCRIPTORS, |limit| limit.0);
        Self { descriptors: usize::try_from(limit / 2).unwrap_or(usize::MAX) }
    }

    /// The sessions that the socket may have now.
    pub(super) fn sessions(&self) -> usize {
        part(self.descriptors, SOCKETS.load(Ordering::Relaxed))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        SOCKETS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn part(descriptors: usize, sockets: usize) -> usize {
    (descriptors / sockets.max(1)).clamp(MIN_SESSIONS, MAX_SESSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_share_half_of_the_descriptors() {
        assert_eq!(part(524_288, 2), MAX_SESSIONS);
        assert_eq!(part(512, 2), 256);
        assert_eq!(part(512, 1000), MIN_SESSIONS);
        assert_eq!(part(512, 0), 512);
    }
}
