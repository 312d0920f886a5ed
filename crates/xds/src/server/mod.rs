//! Server half.
