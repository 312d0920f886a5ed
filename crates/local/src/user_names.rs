//! Names of the users that programs run as, in files that they see in place of the machine's `/etc/passwd` and `/etc/group`.
//!
//! The machine does not know the users that `up` assigns, and some programs refuse to run as a user without a name (`initdb`).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::confine::Account;

/// The machine's files.
const FILES: [&str; 2] = ["passwd", "group"];
/// Longest name of a user, in bytes (useradd(8)).
const MAX_NAME_BYTES: usize = 32;
/// What begins the name of a user whose own name the machine has already.
const PREFIX: &str = "ek-";
/// Maximum size of the machine's files that is read, in bytes; users beyond it are not known to programs.
const MAX_FILE_BYTES: usize = 1024 * 1024;

/// Writes the files for a user into `folder`, which belongs to this process's user; returns each with the machine's file.
/// The user's name is made of `wanted`; `home` is the home directory.
pub(crate) fn write(folder: &Path, account: Account, wanted: &str, home: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let machine = FILES.map(|file| fs::read_to_string(Path::new("/etc").join(file)));
    let [Ok(users), Ok(groups)] = &machine else { return Ok(Vec::new()) };
    let name = name(wanted, &[users, groups]);
    let (uid, gid) = (account.uid, account.gid);
    let user = format!("{name}:x:{uid}:{gid}:evenkeel up:{}:/bin/sh", home.display());
    let texts = [(users, user, uid), (groups, format!("{name}:x:{gid}:"), gid)];
    let mut written = Vec::new();
    for (file, (text, line, id)) in FILES.into_iter().zip(texts) {
        let source = folder.join(file);
        let text = with_line(text, &line, id);
        // Other replicas of the same identity may be reading it.
        if fs::read_to_string(&source).is_ok_and(|present| present == text) {
            written.push((source, Path::new("/etc").join(file)));
            continue;
        }
        fs::write(&source, text)?;
        fs::set_permissions(&source, fs::Permissions::from_mode(0o644))?;
        written.push((source, Path::new("/etc").join(file)));
    }
    Ok(written)
}

/// A name that the machine's files do not have.
fn name(wanted: &str, files: &[&String]) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let plain: String = wanted.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    let is_known = |name: &str| files.iter().any(|file| file.lines().any(|line| field(line, 0) == Some(name)));
    let begins_well = plain.starts_with(|c: char| c.is_ascii_lowercase());
    let own = if begins_well { plain.clone() } else { format!("{PREFIX}{plain}") };
    let name = if is_known(&own) { format!("{PREFIX}{own}") } else { own };
    name.chars().take(MAX_NAME_BYTES).collect()
}

/// The file with this line, unless it has a line for this id.
fn with_line(text: &str, line: &str, id: u32) -> String {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at < MAX_FILE_BYTES).last().map_or(0, |at| at + 1);
    let kept = text.get(..end).unwrap_or(text).trim_end();
    let id = id.to_string();
    if kept.lines().any(|known| field(known, 2) == Some(&id)) {
        format!("{kept}\n")
    } else {
        format!("{kept}\n{line}\n")
    }
}

fn field(line: &str, index: usize) -> Option<&str> {
    line.split(':').nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_called_after_its_service_account_unless_the_machine_has_that_name() {
        let machine = "root:x:0:0::/root:/bin/sh\npostgres:x:109:117::/var/lib/postgresql:/bin/bash\n".to_owned();
        let check = |wanted: &str, expected: &str| assert_eq!(name(wanted, &[&machine]), expected);
        check("reader", "reader");
        check("postgres", "ek-postgres");
        check("bookinfo.reviews", "bookinfo-reviews");
        check("9lives", "ek-9lives");
        check(&"a".repeat(60), &"a".repeat(32));
    }

    #[test]
    fn users_that_the_machine_knows_keep_their_lines() {
        let check =
            |text: &str, id: u32, expected: &str| assert_eq!(with_line(text, "a:x:7:7::/:/bin/sh", id), expected);
        check("root:x:0:0:\n", 7, "root:x:0:0:\na:x:7:7::/:/bin/sh\n");
        check("root:x:0:0:", 7, "root:x:0:0:\na:x:7:7::/:/bin/sh\n");
        check("b:x:7:7:\n", 7, "b:x:7:7:\n");
        check("", 7, "\na:x:7:7::/:/bin/sh\n");
    }

    #[test]
    fn the_files_are_those_of_the_machine_and_the_user() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let account = Account { uid: 1_900_000_007, gid: 1_900_000_007 };
        let files = write(&folder.path().join("etc"), account, "reader", Path::new("/home/x"))?;
        let seen: Vec<String> = files.iter().map(|(source, _)| fs::read_to_string(source)).collect::<Result<_, _>>()?;
        assert!(
            seen[0].contains("root:")
                && seen[0].ends_with("reader:x:1900000007:1900000007:evenkeel up:/home/x:/bin/sh\n")
        );
        assert!(seen[1].ends_with("\nreader:x:1900000007:\n"), "{seen:?}");
        Ok(())
    }
}
