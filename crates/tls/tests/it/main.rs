//! Handshakes over real sockets, and what goes wrong in them.

mod certificates;
mod domains;
mod handshake;
mod hello;
mod peers;
mod rotation;
mod support;
