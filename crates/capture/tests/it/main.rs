//! The rules as text, and what the kernel does with them.

mod arguments;
mod kernel;
mod network;
mod texts;
mod user_namespaces;
