//! Handshakes over real sockets, and their failures.

mod certificates;
mod domains;
mod handshake;
mod hello;
mod peers;
mod rotation;
mod support;
mod untrusted;
mod version1;
