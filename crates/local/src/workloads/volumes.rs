//! The volumes and mounts of a program, from its Pod template.

use std::path::{Component, Path, PathBuf};

use evenkeel_api::kubernetes::{FileMode, KeyToPath, PodTemplate, Volume, VolumeMount};
use evenkeel_api::{Kind, Object};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::texts::AllTexts;
use crate::temporary;
use crate::volumes::{Content, Directory, Mount, TextFile};

/// The mode of files without an explicit one.
const DEFAULT_MODE: u32 = 0o644;
/// Directories that a program on this machine needs, so that no volume is mounted over them.
const NEEDED: [&str; 10] = ["/", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/proc", "/sys", "/dev"];
/// Directories and files in which nothing may be replaced either: the system's programs and libraries, what the loader
/// reads to find them, and the kernel's own files.
const NEEDED_WHOLLY: [&str; 14] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/proc",
    "/sys",
];

/// Reads the volumes of a template; the error says what is missing.
pub(super) fn read(namespace: &str, template: &PodTemplate, texts: &AllTexts) -> Result<Vec<Directory>, String> {
    let mut all = Vec::new();
    for volume in &template.spec.volumes {
        let content = match volume {
            Volume { config_map: Some(map), .. } => {
                let files = Files { kind: Kind::ConfigMap, name: &map.name, items: &map.items, mode: map.default_mode };
                files.read(namespace, map.optional, texts)?
            }
            Volume { secret: Some(secret), .. } => {
                let (name, mode) = (&secret.secret_name, secret.default_mode);
                let files = Files { kind: Kind::Secret, name, items: &secret.items, mode };
                files.read(namespace, secret.optional, texts)?
            }
            Volume { empty_dir: Some(_), .. } => Content::Empty,
            // The mistake was reported when the file was read.
            _ => continue,
        };
        all.push(Directory { name: volume.name.to_string(), content });
    }
    Ok(all)
}

/// The texts of an object as files.
struct Files<'a> {
    kind: Kind,
    name: &'a str,
    items: &'a [KeyToPath],
    mode: Option<FileMode>,
}

impl Files<'_> {
    fn read(&self, namespace: &str, optional: bool, texts: &AllTexts) -> Result<Content, String> {
        let Self { kind, name, items, mode } = *self;
        let mode = mode.map_or(DEFAULT_MODE, |mode| mode.0);
        let Some(texts) = texts.get(kind, namespace, name) else {
            let missing = || Err(format!("there is no {kind} {namespace}/{name}"));
            return if optional { Ok(Content::Files(Vec::new())) } else { missing() };
        };
        if items.is_empty() {
            let file = |(name, bytes): (&String, &Vec<u8>)| TextFile { path: name.into(), bytes: bytes.clone(), mode };
            return Ok(Content::Files(texts.iter().map(file).collect()));
        }
        let mut files = Vec::new();
        for item in items {
            match texts.get(&item.key) {
                Some(bytes) => {
                    let path =
                        inside(&item.path).ok_or_else(|| format!("`{}` points outside the volume", item.path))?;
                    files.push(TextFile { path, bytes: bytes.clone(), mode: item.mode.map_or(mode, |mode| mode.0) });
                }
                None if optional => {}
                None => return Err(format!("the {kind} {namespace}/{name} has no `{}`", item.key)),
            }
        }
        Ok(Content::Files(files))
    }
}

/// The path, if it is relative and stays inside the volume.
fn inside(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let stays = path.components().all(|part| matches!(part, Component::Normal(_)));
    (stays && path.components().next().is_some()).then(|| path.to_owned())
}

/// The mounts of the first container. A volume that cannot be mounted on this machine is a warning: programs share the
/// machine's files, so a volume can only be mounted over a directory that exists and that no program here needs, or
/// anywhere in the program's own temporary directories.
pub(super) fn mounts(
    object: &Object,
    template: &PodTemplate,
    volumes: &[Directory],
    needed: &[PathBuf],
    diagnostics: &mut Diagnostics,
) -> Vec<Mount> {
    let containers = template.spec.containers.iter();
    let wanted = containers.flat_map(|container| &container.volume_mounts);
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in wanted {
        let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
        match place(mount, volume, needed) {
            Ok(place) if mounts.iter().all(|other| other.path != place.path) => mounts.push(place),
            Ok(_) => {}
            Err(reason) => {
                let message = format!("{object}: the volume `{}` is not mounted: {reason}", mount.name);
                let help = format!("the program finds it at ${}", volume.variable());
                diagnostics.push(Diagnostic::warning("not-mounted", object.origin.clone(), message).with_help(help));
            }
        }
    }
    // A volume must not hide one that is mounted in it.
    mounts.sort_by(|a, b| a.path.cmp(&b.path));
    mounts
}

