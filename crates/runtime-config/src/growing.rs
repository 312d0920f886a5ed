//! The virtual hosts of a route table that are received one by one (VHDS).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::domains::{DomainIndex, LONGEST_HOST_BYTES, SharedNames, lower_case};
use crate::route::VirtualHost;

/// All virtual hosts of a growing table.
#[derive(Debug, Clone, Default)]
pub struct Growing {
    /// By domain: those of the table itself, and those received as resources of their own.
    pub(crate) domains: DomainIndex<SharedNames<Arc<VirtualHost>>>,
    /// The responses for hosts that were requested.
    pub(crate) answers: SharedNames<Arc<Answer>>,
}

/// The response for a host that was requested.
#[derive(Debug)]
pub struct Answer {
    /// `None`: no virtual host exists for the host.
    pub host: Option<Arc<VirtualHost>>,
    /// A request used this answer since this was last checked.
    used: AtomicBool,
}

impl Answer {
    /// An answer that was not used yet.
    pub(crate) fn new(host: Option<Arc<VirtualHost>>) -> Self {
        Self { host, used: AtomicBool::new(false) }
    }

    /// Whether it was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.load(Relaxed) && self.used.swap(false, Relaxed)
    }

    fn mark(&self) {
        // Avoids a write, for each request, to a cache line that all workers read.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

impl Growing {
    /// The virtual host for a host name.
    pub fn find(&self, host: &[u8]) -> Option<&Arc<VirtualHost>> {
        let mut buffer = [0; LONGEST_HOST_BYTES];
        let Some(lower) = lower_case(host, &mut buffer) else { return self.domains.any() };
        match self.answers.get(lower) {
            Some(answer) => {
                answer.mark();
                answer.host.as_ref().or(self.domains.any())
            }
            None => self.domains.find_lower(lower),
        }
    }

    /// The answer for a host, in lower case.
    pub fn answer(&self, host: &str) -> Option<&Answer> {
        self.answers.get(host.as_bytes()).map(|answer| &**answer)
    }

    /// The host, in lower case, if it has to be requested.
    pub fn unanswered(&self, host: &[u8]) -> Option<String> {
        let mut buffer = [0; LONGEST_HOST_BYTES];
        // A host that is not ASCII text is not a domain either, and an empty one cannot be requested.
        let lower = lower_case(host, &mut buffer).filter(|lower| !lower.is_empty() && lower.is_ascii())?;
        if self.answers.contains_key(lower) || self.domains.find_exact(lower).is_some() {
            return None;
        }
        String::from_utf8(lower.to_vec()).ok().filter(|host| !host.contains(['/', '*']))
    }
}
