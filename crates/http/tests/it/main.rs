//! Tests of the codecs through their public interface; for HTTP/2: tables of frames, the codec against itself, and against
//! other implementations.

mod endpoint;
mod frames;
mod h2spec;
mod heads;
mod messages;
mod oracle;
mod pair;
mod script;
mod wire;
