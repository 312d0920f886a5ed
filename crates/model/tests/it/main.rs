//! From files to the snapshot.

mod golden;
mod queries;
