//! Findings about users' files.

mod annotations;
mod golden;
mod pages;
mod random;
mod tables;
