//! What a process can no longer do, tried in one.

mod confinement;
