//! What `evenkeel lab` can be asked to do.

use clap::Subcommand;

use crate::bars::BarsOptions;
use crate::options::Options;
use crate::report::ReportOptions;

/// What the lab can do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Add one service after the other: how long until every proxy has it, and until a gateway serves it.
    Services(Options),
    /// Change endpoints and services together, in a random but repeatable order.
    Churn(Options),
    /// Replace the endpoints of services one by one: how long until every proxy has the new one, and none the old.
    Rollout(Options),
    /// Kill the control plane and start it again while changes go on: what is sent again, what is missing.
    Restart(Options),
    /// Let all proxies connect at once: how long until all are configured, and how much memory that takes.
    Storm(Options),
    /// Do nothing: what the control plane costs at rest.
    Idle(Options),
    /// Let a real sidecar use a few services of a large mesh: how long the first request to each takes, and how much memory.
    Sidecar(Options),
    /// Remove most of the services: does the memory come back?
    Shrink(Options),
    /// Measure all of the control plane's bars (`make bench-control`).
    Bars(BarsOptions),
    /// Write the measured tables and figures into docs/scale.md.
    Report(ReportOptions),
}
