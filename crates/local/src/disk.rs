//! A disk that is full, noticed and said once: the mesh goes on without what it would write.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// With less space than this the disk counts as full, in bytes: state and a line of each log.
const MIN_FREE_BYTES: u64 = 1024 * 1024;
/// With this much it no longer does: or a log at the limit would make it change from second to second.
const ENOUGH_BYTES: u64 = 4 * MIN_FREE_BYTES;

/// What was said of the disk last.
#[derive(Debug, Default)]
pub struct Disk {
    full: bool,
}

impl Disk {
    /// Looks at the disk of the state directory; a line for the user if it is full now, or no longer.
    pub fn look(&mut self, state: &Path) -> Option<String> {
        self.judge(free_bytes(state)?, state)
    }

    fn judge(&mut self, free: u64, state: &Path) -> Option<String> {
        let full = free < if self.full { ENOUGH_BYTES } else { MIN_FREE_BYTES };
        if std::mem::replace(&mut self.full, full) == full {
            return None;
        }
        let state = state.display();
        Some(match full {
            true => format!(
                "warning: the disk of {state} is full ({free} bytes left): calls go on; logs lose lines, and state (history, \
                 scopes, addresses, which replicas run) stays as it was written last, until there is space"
            ),
            false => format!("the disk of {state} has space again: logs and state are written again"),
        })
    }
}

/// What this user may still write to the disk; none where it does not say.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = statvfs(folder).ok()?;
    #[allow(clippy::useless_conversion, reason = "the types differ between platforms")]
    let free = u64::from(found.blocks_available()).saturating_mul(u64::from(found.fragment_size()));
    // Some file systems count nothing.
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
    fn the_disk_there_is_can_be_asked() {
        assert_eq!(Disk::default().look(Path::new("/nowhere")), None);
        assert!(statvfs("/").is_ok());
    }
}
