//! Files that a command names in the machine's temporary directories, of which the program sees only executables: other
//! files may have been left there by anybody, under the names that programs write to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics};

use crate::temporary;

/// What ends a path in a command.
const ENDS: &str = " \t\n'\"`;&|<>()=,:";

/// The executables that a command names in temporary directories.
pub(crate) fn executables(command: &str) -> Vec<PathBuf> {
    files(command).filter(|(_, _, is_executable)| *is_executable).map(|(_, place, _)| place).collect()
}

/// Warns about the first file that the program does not see; places that it sees are `shown`.
pub(super) fn note(object: &Object, command: &str, shown: &[PathBuf], diagnostics: &mut Diagnostics) {
    let is_hidden = |(_, place, is_executable): &(&str, PathBuf, bool)| {
        !is_executable && shown.iter().all(|known| !place.starts_with(known))
    };
    let Some((path, ..)) = files(command).find(is_hidden) else { return };
    let message =
        format!("{object}: its command names {path}, which it will not see: each replica has a /tmp of its own");
    let help = "move the file into the directory of the mesh, or name its directory as the `workingDirectory`";
    diagnostics.push(Diagnostic::warning("own-tmp", object.origin.clone(), message).with_help(help));
}

/// The files that a command names in temporary directories, with their places, and whether they can be executed.
fn files(command: &str) -> impl Iterator<Item = (&str, PathBuf, bool)> {
    paths(command).filter_map(|path| {
        let place = temporary::place(Path::new(path))?;
        let found = fs::metadata(&place).ok().filter(fs::Metadata::is_file)?;
        Some((path, place, found.mode() & 0o111 != 0))
    })
}

/// The absolute paths in a command that it does not write to.
fn paths(command: &str) -> impl Iterator<Item = &str> {
    command.match_indices('/').filter_map(|(at, _)| {
        let (before, rest) = command.split_at_checked(at)?;
        let begins = before.chars().next_back().is_none_or(|last| ENDS.contains(last));
        let path = rest.split(|c| ENDS.contains(c)).next()?;
        (begins && !path.starts_with("//") && !before.trim_end().ends_with('>')).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_absolute_paths_that_are_read_count() {
        let check = |command: &str, expected: &[&str]| assert_eq!(paths(command).collect::<Vec<_>>(), expected);
        check("exec /tmp/server --config=/tmp/a.yaml", &["/tmp/server", "/tmp/a.yaml"]);
        check("cd app; ./run > /tmp/log 2>/tmp/errors", &[]);
        check("PATH='/tmp/b/bin:/usr/bin' x", &["/tmp/b/bin", "/usr/bin"]);
        check("$HOME/tmp/x http://host/tmp", &[]);
    }

    #[test]
    fn a_file_that_is_there_is_named_unless_it_is_shown_or_an_executable() {
        let folder = tempfile::tempdir_in("/tmp").expect("a folder");
        let file = folder.path().join("server");
        std::fs::write(&file, "").expect("our own folder");
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        let said = |command: &str, shown: &[PathBuf]| {
            let mut diagnostics = Diagnostics::new();
            note(objects.first().expect("one"), command, shown, &mut diagnostics);
            diagnostics.to_string()
        };
        let command = format!("exec {}", file.display());
        assert!(said(&command, &[]).contains(&format!("names {}", file.display())));
        assert_eq!(said(&command, &[folder.path().canonicalize().expect("it is there")]), "");
        assert_eq!(said(&format!("{command}.none; ls {}", folder.path().display()), &[]), "");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our own file");
        assert_eq!((said(&command, &[]), executables(&command)), (String::new(), vec![file]));
    }
}
