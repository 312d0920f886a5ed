//! Questions about small meshes, and their answers.

mod answers;
mod datagrams;
mod descriptions;
mod effective;
mod json;
mod mesh;
mod migrated;
mod migrated_ingresses;
mod migrated_random;
mod plans;
mod policies;
mod proofs;
mod protections;
mod recents;
mod running;
mod strict;
mod texts;
mod tokens;
mod unsupported;
mod whys;
