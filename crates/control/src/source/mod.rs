//! The source of the configuration: watched files.

pub mod debounce;
pub mod files;
pub mod watch;

#[cfg(test)]
mod tests;
