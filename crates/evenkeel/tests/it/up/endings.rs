//! Nothing is left after a run, however it ends.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use evenkeel_testkit::{Process, Signal, eventually};

use super::mesh::{Mesh, REPLICAS, get, served};
use super::processes::Running;
use super::user::User;
use super::{KEPT, MACHINE, PATIENCE, entries, wait_ready};

/// Processes (by their command line) that belong to a run with this state directory.
fn processes_of(state: &Path) -> Vec<String> {
    Running::all_of(state).iter().map(Running::line).collect()
}

fn closed(url: &str) -> bool {
    TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).is_err()
}

#[test]
fn interrupted_it_drains_and_removes_everything() {
    let mut mesh = Mesh::present();
    let (user, url) = (&mesh.user, &mesh.url);
    let answer = get(url, "/api/capitals/Iceland");
    assert!(answer.contains("Reykjavík"), "{answer}");

    let state = user.state.path().display().to_string();
    let inside = user
        .evenkeel(&["exec", "capitals-web", "--state", &state, "--", "sh", "-c", "hostname; exit 3"])
        .output()
        .expect("exec runs");
    assert_eq!(inside.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&inside.stdout).starts_with("capitals-web-"), "{inside:?}");

    let status = user.evenkeel(&["proxy-status", "--state", &state]).output().expect("proxy-status runs");
    let table = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.success() && table.contains("\ncapitals-web-"), "{status:?}");
    let line = mesh.up.wait_for_line("how soon changes reach the proxies: ");
    let (pages, path) = line.rsplit_once(' ').and_then(|(_, url)| url.split_once("/debug")).expect("a URL");
    let page = get(pages, &format!("/debug{path}"));
    assert!(page.contains("200 OK") && page.contains("capitals-web-"), "{page}");

    mesh.end();
    // None of its processes is left to listen for the pages. Their port says nothing: the `up` of another test may have it by now.
    assert_eq!(processes_of(mesh.state()), Vec::<String>::new());
    assert_eq!(entries(mesh.state()), KEPT);
    assert!(closed(&mesh.url), "something still listens on {}", mesh.url);
}

#[test]
fn killed_it_takes_everything_with_it_and_the_next_run_clears_its_files() {
    let mut mesh = Mesh::present();
    mesh.up.signal(Signal::SIGKILL);
    mesh.up.wait_for_exit(PATIENCE);
    eventually("the end of all processes", || processes_of(mesh.state()).is_empty().then_some(()));
    eventually("the end of the listening socket", || closed(&mesh.url).then_some(()));
    assert!(entries(mesh.state()).contains(&"run.json".to_owned()), "the crash left nothing to clear");

    let mut again = Process::spawn(&mut mesh.user.up(&[]));
    again.wait_for_line("removed what an interrupted run left behind");
    wait_ready(&mut again, REPLICAS);
    again.signal(Signal::SIGTERM);
    assert!(again.wait_for_exit(PATIENCE).success(), "{}", again.output());
    assert_eq!(entries(mesh.state()), KEPT);
}

#[test]
fn a_second_one_on_the_same_state_directory_is_refused_and_the_first_goes_on() {
    let mut mesh = Mesh::present();
    let mut second = Process::spawn(&mut mesh.user.up(&[]));
    assert!(!second.wait_for_exit(PATIENCE).success());
    let said = second.output();
    assert!(said.contains("another `evenkeel up` uses") && said.contains("--state DIR"), "{said}");
    served(&mesh.url, "/healthz");
    mesh.end();
}

#[test]
fn interrupted_twice_it_ends_at_once_what_does_not_want_to_end() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), super::state());
    let run = "trap '' TERM INT; python3 -m http.server --bind 0.0.0.0 8000; sleep 86400";
    fs::write(folder.path().join("stubborn.yaml"), super::deployment("stubborn", 1, run)).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 1);
    up.signal(Signal::SIGINT);
    up.wait_for_line("Ctrl-C again ends everything at once");
    up.signal(Signal::SIGINT);
    // Without the second signal the program would have five seconds.
    assert!(up.wait_for_exit(Duration::from_secs(4)).success(), "{}", up.output());
    assert_eq!(processes_of(user.state.path()), Vec::<String>::new());
    assert_eq!(entries(user.state.path()), KEPT);
}
