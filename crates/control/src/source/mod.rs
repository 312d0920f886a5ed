//! Where the configuration comes from: files, watched.

pub mod debounce;
pub mod files;
pub mod watch;

#[cfg(test)]
mod tests;
