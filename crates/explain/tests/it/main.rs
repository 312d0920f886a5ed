//! Questions about small meshes, and their answers.

mod answers;
mod effective;
mod json;
mod mesh;
mod plans;
mod policies;
mod recents;
mod running;
mod texts;
mod tokens;
