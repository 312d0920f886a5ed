//! Checks that the machine allows what `up` needs to isolate programs, and says what to enable if it does not.

use std::fs;
use std::io;
use std::sync::OnceLock;

/// The kernel refused a step of isolation.
#[derive(Debug, thiserror::Error)]
#[error("this system does not let {who} make {what} ({source}); {remedy}")]
pub struct Refused {
    who: &'static str,
    what: &'static str,
    remedy: String,
    source: io::Error,
}

impl Refused {
    /// Explains `source`, met while making `what` (for example "a user namespace").
    pub fn new(what: &'static str, source: io::Error) -> Self {
        let who = if is_root() { "root" } else { "an unprivileged user" };
        Self { who, what, remedy: remedy(|path| fs::read_to_string(path).ok(), is_root()), source }
    }
}

/// Whether root started this process. Call it before a user namespace makes every user root.
pub fn is_root() -> bool {
    static STARTED_BY_ROOT: OnceLock<bool> = OnceLock::new();
    *STARTED_BY_ROOT.get_or_init(|| nix::unistd::geteuid().is_root())
}

/// Whether standard error is a terminal, so that output may be coloured.
pub fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&io::stderr())
}

/// The setting to enable, found from the kernel's switches.
fn remedy(read: impl Fn(&str) -> Option<String>, root: bool) -> String {
    let is = |path: &str, value: &str| read(path).is_some_and(|content| content.trim() == value);
    if root {
        return "run it on the machine itself, or give the container CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned();
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "enable it: sudo sysctl -w kernel.unprivileged_userns_clone=1, or run as root".to_owned();
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "enable it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root".to_owned();
    }
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return "enable it: sudo sysctl -w user.max_user_namespaces=10000, or run as root".to_owned();
    }
    "run it as root".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(switch: Option<(&str, &str)>, root: bool, expected: &str) {
        let read = |path: &str| switch.filter(|(name, _)| path.ends_with(name)).map(|(_, value)| format!("{value}\n"));
        let said = remedy(read, root);
        assert!(said.contains(expected), "{said:?} does not name {expected:?}");
    }

    #[test]
    fn the_switch_that_is_off_is_the_one_named() {
        check(Some(("unprivileged_userns_clone", "0")), false, "kernel.unprivileged_userns_clone=1");
        check(Some(("apparmor_restrict_unprivileged_userns", "1")), false, "apparmor_restrict_unprivileged_userns=0");
        check(Some(("max_user_namespaces", "0")), false, "user.max_user_namespaces=");
        check(Some(("unprivileged_userns_clone", "1")), false, "run it as root");
        check(None, true, "CAP_SYS_ADMIN");
    }
}
