//! The pages that Evenkeel's programs show about themselves, as types: who shows a page and who reads it share the struct. The pages of
//! the control plane's HTTP port (15014) are in [`authorities`], [`clusters`], [`diagnostics`], [`settle`] and [`syncz`], those of the dashboard in
//! [`dashboard`]; [`client`] reads pages over TCP, Unix sockets, and streams that others open.
//!
//! Programs of two versions may meet, so what a page lacks has its default, and what is unknown is passed over.

#![forbid(unsafe_code)]

pub mod authorities;
pub mod client;
pub mod clusters;
pub mod dashboard;
pub mod diagnostics;
pub mod settle;
pub mod syncz;
