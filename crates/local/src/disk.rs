//! Detects a full disk and reports it once: the mesh continues without writing.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use nix::sys::statvfs::statvfs;

/// Minimum free space, in bytes: with less the disk counts as full. It is enough for state and a line of each log.
const MIN_FREE_BYTES: u64 = 1024 * 1024;
/// With this much free space it no longer counts as full. The difference avoids that a log at the limit makes the state
/// change every second.
const ENOUGH_BYTES: u64 = 4 * MIN_FREE_BYTES;

/// Number of checks after which a test write is done. It is done seldom, because it changes the disk.
const TRIALS_EVERY: u32 = 5;

/// The last reported state of the disk.
#[derive(Debug, Default)]
pub struct Disk {
    full: bool,
    /// Whether writing fails for another reason, for example because the kernel made the disk read-only after an error.
    fails: bool,
    looks: u32,
}

impl Disk {
    /// Checks the disk of the state directory; returns a line for the user if its state has changed.
    pub fn look(&mut self, state: &Path) -> Option<String> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(TRIALS_EVERY)
            && let Some(said) = self.judge_test_write(&touch(state), state)
        {
            return Some(said);
        }
        self.judge(free_bytes(state)?, state)
    }

    fn judge_test_write(&mut self, trial: &io::Result<()>, state: &Path) -> Option<String> {
        let reason = trial.as_ref().err().filter(|error| error.kind() != io::ErrorKind::StorageFull);
        if std::mem::replace(&mut self.fails, reason.is_some()) == reason.is_some() {
            return None;
        }
        let state = state.display();
        Some(match reason {
            Some(reason) => format!(
                "warning: the disk of {state} cannot be written ({reason}): traffic continues, but logs lose lines and state is not saved until the disk can be written again"
            ),
            None => format!("the disk of {state} can be written again"),
        })
    }

    fn judge(&mut self, free: u64, state: &Path) -> Option<String> {
        let full = free < if self.full { ENOUGH_BYTES } else { MIN_FREE_BYTES };
        if std::mem::replace(&mut self.full, full) == full {
            return None;
        }
        let state = state.display();
        Some(if full {
            format!(
                "warning: the disk of {state} is full ({free} bytes left): traffic continues, but logs lose lines and state (history, scopes, addresses, running replicas) is not saved until there is space"
            )
        } else {
            format!("the disk of {state} has space again: logs and state are written again")
        })
    }
}

/// Writes as little as possible to the disk.
fn touch(state: &Path) -> io::Result<()> {
    File::open(state)?.set_modified(SystemTime::now())
}

/// The free space for this user; `None` if the file system does not report it.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = statvfs(folder).ok()?;
    #[allow(clippy::useless_conversion, reason = "the types differ between platforms")]
    let free = u64::from(found.blocks_available()).saturating_mul(u64::from(found.fragment_size()));
    // Some file systems report no numbers.
    (found.blocks() > 0).then_some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_once_and_so_is_its_end() {
        let mut disk = Disk::default();
        let mut check = |free: u64, expected: Option<&str>| {
            let said = disk.judge(free, Path::new("/state"));
            match (said, expected) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                (said, expected) => panic!("{free}: {said:?}, not {expected:?}"),
            }
        };
        check(MIN_FREE_BYTES, None);
        check(4095, Some("is full (4095 bytes left)"));
        check(0, None);
        check(MIN_FREE_BYTES, None);
        check(ENOUGH_BYTES, Some("has space again"));
        check(ENOUGH_BYTES, None);
    }

    #[test]
    fn a_disk_that_cannot_be_written_is_said_once_and_so_is_its_end() {
        let mut disk = Disk::default();
        let mut check = |failure: Option<io::ErrorKind>, expected: Option<&str>| {
            let said = disk.judge_test_write(&failure.map_or(Ok(()), |kind| Err(kind.into())), Path::new("/state"));
            assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(None, None);
        check(Some(io::ErrorKind::StorageFull), None);
        check(Some(io::ErrorKind::ReadOnlyFilesystem), Some("cannot be written (read-only filesystem"));
        check(Some(io::ErrorKind::ReadOnlyFilesystem), None);
        check(None, Some("can be written again"));
        assert!(touch(tempfile::tempdir().expect("a folder").path()).is_ok());
        assert!(touch(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn the_disk_there_is_can_be_asked() {
        assert_eq!(Disk::default().look(Path::new("/nowhere")), None);
        assert!(statvfs("/").is_ok());
    }
}
