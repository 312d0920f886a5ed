//! Runs the binary as the present user, and as one without any privilege.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{capitals, state};

/// The traditional user and group `nobody`.
pub const NOBODY: u32 = 65534;

/// Who runs it, with what that user can reach.
pub struct User {
    /// The binary.
    pub binary: PathBuf,
    /// The example.
    pub example: PathBuf,
    /// A state directory of that user.
    pub state: tempfile::TempDir,
    unprivileged: bool,
    _files: Option<tempfile::TempDir>,
}

impl User {
    /// Whoever runs the tests.
    pub fn present() -> Self {
        Self {
            binary: env!("CARGO_BIN_EXE_evenkeel").into(),
            example: capitals(),
            state: state(),
            unprivileged: false,
            _files: None,
        }
    }

    /// A user without privileges: the present one, or `nobody` with copies, since root's checkout may be closed to others.
    pub fn unprivileged() -> Self {
        if !is_root() {
            return Self::present();
        }
        let files = state();
        let (binary, example) = (files.path().join("evenkeel"), files.path().join("capitals"));
        fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &binary).expect("the binary can be copied");
        copy_readable(&capitals(), &example);
        open_to_all(files.path());
        open_to_all(&binary);
        let state = state();
        chown(state.path(), Some(NOBODY), Some(NOBODY)).expect("root may give a directory away");
        Self { binary, example, state, unprivileged: true, _files: Some(files) }
    }

    /// The same user with another example, which lies in `files`.
    pub fn with_example(self, example: PathBuf, files: tempfile::TempDir) -> Self {
        Self { example, _files: Some(files), ..self }
    }

    /// `evenkeel` with these arguments.
    pub fn evenkeel(&self, arguments: &[&str]) -> Command {
        let mut command = if self.unprivileged {
            let mut command = Command::new("setpriv");
            let nobody = NOBODY.to_string();
            command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]).arg(&self.binary);
            // Root's own PATH may lead where nobody else may go.
            command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.state.path());
            command
        } else {
            Command::new(&self.binary)
        };
        command.args(arguments).current_dir("/");
        command
    }

    /// `evenkeel up EXAMPLE` with this user's state directory, a free port, and more.
    pub fn up(&self, more: &[&str]) -> Command {
        let mut command = self.evenkeel(&["up"]);
        command.arg(&self.example).arg("--state").arg(self.state.path()).args(["--gateway-port", "0"]).args(more);
        command
    }

    /// Whether this user may make a user namespace.
    pub fn may_isolate(&self) -> bool {
        let mut command = Command::new(if self.unprivileged { "setpriv" } else { "unshare" });
        if self.unprivileged {
            let nobody = NOBODY.to_string();
            command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups", "unshare"]);
        }
        command.args(["--user", "--net", "--map-root-user", "true"]);
        command.output().is_ok_and(|output| output.status.success())
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Everybody may read it, and enter it.
pub fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own file");
}

/// Copies a directory so that everybody may read it.
pub fn copy_readable(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a fresh directory");
    open_to_all(to);
    for entry in fs::read_dir(from).expect("the example is there") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_readable(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), &target).expect("it can be copied");
            open_to_all(&target);
        }
    }
}
