//! The design's rules about crates that nothing else enforces: the dependencies between crates, and which crates stay free of
//! runtimes, clocks and sockets. They are checked in the manifests and the sources, so that a broken rule fails here first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testkit::workspace::{self, sources};

/// Allowed direct dependencies between workspace crates, without the `evenkeel-` prefix. ARCHITECTURE.md draws it.
const ALLOWED: &[(&str, &[&str])] = &[
    ("admin", &["ca"]),
    ("base", &[]),
    ("process", &["base"]),
    ("profile", &[]),
    ("api", &["format", "cel", "base"]),
    ("model", &["api", "jwt", "tls", "base"]),
    ("analyze", &["model", "api", "base"]),
    ("cel", &["base"]),
    ("format", &["cel", "base"]),
    ("jwt", &[]),
    ("envoy-api", &[]),
    ("xds", &["envoy-api", "http", "base"]),
    ("translate", &["model", "api", "xds", "format", "base"]),
    ("tls", &["base"]),
    ("capture", &["api", "base"]),
    ("cni", &[]),
    ("inject", &["capture", "api", "base"]),
    ("install", &["api", "base"]),
    ("store", &["base"]),
    ("ca", &["store", "tls", "base"]),
    (
        "control",
        &[
            "admin",
            "inject",
            "translate",
            "analyze",
            "model",
            "api",
            "xds",
            "ca",
            "store",
            "jwt",
            "tls",
            "stats",
            "process",
            "profile",
            "base",
        ],
    ),
    ("dashboard", &["admin", "filters", "process", "base"]),
    ("http", &[]),
    ("limits", &[]),
    ("stats", &[]),
    ("runtime-config", &["xds", "jwt", "format", "cel", "tls", "limits", "base"]),
    ("filters", &["runtime-config", "envoy-api", "http", "jwt", "cel", "tls", "stats", "limits", "base"]),
    ("explain", &["filters", "runtime-config", "translate", "model", "api", "xds", "tls", "base"]),
    ("upstream", &["runtime-config", "filters", "http", "tls", "stats", "base"]),
    ("proxy", &["upstream", "runtime-config", "filters", "http", "tls", "xds", "stats", "process", "profile", "base"]),
    ("agent", &["admin", "proxy", "xds", "tls", "process", "base"]),
    ("k8s", &["admin", "control", "analyze", "model", "ca", "store", "api", "base"]),
    (
        "local",
        &[
            "admin",
            "dashboard",
            "control",
            "proxy",
            "agent",
            "ca",
            "capture",
            "inject",
            "store",
            "model",
            "api",
            "process",
            "base",
        ],
    ),
    ("lab", &["agent", "http", "k8s", "measure", "xds", "process", "base"]),
    (
        "evenkeel",
        &[
            "admin",
            "dashboard",
            "local",
            "lab",
            "loadtest",
            "echo",
            "experiments",
            "agent",
            "analyze",
            "capture",
            "cni",
            "control",
            "inject",
            "install",
            "explain",
            "filters",
            "k8s",
            "proxy",
            "translate",
            "runtime-config",
            "xds",
            "store",
            "tls",
            "model",
            "api",
            "process",
            "profile",
            "base",
        ],
    ),
    (
        "bench",
        &[
            "base",
            "ca",
            "proxy",
            "upstream",
            "filters",
            "runtime-config",
            "http",
            "jwt",
            "load",
            "measure",
            "process",
            "stats",
            "tls",
            "xds",
        ],
    ),
    ("load", &[]),
    ("loadtest", &["http", "load"]),
    ("echo", &["loadtest"]),
    ("experiments", &["loadtest", "measure", "process"]),
    ("measure", &[]),
    ("fuzz", &["upstream", "runtime-config", "http", "jwt", "tls", "xds"]),
    ("testkit", &["base"]),
];

/// Crates whose sources and manifests know no runtime, clock or socket.
const PURE: &[&str] = &[
    "base",
    "api",
    "model",
    "analyze",
    "translate",
    "runtime-config",
    "http",
    "jwt",
    "cel",
    "format",
    "limits",
    "capture",
    "inject",
    "install",
];

/// What a pure crate may not depend on.
const IMPURE_DEPENDENCIES: &[&str] =
    &["tokio", "tokio-rustls", "tokio-stream", "hyper", "hyper-util", "tonic", "socket2", "mio", "notify"];

