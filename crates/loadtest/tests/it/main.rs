//! Load tests against servers, beside Fortio.

mod fortio;
mod loads;
mod runs;
mod serve;
