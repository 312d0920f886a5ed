//! What a mesh on this machine says about itself.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::Context;
use evenkeel_analyze::analyze;
use evenkeel_base::Diagnostics;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::pages;

use super::archive::Archive;
use super::redact;
use crate::admin;
use crate::compiled;
use crate::manifests::Manifests;
use crate::proxies::Proxies;

/// Bytes of each log that are read, from its end.
const MAX_LOG_BYTES: u64 = 4 * 1024 * 1024;
/// Pages of the control plane.
pub const CONTROL_PLANE_PAGES: &[(&str, &str)] = &[
    ("/debug/syncz", "syncz.json"),
    ("/debug/diagnostics", "diagnostics.json"),
    ("/debug/registryz", "registryz.json"),
    ("/debug/endpointz", "endpointz.json"),
    ("/debug/history", "history.json"),
    ("/debug/ca", "ca.json"),
    ("/metrics", "metrics.txt"),
];
/// Pages of each proxy.
const PROXY_PAGES: &[(&str, &str)] = &[
    ("/server_info", "server_info.json"),
    ("/config_dump", "config_dump.json"),
    ("/clusters", "clusters.txt"),
    ("/listeners", "listeners.txt"),
    ("/certs", "certs.json"),
    ("/stats", "stats.txt"),
    ("/workers", "workers.json"),
    ("/edges", "edges.json"),
    ("/requests", "requests.json"),
    ("/xds", "xds.json"),
];
/// Files that say what the machine is.
const MACHINE: &[(&str, &str)] = &[
    ("/etc/os-release", "os-release.txt"),
    ("/proc/version", "kernel.txt"),
    ("/proc/meminfo", "memory.txt"),
    ("/proc/loadavg", "load.txt"),
    ("/proc/self/limits", "limits.txt"),
    ("/proc/pressure/cpu", "pressure-cpu.txt"),
    ("/proc/pressure/memory", "pressure-memory.txt"),
];

/// Adds what describes this machine.
pub fn add_machine(archive: &mut Archive) -> io::Result<()> {
    for (path, name) in MACHINE {
        // A kernel without pressure information is none worth mentioning.
        if let Ok(content) = fs::read(path) {
            archive.add(&format!("machine/{name}"), &content)?;
        }
    }
    Ok(())
}

/// Adds the mesh with this state directory; of one that has ended, its logs.
pub fn add_mesh(state: &StateDir, archive: &mut Archive) -> anyhow::Result<()> {
    if state.running().is_some() {
        add_objects(state, archive)?;
        let control_plane = pages::of_run(state.path()).context("the control plane has no pages")?;
        for (page, name) in CONTROL_PLANE_PAGES {
            let content = admin::get(admin::CONTROL_PLANE, control_plane, page).map(|page| redacted(&page));
            archive.add_result(&format!("control-plane/{name}"), content)?;
        }
        add_proxies(state, archive)?;
    } else {
        archive.problems.push(format!("no mesh runs with the state directory {}", state.path().display()));
    }
    add_logs(&state.logs(), archive)?;
    Ok(())
}

/// Adds the files that the mesh runs, and the findings about them.
fn add_objects(state: &StateDir, archive: &mut Archive) -> anyhow::Result<()> {
    let manifests = Manifests::given_or_running(&[], Some(state.path()))?;
    for (at, (name, text)) in manifests.texts.iter().enumerate() {
        let file = Path::new(&**name).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let content = format!("# {name}\n{}", redact::file(text));
        archive.add(&format!("objects/{at:03}-{file}"), content.as_bytes())?;
    }
    archive.add("objects/findings.txt", findings(&manifests).as_bytes())?;
    Ok(())
}

/// What `analyze` finds.
pub fn findings(manifests: &Manifests) -> String {
    let mut read = manifests.diagnostics.clone();
    read.extend(compiled::refusals(&manifests.objects));
    let findings = analyze(&manifests.objects, &manifests.mesh, read, &[]);
    let all: Diagnostics = findings.iter().map(evenkeel_analyze::Finding::to_diagnostic).collect();
    // Without the sources: their lines may contain secrets.
    if all.is_empty() {
        return "no findings\n".to_owned();
    }
    redact::text(&all.iter().map(|finding| format!("{finding}\n")).collect::<String>())
}

fn add_proxies(state: &StateDir, archive: &mut Archive) -> anyhow::Result<()> {
    let proxies = Proxies::of_mesh(Some(&state.path().to_owned()))?;
    for replica in proxies.replicas("", None)? {
        for (page, name) in PROXY_PAGES {
            let content = proxies.page(&replica, page, None).map(|page| redacted(&page));
            archive.add_result(&format!("proxies/{}.{}/{name}", replica.pod, replica.namespace), content)?;
        }
    }
    Ok(())
}

fn add_logs(folder: &Path, archive: &mut Archive) -> io::Result<()> {
    let Ok(files) = fs::read_dir(folder) else {
        archive.problems.push(format!("{}: there are no logs", folder.display()));
        return Ok(());
    };
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).filter(|path| is_own_file(path)).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let content = end_of(&path).with_context(|| path.display().to_string());
        archive.add_result(&format!("logs/{name}"), content.map(|log| redacted(&log)))?;
    }
    Ok(())
}

/// Whether it is a file itself: the folder may be another user's, whose links lead anywhere.
fn is_own_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_file())
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
    let mut content = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// A page or a log without secrets: JSON field by field, other texts line by line.
pub fn redacted(content: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<serde_json::Value>(content) {
        Ok(mut page) if page.is_object() || page.is_array() => {
            redact::value(&mut page);
            format!("{page:#}\n").into_bytes()
        }
        _ => redact::text(&String::from_utf8_lossy(content)).into_bytes(),
    }
}
