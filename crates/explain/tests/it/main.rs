//! Questions about small meshes.

mod decisions;
