//! The control plane process: sources to snapshot to push queue to connections; debug endpoints

pub mod source;
