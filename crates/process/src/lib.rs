//! What a long-running process is told by who runs it, and what it tells: [`signals`], and the [`manager`] that started it.

pub mod manager;
pub mod signals;
