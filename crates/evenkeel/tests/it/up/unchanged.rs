//! Unchanged manifests, of the example and of Istio's own bookinfo, with commands beside them, and changes as made by
//! `kubectl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_testkit::{Process, Signal, eventually, workspace};

use super::mesh::{get, served};
use super::user::User;
use super::{MACHINE, PATIENCE, state, url, wait_ready};

/// Replicas of bookinfo, and the gateway.
const REPLICAS: usize = 7;
const PAGE: &str = "/productpage";

fn example() -> PathBuf {
    workspace::root().join("examples/bookinfo")
}

/// `evenkeel COMMAND ARGUMENTS --state STATE` with this input: its exit status, and what it prints.
fn evenkeel(state: &Path, arguments: &[&str], input: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let split = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
    command.args(&arguments[..split]).arg("--state").arg(state).args(&arguments[split..]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary is there");
    let mut stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, input.as_bytes()).expect("it reads, or is done");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

fn start(user: &User) -> (Process, String) {
    let mut up = Process::spawn(&mut user.up(&[]));
    wait_ready(&mut up, REPLICAS);
    let url = url(&mut up);
    served(&url, PAGE);
    (up, url)
}

#[track_caller]
fn end(up: &mut Process) {
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// Ten pages in a row that are so.
fn all_pages(url: &str, what: &str, fits: impl Fn(&str) -> bool) {
    eventually(what, || (0..10).all(|_| fits(&get(url, PAGE))).then_some(()));
}

/// What cannot be done is said at once, with its place. `v3` is what is applied in the end.
fn what_cannot_be_done_is_said(state: &Path, v3: &str) {
    let named = v3.replacen("metadata:\n", "metadata:\n  generateName: reviews-\n", 1);
    let (status, said) = evenkeel(state, &["apply", "-f", "-"], &named);
    let parts = ["standard input:", "unsupported-field", "generateName", "reviews configured"];
    assert!(status == 0 && parts.iter().all(|part| said.contains(part)), "{said}");
    let (status, said) = evenkeel(state, &["apply", "-f", "-"], &v3.replace("subset:", "subst:"));
    assert!(status == 1 && said.contains("did you mean `subset`?") && said.contains("nothing was changed"), "{said}");
    let nowhere = v3.replace("subset: v3", "subset: v4");
    let (status, said) = evenkeel(state, &["apply", "-f", "-"], &nowhere);
    assert!(status == 0 && said.contains("missing-subset") && said.contains("configured"), "{said}");
    let bogus = v3.replace("    - route:", "    - headers: {request: {set: {x-a: '%BOGUS%'}}}\n      route:");
    let (status, said) = evenkeel(state, &["apply", "-f", "-"], &bogus);
    let parts = ["standard input:10:38", "there is no operator %BOGUS%", "it is sent as text", "configured"];
    assert!(status == 0 && parts.iter().all(|part| said.contains(part)), "{said}");
    evenkeel(state, &["apply", "-f", "-"], v3);
    let (status, said) = evenkeel(
        state,
        &["apply", "-n", "elsewhere", "-f", "-"],
        &v3.replace("  name: reviews\n", "  name: reviews\n  namespace: shop\n"),
    );
    assert!(status == 1 && said.contains("--namespace says elsewhere"), "{said}");
}

/// The lines of a table, without what is said below it.
fn rows(table: &str) -> usize {
    table.lines().take_while(|line| !line.is_empty()).count()
}

/// Every name that is printed is understood. Returns a replica's.
fn names_are_understood(state: &Path) -> String {
    let (_, table) = evenkeel(state, &["proxy-status"], "");
    let name = table.lines().find_map(|line| line.split(' ').next().filter(|name| name.starts_with("ratings-v1-")));
    let name = name.expect("a row of ratings").to_owned();
    for wanted in [&*name, "ratings-v1", "ratings", "deploy/ratings-v1", "ratings-v1.default"] {
        let (status, said) = evenkeel(state, &["exec", wanted, "--", "sh", "-c", "echo $HOSTNAME"], "");
        assert!(status == 0 && name.starts_with(said.trim()), "{wanted}: {said}");
        let (status, said) = evenkeel(state, &["proxy-status", wanted], "");
        assert!(status == 0 && said.contains(&name) && rows(&said) == 2, "{wanted}: {said}");
        let (status, said) = evenkeel(state, &["history", wanted], "");
        assert!(status == 0 && said.lines().next().is_some_and(|line| line.contains(&name)), "{wanted}: {said}");
        let (_, said) = evenkeel(state, &["logs", wanted, "--tail", "1000"], "");
        assert!(said.contains("listening on port 9080"), "{wanted}: {said}");
    }
    assert_eq!(evenkeel(state, &["logs", "--proxy", "ratings-v1"], "").0, 0);
    let (status, said) = evenkeel(state, &["proxy-config", "workers"], "");
    assert!(status == 0 && said.contains(&name) && said.matches(".default:").count() == REPLICAS - 1, "{said}");
    name
}

#[test]
fn tutorials_steps_are_followed_on_the_example_and_survive_a_restart() {
    let _among_others = MACHINE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut user = User::present();
    user.example = example();
    let state = user.state.path();
    let file = |name: &str| example().join("apply").join(name).display().to_string();
    let (mut up, url) = start(&user);

    let (status, said) = evenkeel(state, &["apply", "-f", &file("all-v1.yaml")], "");
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("virtualservice.networking.istio.io/reviews created"), "{said}");
    assert!(evenkeel(state, &["apply", "-f", &file("all-v1.yaml")], "").1.contains("ratings unchanged"));
    all_pages(&url, "no stars", |page| page.contains("Reviewer1") && !page.contains('★'));
    let v3 = fs::read_to_string(file("reviews-v3.yaml")).expect("the example is there");
    let (_, said) = evenkeel(state, &["apply", "-f", "-"], &v3);
    assert_eq!(said, "virtualservice.networking.istio.io/reviews configured\n");
    all_pages(&url, "red stars", |page| page.contains("#c00"));

    what_cannot_be_done_is_said(state, &v3);
    let name = names_are_understood(state);

    // New replicas, by the same names of workloads.
    let (status, said) = evenkeel(state, &["restart", "ratings-v1"], "");
    assert_eq!((status, &*said), (0, "default/ratings-v1 restarted\n"));
    let gone = || {
        !evenkeel(state, &["exec", "ratings-v1", "--", "sh", "-c", "echo $HOSTNAME"], "")
            .1
            .starts_with(name.split('.').next().unwrap_or_default())
    };
    eventually("another replica", || gone().then_some(()));
    end(&mut up);

    let (mut up, url) = start(&user);
    all_pages(&url, "red stars again", |page| page.contains("#c00"));
    // What holds from the run before is said, and can be listed and forgotten.
    up.wait_for_line("of an earlier run override the directory: ");
    let (_, said) = evenkeel(state, &["get"], "");
    assert!(said.contains("virtualservice.networking.istio.io/reviews"), "{said}");
    let (status, said) = evenkeel(state, &["delete", "-f", &file("all-v1.yaml")], "");
    assert!(status == 0 && said.matches(" deleted\n").count() == 4, "{said}");
    let (status, said) = evenkeel(state, &["delete", "-f", &file("all-v1.yaml")], "");
    assert!(status == 1 && said.matches(" not found\n").count() == 4, "{said}");
    // What the directory brings can be deleted as well.
    let gateway = example().join("gateway.yaml").display().to_string();
    let (status, said) = evenkeel(state, &["delete", "-f", &gateway], "");
    assert!(status == 0 && said.contains("gateway.networking.istio.io/bookinfo-gateway deleted"), "{said}");
    up.wait_for_line("is closed: no Gateway has port");
    let (_, said) = evenkeel(state, &["get"], "");
    assert!(said.contains("deleted, although the directory has it"), "{said}");
    let (status, said) = evenkeel(state, &["reset", "gateway/bookinfo-gateway"], "");
    assert_eq!((status, &*said), (0, "gateway.networking.istio.io/bookinfo-gateway reset\n"));
    up.wait_for_line("is open: http://");
    let (status, said) = evenkeel(state, &["reset"], "");
    assert_eq!((status, &*said), (0, "virtualservice.networking.istio.io/bookinfo reset\n"));
    eventually("stars and none", || {
        let pages: Vec<String> = (0..12).map(|_| get(&url, PAGE)).collect();
        let has = |what: &str| pages.iter().any(|page| page.contains(what));
        (has("#c00") && has("#111") && pages.iter().any(|page| page.contains("Reviewer1") && !page.contains('★')))
            .then_some(())
    });
    end(&mut up);
    let (status, said) = evenkeel(state, &["apply", "-f", &gateway], "");
    assert!(status == 1 && said.contains("no mesh is running") && said.contains("evenkeel up DIR"), "{said}");
}

/// The files of other tools that lie beside manifests everywhere.
const BESIDE: [(&str, &str); 6] = [
    ("docker-compose.yml", "services:\n  web: {image: nginx, ports: [\"80:80\"]}\n"),
    ("kustomization.yaml", "resources: [bookinfo.yaml]\nnamePrefix: a-\n"),
    ("package.json", "{\"name\": \"a\", \"private\": true}\n"),
    ("chart/Chart.yaml", "apiVersion: v2\nname: a\nversion: 1.0.0\n"),
    ("chart/templates/a.yaml", "{{- if .Values.on }}\nkind: {{ .Values.kind }}\n"),
    (
        "monitor.yaml",
        "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: web}\nspec: {endpoints: [{port: http}]}\n",
    ),
];

/// A directory with manifests that are left where they are, and what lies beside them.
fn beside(manifests: &[PathBuf]) -> tempfile::TempDir {
    let folder = state();
    let path = |name: &str| folder.path().join(name);
    for manifest in manifests {
        let name = manifest.file_name().expect("a file").to_string_lossy().into_owned();
        std::os::unix::fs::symlink(manifest, path(&name)).expect("a fresh directory");
    }
    fs::create_dir_all(path("chart/templates")).expect("a fresh directory");
    BESIDE.iter().for_each(|(name, text)| fs::write(path(name), text).expect("a fresh directory"));
    fs::write(path(".evenkeelignore"), "chart/templates/\n").expect("a fresh directory");
    let commands = fs::read_to_string(example().join("evenkeel.yaml")).expect("the example is there");
    let source = example().join("src").display().to_string();
    fs::write(path("evenkeel.yaml"), commands.replace("workingDirectory: src", &format!("workingDirectory: {source}")))
        .expect("a fresh directory");
    folder
}

#[track_caller]
fn runs_beside_other_files(manifests: &[PathBuf]) {
    let _among_others = MACHINE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = beside(manifests);
    let mut user = User::present();
    user.example = folder.path().to_owned();
    let (mut up, url) = start(&user);
    let page = served(&url, PAGE);
    assert!(page.contains("William Shakespeare") && page.contains("Reviewer1"), "{page}");
    let said = up.output();
    let skipped = said.lines().find(|line| line.contains("skipped")).unwrap_or_default().to_owned();
    for name in ["docker-compose.yml", "kustomization.yaml", "package.json", "chart/Chart.yaml"] {
        assert!(skipped.contains(name), "{name} is not in {said}");
    }
    assert!(!skipped.contains("evenkeel.yaml"), "{said}");
    up.wait_for_line("foreign-kind");
    end(&mut up);
}

#[test]
fn manifests_run_beside_the_files_of_other_tools() {
    runs_beside_other_files(&["bookinfo.yaml", "gateway.yaml"].map(|name| example().join(name)));
}

/// Istio's own files, where they are at hand.
#[test]
fn istios_bookinfo_runs_unchanged() {
    let samples = workspace::root().join("../shared/reference/istio-samples/bookinfo");
    let manifests = ["platform/kube/bookinfo.yaml", "networking/bookinfo-gateway.yaml"].map(|name| samples.join(name));
    if manifests.iter().all(|path| path.is_file()) {
        runs_beside_other_files(&manifests);
    }
}
