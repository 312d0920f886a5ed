//! Tests of the codecs through what is public of them; of HTTP/2: tables of frames, against itself, and against other
//! implementations.

mod endpoint;
mod frames;
mod h2spec;
mod heads;
mod messages;
mod oracle;
mod pair;
mod script;
mod wire;
