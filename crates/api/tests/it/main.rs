//! What users are told about their files.

mod annotations;
mod golden;
mod pages;
mod random;
mod tables;
