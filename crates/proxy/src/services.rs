//! What a worker offers to its filters besides its clusters, and to those of its own calls.

use std::time::SystemTime;

use evenkeel_filters::{Clock, Tasks, Wait};
use evenkeel_upstream::turn;
use tokio::time::Instant;

use crate::clock::wall_clock;

/// The worker's clock, which rarely asks the system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerClock;

impl Clock for WorkerClock {
    fn wall_clock(&self, at: std::time::Instant, _: std::time::Instant) -> SystemTime {
        wall_clock(Instant::from_std(at))
    }
}

/// Tasks on the worker's thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerTasks;

impl Tasks for WorkerTasks {
    fn run(&self, task: Wait) {
        turn::spawn(task);
    }
}
