//! From files to the snapshot.

mod documented;
mod golden;
mod queries;
