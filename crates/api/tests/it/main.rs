//! What users are told about their files.

mod golden;
mod random;
mod tables;
