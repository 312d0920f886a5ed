//! What is played, one file per scenario.

mod churn;
mod idle;
mod restart;
mod rollout;
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
    /// Services are added one by one.
    Services,
    /// Endpoints and services change together.
    Churn,
    /// Endpoints are replaced one by one.
    Rollout,
    /// The control plane is killed and started again.
    Restart,
    /// All proxies connect at once.
    Storm,
    /// Nothing happens.
    Idle,
    /// A real sidecar uses a few services.
    Sidecar,
    /// Most services are removed.
    Shrink,
}

impl Scenario {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Churn => "churn",
            Self::Rollout => "rollout",
            Self::Restart => "restart",
            Self::Storm => "storm",
            Self::Idle => "idle",
            Self::Sidecar => "sidecar",
            Self::Shrink => "shrink",
        }
    }

    /// Sets the stage, plays and clears up. Has to run inside a `LocalSet`.
    pub async fn play(self, options: &Options, program: PathBuf, progress: Progress) -> Result<Results, LabError> {
        let mut options = options.clone();
        // Nothing is called in these.
        options.no_gateway |= matches!(self, Self::Storm | Self::Idle | Self::Sidecar | Self::Shrink);
        if options.xds.is_some() && matches!(self, Self::Restart | Self::Shrink) {
            return Err(LabError::Usage(format!(
                "{} starts and ends the control plane itself: leave --xds away",
                self.name()
            )));
        }
        let testbed = Testbed::set(&options, program, progress).await?;
        match self {
            Self::Services => services::play(testbed).await,
            Self::Churn => churn::play(testbed).await,
            Self::Rollout => rollout::play(testbed).await,
            Self::Restart => restart::play(testbed).await,
            Self::Storm => storm::play(testbed).await,
            Self::Idle => idle::play(testbed).await,
            Self::Sidecar => sidecar::play(testbed).await,
            Self::Shrink => shrink::play(testbed).await,
        }
    }
}
