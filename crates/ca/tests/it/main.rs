//! The authority over its whole life: created, opened again, plugged in; what it signs and what it refuses.

mod authority;
mod drill;
mod plugged;
mod rotation;
mod sign;
mod tokens;

use std::time::{Duration, SystemTime};

/// The time at which all tests start. It is close to the present, because rustls uses the system's clock.
fn now() -> SystemTime {
    SystemTime::now()
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
