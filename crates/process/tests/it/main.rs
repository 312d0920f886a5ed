//! The operations that a confined process can no longer do, tried in a process.

mod confinement;
