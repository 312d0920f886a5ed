//! Tests of the crate's public interface.

mod exposition;
mod families;
mod locks;
