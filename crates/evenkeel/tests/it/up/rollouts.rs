//! Deployments that are edited under load: their replicas are replaced, and no request is lost.

use std::fs;
use std::path::PathBuf;

use evenkeel_testkit::eventually;

use super::load::under_load;
use super::mesh::Mesh;
use super::processes::Running;
use super::user::User;
use super::{capitals, state};

/// The example in a folder of its own.
fn copied() -> User {
    let folder = state();
    let copied = std::process::Command::new("cp").arg("-r").arg(capitals()).arg(folder.path()).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let example = folder.path().join("capitals");
    User::present().with_example(example, folder)
}

/// The programs of a workload, by process id.
fn programs(mesh: &Mesh, workload: &str) -> Vec<i32> {
    let all = mesh.processes();
    all.iter().filter(|process| process.is_program_of(workload)).map(|process: &Running| process.pid).collect()
}

/// Gives the programs of a file another environment.
fn edit(file: &PathBuf, value: usize) {
    let text = fs::read_to_string(file).expect("our own copy");
    let edited = text.replace(
        "          env:\n",
        &format!("          env:\n            - name: EDIT{value}\n              value: x\n"),
    );
    assert_ne!(text, edited);
    fs::write(file, edited).expect("our own copy");
}

#[test]
fn no_request_is_lost_while_replicas_are_replaced() {
    let mesh = Mesh::of(copied());
    // Two replicas of one version and one of the other; and the only one of what the gateway calls.
    for (round, (file, workload, replicas)) in
        [("capitals-info.yaml", "capitals-info-v1", 2), ("capitals-web.yaml", "capitals-web", 1)]
            .into_iter()
            .enumerate()
    {
        let before = programs(&mesh, workload);
        assert_eq!(before.len(), replicas, "{workload}");
        let failures = under_load(&mesh.url, |account| {
            account.answers(40);
            edit(&mesh.user.example.join(file), round);
            eventually("the new replicas alone", || {
                let now = programs(&mesh, workload);
                (now.len() == replicas && now.iter().all(|program| !before.contains(program))).then_some(())
            });
            account.answers(40);
        });
        assert_eq!(failures, [""; 0], "{workload}");
    }
    let mut mesh = mesh;
    mesh.end();
}
