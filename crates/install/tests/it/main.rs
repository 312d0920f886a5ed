//! The charts, rendered by Helm and by this program, and installed into a real API server.

mod charts;
