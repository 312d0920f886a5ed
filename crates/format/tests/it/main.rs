//! How format strings are read.

mod formats;
