//! Questions about small meshes, and their answers.

mod answers;
mod json;
mod mesh;
mod texts;
