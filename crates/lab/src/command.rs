//! The subcommands of `evenkeel-lab`.

use clap::Subcommand;

use crate::bars::BarsOptions;
use crate::options::Options;
use crate::published::PublishedOptions;
use crate::report::ReportOptions;

/// The subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Add services one by one; measures when every proxy has each, and when a gateway serves it.
    Services(Options),
    /// Add services one by one through a real gateway and remove them; measures as `services`, and the gateway's memory.
    Provision(Options),
    /// Change endpoints and services together, in a random but repeatable order.
    Churn(Options),
    /// Replace the endpoints of services one by one; measures when every proxy has the new one, and none the old.
    Rollout(Options),
    /// Change VirtualServices one by one; measures when every proxy that holds one has the new routes.
    Routes(Options),
    /// Kill and restart the control plane while changes go on; measures what is sent again, and what is missing.
    Restart(Options),
    /// Connect all proxies at once; measures when all are configured, and the memory needed.
    Storm(Options),
    /// Change nothing; measures the cost of an idle control plane.
    Idle(Options),
    /// Change labels of services, which no proxy can see; measures what is sent and what it costs.
    Labels(Options),
    /// Let a real sidecar call a few services of a large mesh; measures the first request to each, and the sidecar's memory.
    Sidecar(Options),
    /// Remove most services; measures how much memory is released.
    Shrink(Options),
    /// Repeat published provisioning runs: 800, 1,000 and 1,400 services, one every 5 s.
    Published(PublishedOptions),
    /// Run all scenarios that the control plane has bars for (`make bench-control`).
    Bars(BarsOptions),
    /// Write the measured tables and figures into docs/scale.md.
    Report(ReportOptions),
}
