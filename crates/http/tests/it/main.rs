//! Tests of the HTTP/2 codec against other implementations.

mod h2spec;
mod script;
