//! The virtual hosts of a route table that come one by one (VHDS).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::domains::{DomainIndex, LONGEST_HOST_BYTES, SharedNames, lower_case};
use crate::route::VirtualHost;

/// All virtual hosts of a table that grows.
#[derive(Debug, Clone, Default)]
pub struct Growing {
    /// By domain: those of the table itself, and those that came under a name of their own.
    pub(crate) domains: DomainIndex<SharedNames<Arc<VirtualHost>>>,
    /// What was answered for hosts that were asked for.
    pub(crate) answers: SharedNames<Arc<Answer>>,
}

/// What serves a host that was asked for.
#[derive(Debug)]
pub struct Answer {
    /// `None`: nothing but what serves all hosts.
    pub host: Option<Arc<VirtualHost>>,
    /// A request went this way since somebody looked.
    used: AtomicBool,
}

impl Answer {
    /// An answer nobody used yet.
    pub(crate) fn new(host: Option<Arc<VirtualHost>>) -> Self {
        Self { host, used: AtomicBool::new(false) }
    }

    /// Whether it was used since this was asked last.
    pub(crate) fn take_used(&self) -> bool {
        self.used.load(Relaxed) && self.used.swap(false, Relaxed)
    }

    fn mark(&self) {
        // A line that all workers read must not be written for each request.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

impl Growing {
    /// The virtual host of a host name.
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

    /// What was answered for a host, in lower case.
    pub fn answer(&self, host: &str) -> Option<&Answer> {
        self.answers.get(host.as_bytes()).map(|answer| &**answer)
    }

    /// The host, in lower case, if it has to be asked for.
    pub fn unanswered(&self, host: &[u8]) -> Option<String> {
        let mut buffer = [0; LONGEST_HOST_BYTES];
        // What is no text is no domain either; an empty host names nobody.
        let lower = lower_case(host, &mut buffer).filter(|lower| !lower.is_empty() && lower.is_ascii())?;
        if self.answers.contains_key(lower) || self.domains.find_exact(lower).is_some() {
            return None;
        }
        String::from_utf8(lower.to_vec()).ok().filter(|host| !host.contains(['/', '*']))
    }
}
