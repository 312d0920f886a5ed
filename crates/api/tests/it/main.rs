//! Findings about users' files.

mod aliases;
mod annotations;
mod golden;
mod pages;
mod random;
mod tables;
mod tls_modes;