/// What a pure source may not name.
const IMPURE_NAMES: &[&str] = &[
    "tokio::",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::unix::net",
    "Instant::now",
    "SystemTime::now",
    "std::thread::",
];

/// Files and folders of crate `xds` that do its input and output, and the one that loads the descriptors, apart for the allocator's sake;
/// every other file there is a state machine or a table, and pure.
const XDS_IO: &[&str] = &[
    "client/connection.rs",
    "schema.rs",
    "server/published.rs",
    "server/service.rs",
    "server/stream.rs",
    "server/grpc",
];

/// Crates with `unsafe` code, and what for. All others forbid it.
const UNSAFE: &[(&str, &str)] = &[
    ("evenkeel", "the allocator's heaps"),
    ("local", "fork, what runs between fork and exec, signal handlers, mount_setattr(2)"),
    ("profile", "signal handlers, stacks of threads, tables of loaded files"),
    ("process", "prctl(2) between fork and exec"),
    ("proxy", "descriptors handed over, memory of loaded files, clocks of threads"),
    ("upstream", "sockets by number, splice(2), epoll(7)"),
];

#[test]
fn crates_depend_only_along_the_allowed_edges() {
    let allowed: BTreeMap<_, BTreeSet<_>> =
        ALLOWED.iter().map(|(name, edges)| (*name, edges.iter().copied().collect())).collect();
    let mut broken = Vec::new();
    for package in packages() {
        let Some(edges) = allowed.get(package.name.as_str()) else {
            broken.push(format!(
                "crate {0} has no row in ALLOWED: add one, and {0} to ARCHITECTURE.md's code map",
                package.name
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|name| name.starts_with("evenkeel")) {
            let short = dependency.trim_start_matches("evenkeel-");
            if !edges.contains(short) {
                broken.push(format!(
                    "{} may not depend on {short} (allowed: {edges:?}): move the shared piece down into a crate both may use, \
                     or change the design and this table together",
                    package.name
                ));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn testkit_is_a_dev_dependency_only() {
    for package in packages() {
        assert!(
            !package.dependencies.contains("evenkeel-testkit"),
            "crate {} ships the test kit: move evenkeel-testkit to its [dev-dependencies]",
            package.name
        );
    }
}

#[test]
fn pure_crates_depend_on_no_runtime() {
    let mut broken = Vec::new();
    for package in packages().into_iter().filter(|package| PURE.contains(&package.name.as_str())) {
        for dependency in IMPURE_DEPENDENCIES.iter().filter(|name| package.dependencies.contains(**name)) {
            broken.push(format!(
                "crate {} is pure and may not depend on {dependency}: pass time and bytes in as arguments and do the I/O in \
                 control or proxy",
                package.name
            ));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn pure_sources_name_no_runtime_clock_or_socket() {
    let crates = workspace::root().join("crates");
    let mut files: Vec<PathBuf> = PURE.iter().flat_map(|name| sources(&crates.join(name).join("src"))).collect();
    files.extend(sources(&crates.join("xds/src")).into_iter().filter(|path| !is_xds_io(path)));
    assert!(files.len() > PURE.len(), "found only {files:?}");
    let mut broken = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a source file");
        // Unit tests at the end of a file may use threads and clocks.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for name in IMPURE_NAMES.iter().filter(|name| line.contains(**name)) {
                broken.push(format!("{}:{}: names {name} in a pure file", path.display(), number + 1));
            }
        }
    }
    assert!(broken.is_empty(), "{}\npass the time, the bytes or the file's text in as an argument", broken.join("\n"));
}

/// Files of the control plane that use the file system themselves, none of them for state: the user's configuration, files
/// that the operator names, and the system's.
const FILE_SYSTEM: &[&str] = &[
    "ca/src/files.rs",
    "ca/src/plugged.rs",
    "ca/src/rotation/store.rs",
    "control/src/discovery.rs",
    "control/src/environment.rs",
    "control/src/external_signer/",
    "control/src/jwks/client.rs",
    "control/src/process_metrics.rs",
    "control/src/source/directories.rs",
    "control/src/source/files",
    "control/src/source/watch.rs",
];

/// State that survives a restart is in the store, whose backend alone knows where that is.
#[test]
fn state_is_kept_in_the_store() {
    let crates = workspace::root().join("crates");
    let mut broken = Vec::new();
    for path in ["ca/src", "control/src"].into_iter().flat_map(|folder| sources(&crates.join(folder))) {
        let short = path.strip_prefix(&crates).expect("a crate's file").to_string_lossy().into_owned();
        if FILE_SYSTEM.iter().any(|listed| short.starts_with(listed)) || short.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            if ["fs::", "::fs", "write_atomically", "File::"].iter().any(|name| line.contains(name)) {
                broken.push(format!("{short}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    // Other programs may read a control plane's state, and do so through the store as well.
    for path in ["evenkeel/src", "local/src"].into_iter().flat_map(|folder| sources(&crates.join(folder))) {
        // The directory of applied objects is configuration, which its control plane watches.
        if path.ends_with("local/src/applied.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.contains("control().join(")) {
            broken.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
        }
    }
    assert!(broken.is_empty(), "{}\nkeep it in the Store, under a key", broken.join("\n"));
}

/// Several kinds say where requests go. What proxies are told of it is made of the model's route sets alone.
#[test]
fn routes_are_made_of_route_sets_and_name_no_kind() {
    let routes = sources(&workspace::root().join("crates/translate/src/routes"));
    assert!(routes.len() > 5, "{routes:?}");
    for path in routes {
        let text = std::fs::read_to_string(&path).expect("a source file");
        for name in ["VirtualService", "HTTPRoute", "HttpRouteSpec", "Ingress", "Kind::"] {
            assert!(!text.contains(name), "{} names {name}", path.display());
        }
    }
}

#[test]
fn only_the_listed_crates_have_unsafe_code() {
    let mut broken = Vec::new();
    for package in packages() {
        let name = package.name.as_str();
        let folder = workspace::root().join("crates").join(name).join("src");
        let reason = UNSAFE.iter().find(|(listed, _)| *listed == name);
        match reason {
            Some(_) if !sources(&folder).iter().any(|path| has_unsafe_code(path)) => broken.push(format!(
                "crate {name} has no unsafe code any more: remove its row from UNSAFE, and add #![forbid(unsafe_code)] to it"
            )),
            Some(_) => {}
            None => broken.extend(["lib.rs", "main.rs"].map(|root| folder.join(root)).into_iter().filter_map(|root| {
                let text = std::fs::read_to_string(&root).ok()?;
                let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
                (!forbids).then(|| format!("{}: add #![forbid(unsafe_code)]", root.display()))
            })),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Names of types that say nothing to a newcomer.
const VAGUE_NAMES: [&str; 16] = [
    "Asked", "Came", "Emigrate", "Errand", "Kept", "Leg", "Life", "Looked", "Made", "Met", "Parting", "Standing",
    "Told", "Unheld", "Wanted", "Way",
];

#[test]
fn types_have_the_names_of_the_field() {
    let check = |line: &str, expected: Option<&str>| assert_eq!(vague_name(line), expected, "{line}");
    check("pub(crate) struct Kept<'a> {", Some("Kept"));
    check("type Told = dyn Fn();", Some("Told"));
    check("pub enum KeptOpen {", None);
    check("    Kept(Box<str>),", None);
    let mut broken = Vec::new();
    for path in sources(&workspace::root().join("crates")) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = vague_name(line) {
                broken.push(format!("{}:{}: {name} says nothing to a newcomer", path.display(), number + 1));
            }
        }
    }
    assert!(broken.is_empty(), "{}\nuse the term of Envoy, Istio or the RFC, or say what it is", broken.join("\n"));
}

/// The vague name of the type that a line declares, if it does.
fn vague_name(line: &str) -> Option<&'static str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let keyword = words.find(|word| !matches!(*word, "pub" | "crate" | "super" | "in"))?;
    let name = words.next().filter(|_| matches!(keyword, "struct" | "enum" | "trait" | "type"))?;
    VAGUE_NAMES.into_iter().find(|vague| *vague == name)
}

/// A crate that is compiled again for its unit tests, or read again for the examples of its documentation, takes time even if it has
/// none, so manifests switch that off (`test`, `doctest`). None may be switched off that has some.
#[test]
fn no_test_and_no_example_is_switched_off() {
    let mut broken = Vec::new();
    for target in packages().iter().flat_map(|package| &package.targets) {
        let (path, folder) = (Path::new(&target.root), Path::new(&target.root).parent().expect("a folder of sources"));
        // A package's second program is one file.
        let files =
            if path.ends_with("lib.rs") || path.ends_with("main.rs") { sources(folder) } else { vec![path.to_owned()] };
        let texts: Vec<_> = files.iter().map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
        let (tests, examples) = (texts.iter().any(|text| has_tests(text)), texts.iter().any(|text| has_examples(text)));
        if tests && !target.test {
            broken.push(format!("{} has unit tests: remove `test = false` from the crate's Cargo.toml", target.root));
        }
        if examples && target.is_library && !target.doctest {
            broken.push(format!("{} has examples that run: remove `doctest = false` from Cargo.toml", target.root));
        }
        if !tests && target.test {
            broken.push(format!("{} has no unit tests: add `test = false` to its part of Cargo.toml", target.root));
        }
        if !examples && target.is_library && target.doctest {
            broken.push(format!(
                "{} has no examples that run: add `doctest = false` to [lib] in Cargo.toml",
                target.root
            ));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn has_tests(text: &str) -> bool {
    ["#[test]", "#[tokio::test", "proptest! {"].iter().any(|word| text.contains(word))
}

/// Whether a documentation comment has a block of code that rustdoc runs: one without a language, or one of Rust.
fn has_examples(text: &str) -> bool {
    let mut inside = false;
    text.lines().map(str::trim_start).any(|line| {
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).map(str::trim_start);
        let Some(language) = comment.and_then(|text| text.strip_prefix("```")) else { return false };
        inside = !inside;
        inside
            && (language.is_empty() || ["rust", "should_panic", "no_run"].iter().any(|word| language.starts_with(word)))
    })
}

#[test]
fn examples_are_told_from_other_blocks() {
    let check = |text: &str, expected: bool| assert_eq!(has_examples(text), expected, "{text}");
    check("//! ```\n//! f();\n//! ```", true);
    check("    /// ```rust\n    /// f();\n    /// ```", true);
    check("/// ```text\n/// a\n/// ```", false);
    check("// ```\nfn f() {}", false);
    check("/// `f`", false);
}

fn has_unsafe_code(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).expect("a source file");
    let mut code = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    code.any(|line| ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|word| line.contains(word)))
}

fn is_xds_io(path: &Path) -> bool {
    XDS_IO.iter().any(|io| path.ends_with(io) || path.parent().is_some_and(|folder| folder.ends_with(io)))
}

struct Package {
    name: String,
    /// Names of all dependencies that are not dev-dependencies.
    dependencies: BTreeSet<String>,
    /// Its libraries and programs.
    targets: Vec<Target>,
}

struct Target {
    /// Its first source file.
    root: String,
    is_library: bool,
    /// Whether it is compiled for unit tests.
    test: bool,
    /// Whether the examples of its documentation run.
    doctest: bool,
}

/// The workspace's packages, as Cargo sees them.
fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(workspace::root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON from cargo metadata");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages
        .iter()
        .map(|package| Package {
            name: text(&package["name"]).trim_start_matches("evenkeel-").to_owned(),
            dependencies: package["dependencies"]
                .as_array()
                .expect("a list of dependencies")
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| text(&dependency["name"]))
                .collect(),
            targets: package["targets"].as_array().expect("a list of targets").iter().filter_map(target).collect(),
        })
        .collect()
}

fn target(target: &serde_json::Value) -> Option<Target> {
    let is = |kind: &str| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|name| name == kind));
    (is("lib") || is("bin")).then(|| Target {
        root: target["src_path"].as_str().unwrap_or_default().to_owned(),
        is_library: is("lib"),
        test: target["test"] == true,
        doctest: target["doctest"] == true,
    })
}

#[test]
fn only_its_own_program_links_the_lab() {
    let folder = workspace::root().join("crates/evenkeel/src");
    let names_it = |path: &PathBuf| std::fs::read_to_string(path).expect("a source file").contains("evenkeel_lab::");
    let users: Vec<PathBuf> = sources(&folder).into_iter().filter(names_it).collect();
    assert_eq!(users, [folder.join("evenkeel_lab.rs")]);
}
