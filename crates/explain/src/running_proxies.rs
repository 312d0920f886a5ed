//! An interface to running proxies.

use std::sync::Arc;

use evenkeel_filters::explain::query::{ProxyDecision, QueriedCall};

use crate::answer::ProxyName;

/// The running proxies of a mesh.
pub trait RunningProxies {
    /// Asks one of them.
    ///
    /// # Errors
    /// Why it cannot be asked, in one line.
    fn decide(&self, proxy: &ProxyName, call: &QueriedCall) -> Result<ProxyDecision, String>;
}

/// Shared by those who ask: one object for all questions.
impl<T: RunningProxies + ?Sized> RunningProxies for Arc<T> {
    fn decide(&self, proxy: &ProxyName, call: &QueriedCall) -> Result<ProxyDecision, String> {
        (**self).decide(proxy, call)
    }
}
