//! From files to the snapshot.

mod documented;
mod golden;
mod incremental;
mod queries;