fn place(mount: &VolumeMount, volume: &Directory, needed: &[PathBuf]) -> Result<Mount, String> {
    let path = PathBuf::from(&mount.mount_path);
    let shown = path.display();
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("`{shown}` is not an absolute path"));
    }
    let sub_path = match &mount.sub_path {
        None => None,
        Some(below) => Some(inside(below).ok_or_else(|| format!("`{below}` points outside the volume"))?),
    };
    let is_file = matches!(&volume.content, Content::Files(files) if files.iter().any(|file| Some(&file.path) == sub_path.as_ref()));
    let read_only = mount.read_only || volume.content != Content::Empty;
    if let Some(path) = in_temporary_directory(&path, needed, is_file) {
        return Ok(Mount { volume: volume.name.clone(), path, sub_path, read_only });
    }
    let Ok(real) = path.canonicalize() else {
        return Err(format!("{shown} does not exist on this machine"));
    };
    if NEEDED.iter().any(|known| real == Path::new(known))
        || NEEDED_WHOLLY.iter().any(|known| real.starts_with(known))
        || needed.iter().any(|known| known.starts_with(&real))
    {
        return Err(format!("{shown} holds files that every program here needs"));
    }
    if is_file == real.is_dir() {
        return Err(format!(
            "{shown} is {}, and what is mounted there is not",
            if is_file { "a directory" } else { "a file" }
        ));
    }
    Ok(Mount { volume: volume.name.clone(), path: real, sub_path, read_only })
}

/// The place of a mount in a temporary directory of the program's own, or over it, where `up` makes what is missing.
fn in_temporary_directory(path: &Path, needed: &[PathBuf], is_file: bool) -> Option<PathBuf> {
    let directories = temporary::directories();
    let place = temporary::place(path).filter(|place| directories.iter().any(|one| place.starts_with(one)))?;
    // A directory of the machine is shown in its own place, unless the mesh has all of the machine's directory.
    let shown =
        |known: &PathBuf| place.starts_with(known) || (known.starts_with(&place) && !directories.contains(&place));
    let is_over_directory = is_file && directories.contains(&place);
    let is_shown = needed.iter().any(shown);
    (!is_over_directory && !is_shown).then_some(place)
}

#[cfg(test)]
mod tests {
    use evenkeel_api::Resource;

    use super::*;

