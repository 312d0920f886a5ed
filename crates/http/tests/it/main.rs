//! Tests of the HTTP/2 codec: tables of frames, against itself, and against other implementations.

mod endpoint;
mod frames;
mod h2spec;
mod messages;
mod oracle;
mod pair;
mod script;
mod wire;
