//! The charts, rendered by Helm and by this program, and installed into a real API server; definitions and checks.

mod charts;
mod checks;
mod crds;
