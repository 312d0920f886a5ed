//! The authority over its whole life: made, opened again, plugged in; what it signs and what it refuses.

mod authority;
mod drill;
mod plugged;
mod rotation;
mod sign;
mod tokens;

use std::time::{Duration, SystemTime};

/// The time all tests start from. It is near the present, for rustls asks the system in the end.
fn now() -> SystemTime {
    SystemTime::now()
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
