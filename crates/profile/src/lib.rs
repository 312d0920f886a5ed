//! Profiles of the own process while it runs: where its CPU time goes, and which code allocates its memory.
//!
//! Nothing is needed but the process itself: no privileges, no perf, no restart. A thread's CPU clock sends it a signal
//! every [`cpu::PERIOD_NS`] of CPU time, and the handler unwinds its stack by the program's own tables. The allocator
//! reports one of about [`heap::INTERVAL`] bytes. Without a recording there are no timers, and an allocation costs one load.
//!
//! | question | file |
//! |---|---|
//! | which page answers what? | `pages.rs` |
//! | how is CPU time sampled? | `cpu.rs`, `timers.rs` |
//! | how are allocations sampled? | `heap.rs`, `live.rs` |
//! | how does a stack become addresses? | `unwind.rs`, `modules.rs`, `regions.rs`, `registers.rs` |
//! | how do samples leave a signal handler? | `ring.rs`, `published.rs` |
//! | how do addresses become names? | `symbols.rs`, `debug_file.rs` |
//! | what is written? | `report.rs`, `pprof.rs`, `flame_graph.rs` |

pub mod cpu;
mod debug_file;
mod flame_graph;
pub mod heap;
mod live;
mod modules;
mod pages;
mod pprof;
mod published;
mod regions;
mod registers;
mod report;
mod ring;
mod symbols;
mod timers;
mod unwind;

pub use flame_graph::svg;
pub use pages::{Answer, MAX_SECONDS, PREFIX, answer, seconds};
pub use pprof::{Message, Profile};
