//! What a program and a sidecar can do to the machine through the folders that they own, while `up` writes there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::{NOBODY, User, is_root, open_to_all};
use super::{MACHINE, PATIENCE, deployment, entries, state, wait_ready};

const SERVE: &str = "exec python3 -m http.server --bind 0.0.0.0 8000";

/// What a program tries in its volumes, with what came of it. `@VICTIM@` is a directory of root's, `@SHARED@` and `@TEXTS@` are
/// those over which volumes are mounted.
const ATTACK: &str = r#"
import errno, os
empty, texts = os.environ['EVENKEEL_VOLUME_EMPTY'], os.environ['EVENKEEL_VOLUME_TEXTS']
def attempt(name, *actions):
    came = []
    for action in actions:
        try:
            action()
            came.append('done')
        except OSError as error:
            came.append(errno.errorcode[error.errno])
    print(f"{name}: {' '.join(came)}", flush=True)
def write(path, text='mine'):
    with open(path, 'w') as file:
        file.write(text)
def read(path):
    with open(path) as file:
        if file.read() != 'one':
            raise OSError(errno.EIO, '')
folder = os.path.dirname(empty)
attempt('a volume moved away', lambda: os.rename(empty, empty + '.old'), lambda: os.rename(texts, texts + '.old'))
attempt('the folder of volumes', lambda: os.symlink('@VICTIM@', folder + '/link'), lambda: os.rename(folder, folder + '.old'))
attempt('texts', lambda: write(texts + '/a'), lambda: os.remove(texts + '/a'), lambda: os.mkdir(texts + '/..b'),
        lambda: os.symlink('/dev/zero', texts + '/zero'), lambda: os.chmod(texts, 0o777))
attempt('mounted texts', lambda: write('@TEXTS@/a'), lambda: os.mkfifo('@TEXTS@/pipe'), lambda: os.chmod('@TEXTS@/a', 0o666))
attempt('reading them', lambda: read(texts + '/a'), lambda: read('@TEXTS@/a'))
attempt('an empty volume', lambda: write(empty + '/..a'), lambda: os.symlink('@VICTIM@', empty + '/..data'),
        lambda: os.mkfifo(empty + '/pipe'), lambda: os.chmod(empty, 0o700))
attempt('a mounted part of it', lambda: write('@SHARED@/file'), lambda: read(empty + '/deep/part/file') or None)
"#;

/// The same whoever has started the mesh.
const CAME: &str = "\
a volume moved away: EROFS EROFS
the folder of volumes: EROFS EROFS
texts: EROFS EROFS EROFS EROFS EROFS
mounted texts: EROFS EROFS EROFS
reading them: done done
an empty volume: done done done done
a mounted part of it: done EIO
";

/// The manifest; `more` are further objects.
fn manifest(folder: &Path, text: &str, more: &str) -> String {
    let volumes = format!(
        "spec:\n      volumes: [{{name: empty, emptyDir: {{}}}}, {{name: texts, configMap: {{name: texts, defaultMode: 0400}}}}]\n      \
         containers: [{{name: main, ports: [{{containerPort: 8000}}], volumeMounts: [\
         {{name: empty, mountPath: {0}/shared, subPath: deep/part}}, {{name: texts, mountPath: {0}/texts}}]}}]\n",
        folder.display()
    );
    let run = format!("echo start; python3 attack.py; echo end; {SERVE}");
    let attacker = deployment("attacker", 1, &run);
    let plain = "spec: {containers: [{name: main, ports: [{containerPort: 8000}]}]}\n";
    assert!(attacker.contains(plain), "{attacker}");
    let texts = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: texts}}\ndata: {{a: {text}}}\n");
    format!("{}---\n{texts}{more}", attacker.replace(plain, &volumes))
}

fn log(state: &Path) -> Option<String> {
    let name = entries(&state.join("logs"))
        .into_iter()
        .find(|name| name.starts_with("attacker-") && name.ends_with(".app.log"))?;
    fs::read_to_string(state.join("logs").join(name)).ok()
}

/// A directory that only root may enter, with a file.
fn victim() -> tempfile::TempDir {
    let victim = state();
    fs::write(victim.path().join("key"), "secret").expect("our own folder");
    fs::set_permissions(victim.path(), fs::Permissions::from_mode(0o700)).expect("our own folder");
    victim
}

fn is_untouched(victim: &Path) {
    let mode = fs::metadata(victim).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!((mode, entries(victim)), (0o700, vec!["key".to_owned()]), "{}", victim.display());
}

fn users() -> Vec<User> {
    let unprivileged = Some(User::unprivileged()).filter(User::may_isolate);
    is_root().then(User::present).into_iter().chain(unprivileged).collect()
}

