//! Findings of small meshes.

mod findings;
mod samples;
