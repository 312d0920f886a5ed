//! A state directory that cannot be written, and one that fills up: `up` reports that in a line, and keeps serving.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal};

use super::user::{User, is_root};
use super::{MACHINE, PATIENCE, state, wait_ready};

/// `up` of this directory with a file system of its own as its state directory, in a mount namespace that ends with it.
fn up(directory: &Path, folder: &Path, options: &str, before: &str) -> Process {
    let (directory, folder) = (directory.display(), folder.display());
    let binary = User::present().binary;
    let script = format!(
        "mount -t tmpfs -o mode=700,{options} none {folder} && {{ {before}; }} && exec {} up {directory} --state {folder}",
        binary.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir("/").stdin(Stdio::null());
    Process::spawn(&mut command)
}

#[test]
fn a_state_directory_that_cannot_be_written_is_said_in_a_line_and_one_that_fills_up_ends_nothing() {
    if !is_root() {
        return;
    }
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (app, folder) = (state(), state());
    let shown = folder.path().display().to_string();
    // It prints without end, less once it is asked to be quiet, and ends with 9 should that fail.
    let quiet = app.path().join("quiet");
    let run = format!(
        "python3 -m http.server --bind 0.0.0.0 8000 & while printf '%08000d\\n' $((i=i+1)) || exit 9; \
         do [ -e {} ] && sleep 1; sleep 0.0001; done",
        quiet.display()
    );
    fs::write(app.path().join("web.yaml"), super::deployment("web", 1, &run)).expect("it can be written");
    for (options, before, expected) in [
        ("ro", "true", format!("error: cannot use the state directory {shown} (another: --state DIR): Read-only")),
        ("size=64k", "true", format!("error: the disk of the state directory {shown} has ")),
    ] {
        let mut refused = up(app.path(), folder.path(), options, before);
        assert_eq!(refused.wait_for_exit(PATIENCE).code(), Some(1));
        let said = refused.output();
        assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
    }
    let mut up = up(app.path(), folder.path(), "size=6m", "true");
    wait_ready(&mut up, 1);
    up.wait_for_line("is full (");
    up.wait_for_line("traffic continues");
    let state = format!("/proc/{}/root{shown}", up.pid());
    // Said while there is a little left: lines are lost when nothing is.
    let (filler, page) = (format!("{state}/filler"), [0; 4096]);
    evenkeel_testkit::eventually("nothing to be left", || {
        let full = fs::write(&filler, page).is_err();
        fs::remove_file(&filler).expect("our own file");
        full.then_some(())
    });
    // It prints a line every few milliseconds.
    #[allow(clippy::disallowed_methods, reason = "whether a line was lost shows only when there is space again")]
    std::thread::sleep(std::time::Duration::from_millis(200));
    let logs = || fs::read_dir(format!("{state}/logs")).expect("the logs are there").flatten();
    let log = logs().find(|log| log.file_name().to_string_lossy().ends_with(".app.log")).expect("the program's").path();
    fs::write(&quiet, "").expect("it can be written");
    fs::OpenOptions::new().write(true).truncate(true).open(&log).expect("our own file");
    up.wait_for_line("has space again");
    evenkeel_testkit::eventually("what was lost", || {
        fs::read_to_string(&log).unwrap_or_default().contains("could not be written").then_some(())
    });
    assert!(!up.output().contains("restarted") && !up.output().contains("not ready"), "{}", up.output());
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