    fn read_all(folder: &Path, spec: &str) -> (Result<Vec<Directory>, String>, Vec<Mount>, String) {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{a: one, b: two}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  \
             template:\n    metadata: {{labels: {{app: web}}}}\n    spec: {{{}}}\n",
            spec.replace("FOLDER", &folder.display().to_string())
        );
        let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        let Some(Resource::Deployment(deployment)) = objects.last().map(|object| &object.resource) else {
            panic!("the last one is a Deployment")
        };
        let template = &deployment.spec.template;
        let volumes = read("default", template, &AllTexts::of(&objects));
        let mut said = Diagnostics::new();
        let known = volumes.clone().unwrap_or_default();
        let needed = [folder.join("needed/state")];
        let mounts = mounts(objects.last().expect("one"), template, &known, &needed, &mut said);
        (volumes, mounts, said.to_string())
    }

    #[test]
    fn volumes_are_mounted_where_they_can_be_and_what_cannot_be_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("it is there");
        std::fs::create_dir_all(folder.join("config")).expect("our own folder");
        std::fs::create_dir_all(folder.join("needed/state")).expect("our own folder");
        let volumes = "volumes: [{name: settings, configMap: {name: settings, items: [{key: a, path: deep/a.txt, mode: 0400}]}}, {name: tmp, emptyDir: {}}]";
        let mounted = |mounts: &str| {
            read_all(&folder, &format!("{volumes}, containers: [{{name: web, volumeMounts: [{mounts}]}}]"))
        };
        let (found, mounts, said) = mounted("{name: settings, mountPath: FOLDER/config}");
        let file = TextFile { path: "deep/a.txt".into(), bytes: b"one".to_vec(), mode: 0o400 };
        assert_eq!(found.expect("all is there")[0].content, Content::Files(vec![file]));
        assert_eq!(said, "");
        let mount =
            Mount { volume: "settings".to_owned(), path: folder.join("config"), sub_path: None, read_only: true };
        assert_eq!(mounts, [mount]);
        for (mounts, reason) in [
            ("{name: tmp, mountPath: /srv/none}", "does not exist on this machine"),
            ("{name: tmp, mountPath: FOLDER/needed/state/none}", "does not exist on this machine"),
            ("{name: tmp, mountPath: FOLDER/needed}", "holds files that every program here needs"),
            ("{name: tmp, mountPath: /etc}", "holds files that every program here needs"),
            ("{name: tmp, mountPath: /usr/lib/os-release}", "holds files that every program here needs"),
            ("{name: tmp, mountPath: /proc/self}", "holds files that every program here needs"),
            ("{name: tmp, mountPath: FOLDER/config, subPath: ../x}", "points outside the volume"),
            (
                "{name: settings, mountPath: /srv, subPath: deep/a.txt}",
                "is a directory, and what is mounted there is not",
            ),
            ("{name: settings, mountPath: /tmp, subPath: deep/a.txt}", "holds files that every program here needs"),
        ] {
            let (_, mounts, said) = mounted(mounts);
            assert!(mounts.is_empty() && said.contains(reason) && said.contains("$EVENKEEL_VOLUME_"), "{said}");
        }
    }

    /// What lies there on the machine does not count, because the program does not see it.
    #[test]
    fn a_temporary_directory_takes_volumes_anywhere() {
        let folder = tempfile::tempdir_in("/tmp").expect("a folder");
        let folder = folder.path().canonicalize().expect("it is there");
        std::fs::create_dir_all(folder.join("needed/state")).expect("our own folder");
        std::os::unix::fs::symlink("/etc", folder.join("link")).expect("our own folder");
        let check = |mounts: &[(&str, &str)], expected: &[&str]| {
            let wanted: Vec<String> =
                mounts.iter().map(|(name, path)| format!("{{name: {name}, mountPath: {path}}}")).collect();
            let volumes = "volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: settings}}]";
            let spec = format!("{volumes}, containers: [{{name: web, volumeMounts: [{}]}}]", wanted.join(", "));
            let (_, mounts, said) = read_all(&folder, &spec);
            let mounted: Vec<String> =
                mounts.iter().map(|mount| format!("{} {}", mount.volume, mount.path.display())).collect();
            let expected: Vec<String> =
                expected.iter().map(|text| text.replace("FOLDER", &folder.display().to_string())).collect();
            assert_eq!((mounted, said), (expected, String::new()), "{mounts:?}");
        };
        check(&[("a", "/tmp/none/deep")], &["a /tmp/none/deep"]);
        check(&[("a", "FOLDER/link")], &["a FOLDER/link"]);
        check(&[("b", "/tmp/conf"), ("a", "/tmp")], &["a /tmp", "b /tmp/conf"]);
        check(&[("a", "/var/tmp/x/")], &["a /var/tmp/x"]);
    }

    #[test]
    fn what_is_missing_is_said_unless_it_is_optional() {
        let folder = tempfile::tempdir().expect("a folder");
        let read =
            |volume: &str| read_all(folder.path(), &format!("volumes: [{{name: v, {volume}}}], containers: []")).0;
        assert_eq!(read("secret: {secretName: none}"), Err("there is no Secret default/none".to_owned()));
        let key = "configMap: {name: settings, items: [{key: none, path: a}]}";
        assert_eq!(read(key), Err("the ConfigMap default/settings has no `none`".to_owned()));
        let empty = Directory { name: "v".to_owned(), content: Content::Files(Vec::new()) };
        assert_eq!(read("secret: {secretName: none, optional: true}"), Ok(vec![empty]));
    }
}