#[test]
fn whatever_a_program_does_in_its_volumes_changes_nothing_elsewhere_and_stops_no_change() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for (user, through_sudo) in users().into_iter().map(|user| (user, false)).chain(
        // The supervisor is root then as well.
        is_root().then(|| (User::present(), true)),
    ) {
        let (folder, victim) = (state(), victim());
        let (base, app) = (folder.path(), folder.path().join("app"));
        open_to_all(base);
        for name in ["app", "shared", "texts"] {
            fs::create_dir(base.join(name)).expect("our own folder");
            open_to_all(&base.join(name));
        }
        let place = |name: &str| base.join(name).display().to_string();
        let attack = ATTACK
            .replace("@VICTIM@", &victim.path().display().to_string())
            .replace("@SHARED@", &place("shared"))
            .replace("@TEXTS@", &place("texts"));
        fs::write(app.join("attack.py"), attack).expect("our own folder");
        fs::write(app.join("mesh.yaml"), manifest(base, "one", "")).expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(&app).arg("--state").arg(user.state.path());
        if through_sudo {
            for path in [app.clone(), app.join("mesh.yaml")] {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give a file away");
            }
            command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
            command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        }
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 1);
        let came = eventually("the end of the attempts", || {
            let said = log(user.state.path())?;
            Some(said.split_once("start\n")?.1.split_once("end\n")?.0.to_owned())
        });
        assert_eq!(came, CAME, "through sudo: {through_sudo}");

        // At a change all volumes are written again, and what is new is started, unless it asks for what its user may not
        // have.
        let local = format!(
            "workloads: {{closed: {{command: exec sleep 1000, workingDirectory: {}}}}}\n",
            victim.path().display()
        );
        fs::write(app.join("evenkeel.yaml"), local).expect("our own folder");
        let closed = deployment("closed", 1, "true").replace("local.evenkeel.dev/run", "note");
        let more = format!("---\n{closed}---\n{}", deployment("other", 1, SERVE));
        fs::write(app.join("mesh.yaml"), manifest(base, "two", &more)).expect("our own folder");
        wait_ready(&mut up, 2);
        let state = user.state.path().display().to_string();
        let read = format!("cat $EVENKEEL_VOLUME_TEXTS/a {}/a", place("texts"));
        let exec = ["exec", "attacker", "--state", &state, "--", "sh", "-c", &read];
        eventually("the new text", || {
            let seen = user.evenkeel(&exec).output().expect("exec runs");
            (String::from_utf8_lossy(&seen.stdout) == "twotwo").then_some(())
        });
        is_untouched(victim.path());
        let errors: Vec<String> =
            up.output().lines().filter(|line| line.contains("error:")).map(str::to_owned).collect();
        assert!(errors.iter().all(|line| line.contains("cannot enter its working directory")), "{errors:?}");
        assert!(!errors.is_empty(), "{}", up.output());
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
        is_untouched(victim.path());
    }
}

/// Puts a pipe, and what does not end, in the place of everything in the sidecar's folder.
const SPOIL: &str = "for name in *; do rm -rf $name; mkfifo $name; ln -sfn /dev/zero $name.new; done; ls -d *.pem";

#[test]
fn what_a_sidecar_puts_into_its_folder_stops_no_change_and_no_end() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for user in users() {
        let folder = state();
        open_to_all(folder.path());
        let file = folder.path().join("mesh.yaml");
        fs::write(&file, deployment("web", 1, SERVE)).expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, 1);
        let state = user.state.path();
        let name = entries(&state.join("pods")).into_iter().find(|name| name.starts_with("web-")).expect("a replica");
        let own = state.join("pods").join(name);
        let spoil = format!("cd {} && {SPOIL}", own.display());
        let exec =
            ["exec", "web", "-c", "istio-proxy", "--state", &state.display().to_string(), "--", "sh", "-c", &spoil];
        let spoilt = user.evenkeel(&exec).output().expect("exec runs");
        assert_eq!(String::from_utf8_lossy(&spoilt.stdout).lines().next(), Some("root-cert.pem"), "{spoilt:?}");
        // Within a second they are looked at.
        for name in ["root-cert.pem", "token"] {
            eventually("a file again", || {
                fs::symlink_metadata(own.join(name)).is_ok_and(|it| it.is_file()).then_some(())
            });
        }
        let both = [deployment("web", 1, SERVE), deployment("other", 1, SERVE)].join("---\n");
        fs::write(&file, both).expect("our own folder");
        wait_ready(&mut up, 2);
        up.signal(Signal::SIGINT);
        assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    }
}
