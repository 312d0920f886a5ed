//! The scenarios, one file each.

mod churn;
mod idle;
mod labels;
mod provision;
mod restart;
mod rollout;
mod routes;
mod services;
mod shrink;
mod sidecar;
mod storm;
mod ticks;

use std::path::PathBuf;

use crate::error::LabError;
use crate::options::Options;
use crate::progress::Progress;
use crate::results::Results;
use crate::testbed::Testbed;

/// The scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Adds services one by one.
    Services,
    /// Adds services and removes them again.
    Provision,
    /// Changes endpoints and services together.
    Churn,
    /// Replaces endpoints one by one.
    Rollout,
    /// Changes VirtualServices one by one.
    Routes,
    /// Kills the control plane and starts it again.
    Restart,
    /// Connects all proxies at once.
    Storm,
    /// Changes nothing.
    Idle,
    /// Changes labels that no proxy can see.
    Labels,
    /// Lets a real sidecar use a few services.
    Sidecar,
    /// Removes most services.
    Shrink,
}

impl Scenario {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Provision => "provision",
            Self::Churn => "churn",
            Self::Rollout => "rollout",
            Self::Routes => "routes",
            Self::Restart => "restart",
            Self::Storm => "storm",
            Self::Idle => "idle",
            Self::Labels => "labels",
            Self::Sidecar => "sidecar",
            Self::Shrink => "shrink",
        }
    }

    /// Sets up the testbed, runs the scenario and cleans up. It must run inside a `LocalSet`.
    pub async fn run(self, options: &Options, program: PathBuf, progress: Progress) -> Result<Results, LabError> {
        let mut options = options.clone();
        // These scenarios send no requests through the gateway.
        options.no_gateway |=
            matches!(self, Self::Storm | Self::Idle | Self::Labels | Self::Sidecar | Self::Shrink | Self::Routes);
        if options.no_gateway && self == Self::Provision {
            return Err(LabError::Usage("provision measures the gateway: leave --no-gateway away".to_owned()));
        }
        if options.xds.is_some() && matches!(self, Self::Restart | Self::Shrink) {
            return Err(LabError::Usage(format!(
                "{} starts and ends the control plane itself: leave --xds away",
                self.name()
            )));
        }
        let testbed = Testbed::set(&options, program, progress).await?;
        match self {
            Self::Services => services::run(testbed).await,
            Self::Provision => provision::run(testbed).await,
            Self::Churn => churn::run(testbed).await,
            Self::Rollout => rollout::run(testbed).await,
            Self::Routes => routes::run(testbed).await,
            Self::Restart => restart::run(testbed).await,
            Self::Storm => storm::run(testbed).await,
            Self::Idle => idle::run(testbed).await,
            Self::Labels => labels::run(testbed).await,
            Self::Sidecar => sidecar::run(testbed).await,
            Self::Shrink => shrink::run(testbed).await,
        }
    }
}
