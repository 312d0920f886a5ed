//! Findings about users' files.

mod aliases;
mod annotations;
mod formats;
mod golden;
mod istio_samples;
mod mesh_protojson;
mod no_effect;
mod other_files;
mod pages;
mod random;
mod tables;
mod tls_modes;
mod wrong_reasons;
