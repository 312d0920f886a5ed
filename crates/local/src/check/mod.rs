//! `--check`: runs through the example once and prints one line for each thing that was verified.
//!
//! It works on a copy of the directory, in which it adds two callers of its own and edits files. Steps for the capitals
//! example are skipped for any other directory.

mod edits;
mod example;
mod report;
mod routing;
mod security;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use example::Example;
pub use report::Line;

use crate::cleanup::StateDir;
use crate::mesh::Mesh;
use crate::plan::Plan;
use crate::ui::Events;
use crate::workloads::Manifest;

/// Connections from the host's network that one check may open.
pub const HOST_SOCKETS: usize = 64;
/// How long all replicas may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of files copied from the directory; one with more is not an application's configuration.
const MAX_FILES: usize = 10_000;
/// The two callers a check adds: one inside the mesh under an identity nothing is allowed to, one outside it.
const CALLERS: &str = include_str!("callers.yaml");

/// Copies the user's directory into the state directory and adds the callers.
pub fn prepare(directory: &Path, manifest: &Manifest, state: &StateDir) -> io::Result<PathBuf> {
    let copy = state.check();
    let mut left = MAX_FILES;
    copy_tree(directory, directory, &copy, &mut left)?;
    if is_capitals(manifest) {
        fs::write(copy.join("check-callers.yaml"), CALLERS)?;
    }
    Ok(copy)
}

/// Copies directories and files. A link out of `root` stays a link, so that nobody reads through it but who may; what is
/// neither a file nor a directory is left out.
fn copy_tree(root: &Path, from: &Path, to: &Path, left: &mut usize) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other(format!("it holds more than {MAX_FILES} files")))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let (kind, is_hidden) = (entry.file_type()?, entry.file_name().to_string_lossy().starts_with('.'));
        if kind.is_symlink() {
            match source.canonicalize() {
                Ok(real) if real.starts_with(root) && real.is_file() => drop(fs::copy(&real, &target)?),
                Ok(real) if real.starts_with(root) => symlink(fs::read_link(&source)?, target)?,
                Ok(real) => symlink(real, target)?,
                // It leads nowhere.
                Err(_) => {}
            }
        } else if kind.is_dir() && !is_hidden {
            copy_tree(root, &source, &target, left)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

fn is_capitals(manifest: &Manifest) -> bool {
    ["capitals-web", "capitals-info-v1", "capitals-info-v2"].iter().all(|name| {
        manifest.workloads.iter().any(|workload| workload.name == *name && workload.namespace == "capitals")
    })
}

/// Runs the check; 0 if everything holds.
pub async fn run(mesh: &Mesh, plan: &Arc<Plan>, events: &Events) -> u8 {
    let mut passed = true;
    let mut tell = |line: Line| {
        passed &= line.holds;
        events.say(line.to_string());
        line.holds
    };
    let example = Example::new(mesh, plan);
    if !tell(example.all_ready(READY_TIMEOUT).await) {
        return 1;
    }
    if !is_capitals(&plan.manifest) {
        tell(Line::held("this is not the capitals example, so the rest of the check is skipped"));
        return u8::from(!passed);
    }
    tell(routing::reach(&example).await);
    for line in routing::names(&example).await {
        tell(line);
    }
    tell(routing::split(&example).await);
    tell(routing::pin(&example).await);
    tell(routing::remember(&example).await);
    tell(security::identities(&example).await);
    tell(security::plaintext(&example).await);
    tell(security::stranger(&example).await);
    tell(security::method(&example).await);
    tell(edits::takes_effect(&example).await);
    tell(edits::is_refused(&example).await);
    for line in edits::replica_dies(&example).await {
        tell(line);
    }
    tell(edits::access_log(&example).await);
    u8::from(!passed)
}

/// Runs in the keeper after everything has ended: verifies that nothing is left.
pub fn verify_removal(state: &Path, machine_unchanged: bool) -> Vec<Line> {
    // Process 1 of the mesh's namespace is gone, so the kernel has killed everything in it, and checking our own
    // children covers all processes.
    let childless = matches!(
        nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)),
        Err(nix::errno::Errno::ECHILD)
    );
    let left: Vec<String> = fs::read_dir(state)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !["control", "logs"].contains(&name.as_str()))
        .collect();
    vec![
        Line::new("removal: no process is left", childless, "a child of this process still runs"),
        Line::new(
            "removal: the machine's interfaces and mounts are unchanged",
            machine_unchanged,
            "they differ from those before the run",
        ),
        Line::new(
            "removal: no file is left but logs and the mesh's root certificate",
            left.is_empty(),
            format!("left: {}", left.join(", ")),
        ),
    ]
}

/// Prints lines and tells whether all hold.
pub fn print(lines: &[Line], out: &mut dyn Write) -> bool {
    lines.iter().for_each(|line| drop(writeln!(out, "{line}")));
    lines.iter().all(|line| line.holds)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_copy_has_files_and_directories_and_hands_out_nothing_that_links_lead_to() -> io::Result<()> {
        let (folder, others) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let (root, secret) = (folder.path().canonicalize()?.join("app"), others.path().canonicalize()?.join("key"));
        fs::create_dir_all(root.join("deep"))?;
        fs::create_dir(root.join(".hidden"))?;
        fs::write(&secret, "secret")?;
        fs::write(root.join("deep/a.yaml"), "a: 1")?;
        for (to, name) in [("deep/a.yaml", "a.yaml"), ("deep", "below"), ("none", "dangling"), (".", "itself")] {
            symlink(to, root.join(name))?;
        }
        symlink(&secret, root.join("key.yaml"))?;
        symlink(others.path(), root.join("outside"))?;
        let _pipe = UnixListener::bind(root.join("pipe.yaml"))?;
        let copy = folder.path().join("copy");
        copy_tree(&root, &root, &copy, &mut 100)?;
        let mut names: Vec<String> =
            fs::read_dir(&copy)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        assert_eq!(names, ["a.yaml", "below", "deep", "itself", "key.yaml", "outside"]);
        assert_eq!(fs::read_to_string(copy.join("below/a.yaml"))?, "a: 1");
        assert!(copy.join("a.yaml").symlink_metadata()?.is_file());
        for outside in ["key.yaml", "outside"] {
            assert!(copy.join(outside).symlink_metadata()?.is_symlink(), "{outside}");
        }
        Ok(())
    }
}
