//! Who decides whether a call passes a filter: what can be read in the configuration, and what cannot.

use evenkeel_runtime_config::rbac::RbacFilter;

/// Who decides whether a call passes a filter.
#[derive(Debug, Clone, Copy)]
pub enum FilterVerdict<'c> {
    /// Nobody: what the filter refuses is malformed or too long, whoever calls.
    Never,
    /// The filter, by its configuration.
    Policy(FilterPolicy<'c>),
    /// Something that is not in the configuration: a service, chance, or the state of the proxy. The filter's remark on a decision says what.
    Outside,
}

/// The configuration by which a filter decides.
#[derive(Debug, Clone, Copy)]
pub enum FilterPolicy<'c> {
    /// Conditions on the call.
    Rules(&'c RbacFilter),
    /// The tokens of the request.
    Tokens,
}
