//! Kubernetes: the only crate that knows its client.
