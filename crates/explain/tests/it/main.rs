//! Questions about small meshes, and their answers.

mod answers;
mod effective;
mod json;
mod mesh;
mod texts;
