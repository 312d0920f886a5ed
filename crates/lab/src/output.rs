//! Output files that the user has requested.

use std::path::Path;

use crate::error::LabError;

/// Checks before a run whether the file can be written. A file that this check creates is removed again.
pub fn can_be_written(path: &Path) -> Result<(), LabError> {
    let is_there = path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let opened = opened.map_err(LabError::io(format!("writing {}", path.display())))?;
    drop(opened);
    if is_there {
        Ok(())
    } else {
        std::fs::remove_file(path).map_err(LabError::io(format!("writing {}", path.display())))
    }
}

/// The JSON text of results, as written to files.
pub fn json(results: &impl serde::Serialize) -> Result<String, LabError> {
    let text = serde_json::to_string_pretty(results);
    text.map(|text| text + "\n").map_err(|error| LabError::io("writing the results")(error.into()))
}

/// Writes a file that the user has requested.
pub fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(LabError::io(format!("writing {}", path.display())))
}
