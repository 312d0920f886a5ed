//! The crate from outside.

mod exposition;
mod families;
mod locks;
