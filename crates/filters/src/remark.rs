//! What a filter tells an explanation of its decision.

use crate::rbac::Verdict;

/// What a decision about a request or a connection does not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Rules were evaluated.
    Verdict(Verdict),
    /// What happens to the request, its response or the connection.
    Note(String),
    /// As `Note`, where this depends on more than the call and the configuration.
    ByState(String),
    /// Why the connection has no host in clusters whose hosts filters resolve.
    NoHost(String),
}
