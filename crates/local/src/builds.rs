//! The build steps of `evenkeel.yaml`, which run on the machine itself before anything else.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use evenkeel_base::Span;
use nix::unistd::{Gid, Uid, User, getgrouplist, setgroups, setresgid, setresuid, setsid};

use crate::accounts::{invoking_user, variables};
use crate::confine::Account;
use crate::preflight::is_root;
use crate::workloads::Build;

/// Why a build failed, so that nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("{place}: the build step `{run}` {reason}; nothing was started")]
pub struct BuildError {
    /// Where it is written.
    place: Span,
    /// The command.
    run: String,
    /// The error.
    reason: String,
}

/// Runs the steps one after the other; stops at the first that fails.
///
/// Root does not run as root what another user has written: under `sudo` the steps run as the user who called it,
/// otherwise as the owner of the file and of its directory.
pub fn run(builds: &[Build], out: &mut dyn Write) -> Result<(), BuildError> {
    if let Some(build) =
        builds.iter().find(|build| runner(build).is_ok_and(|runner| runner.is_none())).filter(|_| is_root())
    {
        // A failure to print does not matter.
        let _ = writeln!(
            out,
            "note: the build steps in {} run as root, and programs of the mesh can change them; use `sudo` as the owner of the directory \
             to run them as that user",
            build.span.file
        );
    }
    for build in builds {
        let failed = |reason: String| BuildError { place: build.span.clone(), run: build.run.clone(), reason };
        let runner = runner(build).map_err(&failed)?;
        let _ = writeln!(out, "building   {} (in {})", build.run, build.directory.display()).and_then(|()| out.flush());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &build.run]).current_dir(&build.directory).stdin(Stdio::null());
        let ended = match &runner {
            Some(runner) => runner.run(command, out),
            None => command.status(),
        };
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(format!("failed ({status})"))),
            Err(error) => {
                return Err(failed(format!("cannot be run in {}: {}", build.directory.display(), plain(&error))));
            }
        }
    }
    Ok(())
}

/// Another user, as whom a step runs.
struct Runner {
    account: Account,
    groups: Vec<Gid>,
    environment: Vec<(String, String)>,
}

/// The user as whom a step runs; `None`: as this process's.
///
/// # Errors
/// If users other than the owner can change what is run.
fn runner(build: &Build) -> Result<Option<Runner>, String> {
    if !is_root() {
        return Ok(None);
    }
    if let Some(account) = invoking_user() {
        return Ok(Some(Runner::of(account)));
    }
    let file = Path::new(&*build.span.file);
    let places = [Some(file), file.parent(), Some(build.directory.as_path())];
    let mut owner = None;
    for place in places.into_iter().flatten().filter(|place| !place.as_os_str().is_empty()) {
        // Where nothing is, nothing can be run.
        let Ok(found) = fs::metadata(place) else { continue };
        let by_group = found.mode() & 0o020 != 0 && found.gid() != 0;
        let by_others = found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0;
        if found.uid() == 0 && (by_group || by_others) {
            let path = place.display();
            return Err(format!(
                "would run as root, and other users can change {path} (mode {:04o}); run `chmod go-w {path}`",
                found.mode() & 0o7777
            ));
        }
        if found.uid() != 0 {
            owner = owner.or(Some(Account { uid: found.uid(), gid: found.gid() }));
        }
    }
    Ok(owner.map(Runner::of))
}

impl Runner {
    fn of(account: Account) -> Self {
        let user = User::from_uid(Uid::from_raw(account.uid)).ok().flatten();
        let groups = user.as_ref().and_then(|user| {
            let name = CString::new(user.name.as_bytes()).ok()?;
            getgrouplist(&name, user.gid).ok()
        });
        // A user in no data base has no other groups.
        let groups = groups.unwrap_or_else(|| vec![Gid::from_raw(account.gid)]);
        Self { account, groups, environment: variables(account) }
    }

    /// Runs a command as this user, without this process's terminal: with it the user could type into root's shell.
    fn run(&self, mut command: Command, out: &mut dyn Write) -> io::Result<ExitStatus> {
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let ((uid, gid), groups) = (self.account.ids(), self.groups.clone());
        let become_user = move || {
            setsid()?;
            setgroups(&groups)?;
            setresgid(gid, gid, gid)?;
            Ok(setresuid(uid, uid, uid)?)
        };
        // SAFETY: the closure allocates nothing and makes only system calls. The C library's functions for users change
        // all threads, and the child has one.
        unsafe { command.pre_exec(become_user) };
        let mut child = command.spawn()?;
        // It holds the other end of the pipe.
        drop(command);
        let copied = io::copy(&mut { reader }, out);
        let status = child.wait()?;
        copied.map(|_| status)
    }
}

fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_where_they_are_to_and_the_first_failure_is_said_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let step = |run: &str| Build {
            directory: folder.path().to_owned(),
            run: run.to_owned(),
            span: Span::at("evenkeel.yaml", 3, 12),
        };
        let mut out = Vec::new();
        assert!(run(&[step("echo one > built")], &mut out).is_ok());
        assert!(folder.path().join("built").exists() && String::from_utf8_lossy(&out).contains("echo one > built"));
        let refused = run(&[step("exit 3"), step("touch not")], &mut out).map_err(|error| error.to_string());
        let said = refused.expect_err("it fails");
        assert_eq!(said, "evenkeel.yaml:3:12: the build step `exit 3` failed (exit status: 3); nothing was started");
        assert!(!folder.path().join("not").exists());
        let nowhere = Build { directory: folder.path().join("nowhere"), ..step("true") };
        let said = run(&[nowhere], &mut out).expect_err("it fails").to_string();
        assert!(said.contains("nowhere: there is no such directory"), "{said}");
    }

    /// As root, which may give files away.
    #[test]
    fn what_another_user_has_written_does_not_run_as_root() -> io::Result<()> {
        use std::os::unix::fs::{PermissionsExt, chown};
        const NOBODY: u32 = 65534;
        if !is_root() || invoking_user().is_some() {
            return Ok(());
        }
        let check = |owners: [u32; 2], modes: [u32; 2], expected: &str| {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("evenkeel.yaml");
            fs::write(&file, "")?;
            for (path, (owner, mode)) in [folder.path(), &file].into_iter().zip(owners.into_iter().zip(modes)) {
                chown(path, Some(owner), Some(owner))?;
                fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            }
            let step = Build {
                directory: folder.path().to_owned(),
                run: "id -u; id -G; tty < /dev/tty".to_owned(),
                span: Span::at(file.to_string_lossy(), 3, 12),
            };
            let mut out = Vec::new();
            let ran = run(&[Build { run: format!("{{ {}; }} 2>&1; true", step.run), ..step }], &mut out);
            let said = ran.map_err(|error| error.to_string()).map(|()| String::from_utf8_lossy(&out).into_owned());
            let said = said.unwrap_or_else(|error| error);
            assert!(said.contains(expected), "{owners:?} {modes:?}: {said}");
            assert_eq!(said.contains("note: "), owners == [0, 0] && !expected.starts_with("would"), "{said}");
            Ok::<_, io::Error>(())
        };
        check([NOBODY, NOBODY], [0o755, 0o644], "65534\n65534\n")?;
        check([0, NOBODY], [0o755, 0o644], "65534\n65534\n")?;
        check([NOBODY, 0], [0o755, 0o644], "65534\n65534\n")?;
        check([0, 0], [0o777, 0o644], "would run as root, and other users can change ")?;
        check([0, 0], [0o755, 0o666], "would run as root, and other users can change ")
    }
}
