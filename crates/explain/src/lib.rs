//! Answers "what happens to this call, and why?" from the user's YAML, without a running mesh.
//!
//! Objects become a [`Snapshot`](evenkeel_model::Snapshot) as in the control plane. The proxies on the call's way are
//! generated and compiled as theirs would be, and the proxy's own decision (`evenkeel_filters::explain`) decides. What
//! this crate adds is the reason: the place in the user's files that each part of the decision comes from, and why
//! other rules and policies did not apply.
//!
//! | question | file |
//! |---|---|
//! | which Pods are there if none runs? | `stand_ins.rs` |
//! | what does a host name resolve to, for this workload? | `names.rs` |
//! | what does one proxy do with a connection? | `hop.rs`; its configuration: `proxy.rs` |
//! | which proxy is next? | `walk.rs`; which connections pass no proxy: `capture.rs` |
//! | which rules did not match, and why? | `considered.rs`, `mismatch.rs` |
//! | what do policies say, and what was missing? | `policies.rs`, `near_miss.rs` |
//! | what holds for a host, and what lost? | `effective.rs` |
//! | what holds for a Service or a Pod, and who reaches it from outside? | `describe.rs` |
//! | where is a field written? | `place.rs` |
//! | what do the running proxies say? | `running.rs` |
//! | what became of a recent request, and what would become of it now? | `recent.rs`, `replay.rs` |
//! | why did a recent request fail, or take so long? | `why/` |
//! | what does a change do to recent requests? | `plan/` |
//! | who has talked to whom, and how was it secured? what would break without plain text? | `mtls/` |
//! | what protects a workload, and what does not? | `protection/` |
//! | does any request get from one party to another? | `prove/` |
//! | the answer, as JSON and as text | `answer.rs`, `text.rs` |

#![forbid(unsafe_code)]
// Input comes from users' files: an impossible state is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod answer;
mod arrival;
mod capture;
pub mod columns;
mod considered;
pub mod datagrams;
mod describe;
pub mod effective;
mod hop;
mod mismatch;
pub mod mtls;
mod names;
mod near_miss;
mod place;
pub mod plan;
mod policies;
pub mod protection;
pub mod prove;
mod proxy;
pub mod question;
pub mod recent;
mod replay;
mod running;
mod running_proxies;
mod stand_ins;
mod text;
mod transport;
mod unaccepted_tls;
mod walk;
pub mod why;
mod world;

pub use answer::Answer;
pub use describe::Description;
pub use effective::Effective;
pub use mtls::Ledger;
pub use plan::Plan;
pub use protection::Protection;
pub use prove::{Claim, Party, Proof};
pub use question::{Caller, Question, QuestionError, Target};
pub use recent::Recent;
pub use replay::Replayed;
pub use running_proxies::RunningProxies;
pub use text::Look;
pub use why::Why;
pub use world::World;
