//! Makes Rust types and descriptors of the messages that this project uses:
//!
//! - of Envoy's API, the messages that `crates/envoy-api/protos/roots.txt` names and everything they refer to: `protos/envoy.bin` and
//!   `src/generated/` there;
//! - of the `.proto` files in `crates/xds/protos`: `protos/own.bin` and `src/generated/` there.
//!
//!     cargo run --manifest-path scripts/schema/Cargo.toml
//!
//! Run it after a change of `roots.txt` or of a `.proto` file, or with a newer `envoy-types` in Cargo.toml, and commit what it writes.
//! `sums` has the sum (xxh64) of every file that it read and wrote, by which a test of crate `xds` knows that none has changed since. So
//! no build needs a compiler of Protocol Buffers, a generator of Rust, the network, or `envoy-types`, whose 90,000 lines would take a
//! minute of every first build.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};
use twox_hash::XxHash64;

const ROOTS: &str = "roots.txt";
/// The packages of `crates/xds/protos` that crate `xds` has Rust types of; of the others it needs the descriptors alone.
const OWN_TYPES: [&str; 9] = [
    "envoy.extensions.filters.network.mysql_proxy.v3",
    "envoy.tcp.metadataexchange.config",
    "evenkeel.scope.v1",
    "evenkeel.xds.v1",
    "io.istio.http.peer_metadata",
    "istio.envoy.config.filter.http.alpn.v2alpha1",
    "istio.networking.nds.v1",
    "istio.v1.auth",
    "stats",
];

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..").canonicalize()?;
    let mut files = envoy_api(here, &root.join("crates/envoy-api"))?;
    files.extend(own_messages(&root.join("crates/xds"))?);
    files.sort();
    let mut sums = String::new();
    for file in files {
        writeln!(sums, "{:016x} {}", XxHash64::oneshot(0, &fs::read(&file)?), file.strip_prefix(&root)?.display())?;
    }
    Ok(fs::write(here.join("sums"), sums)?)
}

/// Envoy's messages. The files that were read and written.
fn envoy_api(here: &Path, package: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (protos, generated) = (package.join("protos"), package.join("src/generated"));
    let (roots, descriptors) = (protos.join(ROOTS), protos.join("envoy.bin"));
    let envoy = FileDescriptorSet::decode(&*fs::read(envoy_types_source(here)?.join("src/generated/types.bin"))?)?;
    let names = fs::read_to_string(&roots)?;
    let names = names.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut schema = prune(envoy, names)?;
    add_name_of_health_checks(&mut schema)?;
    fs::write(&descriptors, schema.encode_to_vec())?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    // A resource's version is a hash of its bytes, so its maps need a stable order where the control plane writes several entries.
    config.btree_map(["typed_per_filter_config", "filter_metadata", ".google.protobuf.Struct.fields"]);
    // A file for each package; one that is no longer used must not stay.
    fs::remove_dir_all(&generated)?;
    fs::create_dir(&generated)?;
    tonic_prost_build::configure()
        .out_dir(&generated)
        .compile_well_known_types(true)
        .include_file("pb.rs")
        .compile_fds_with_config(schema, config)?;
    Ok([vec![roots, descriptors], entries(&generated)?].concat())
}

/// The messages of the project's own `.proto` files. The files that were read and written.
fn own_messages(package: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (protos, generated) = (package.join("protos"), package.join("src/generated"));
    let mut files = Vec::new();
    for folder in entries(&protos)?.into_iter().filter(|path| path.is_dir()) {
        files.extend(entries(&folder)?.into_iter().filter(|file| file.extension().is_some_and(|it| it == "proto")));
    }
    files.sort();
    let mut schema = protox::compile(&files, [&protos])?;
    let folder = tempfile::tempdir()?;
    tonic_prost_build::configure().btree_map("dimensions").out_dir(folder.path()).compile_fds(schema.clone())?;
    for name in OWN_TYPES {
        let file = generated.join(format!("{name}.rs"));
        fs::copy(folder.path().join(format!("{name}.rs")), &file)?;
        files.push(file);
    }
    schema.file.iter_mut().for_each(|file| file.source_code_info = None);
    files.push(protos.join("own.bin"));
    fs::write(protos.join("own.bin"), schema.encode_to_vec())?;
    Ok(files)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Where cargo keeps the source of `envoy-types`.
fn envoy_types_source(here: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output =
        Command::new(cargo).args(["metadata", "--format-version", "1", "--locked"]).current_dir(here).output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "envoy-types")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("envoy-types is not among the packages cargo metadata lists")?;
    Ok(Path::new(manifest).parent().ok_or("manifest path has no parent")?.to_path_buf())
}

/// Keeps the top-level messages, enums and services that `roots` reach. Comments, extensions and custom options go: they are two
/// thirds of the bytes, and nothing here reads them.
fn prune<'a>(set: FileDescriptorSet, roots: impl Iterator<Item = &'a str>) -> Result<FileDescriptorSet, String> {
    let owners = top_level_owners(&set);
    let mut kept: BTreeSet<&str> = BTreeSet::new();
    let mut used_files: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut queue = Vec::new();
    for root in roots {
        let owner = owners.get(root).ok_or_else(|| format!("{ROOTS}: {root} is not in envoy-types"))?;
        queue.push(owner);
    }
    while let Some(owner) = queue.pop() {
        if !kept.insert(&owner.name) {
            continue;
        }
        let uses = used_files.entry(owner.file).or_default();
        for name in owner.refers_to(&set) {
            let target = owners.get(name.as_str()).ok_or_else(|| format!("{name} is not in envoy-types"))?;
            uses.insert(target.file);
            queue.push(target);
        }
    }
    let name_of = |index: usize| set.file.get(index).map(|file| file.name().to_owned()).unwrap_or_default();
    let file = used_files
        .iter()
        .filter_map(|(&index, uses)| {
            let imports = uses.iter().filter(|&&used| used != index).map(|&used| name_of(used)).collect();
            Some(keep(set.file.get(index)?, &kept, imports))
        })
        .collect();
    Ok(FileDescriptorSet { file })
}

/// What is kept of one file.
fn keep(file: &FileDescriptorProto, kept: &BTreeSet<&str>, imports: Vec<String>) -> FileDescriptorProto {
    let is_kept = |name: &str| kept.contains(&*format!("{}.{name}", file.package()));
    let without_options = |service: &ServiceDescriptorProto| {
        let mut service = service.clone();
        service.options = None;
        service.method.iter_mut().for_each(|method| method.options = None);
        service
    };
    FileDescriptorProto {
        name: file.name.clone(),
        package: file.package.clone(),
        syntax: file.syntax.clone(),
        dependency: imports,
        message_type: file.message_type.iter().filter(|message| is_kept(message.name())).cloned().collect(),
        enum_type: file.enum_type.iter().filter(|item| is_kept(item.name())).cloned().collect(),
        service: file.service.iter().filter(|item| is_kept(item.name())).map(without_options).collect(),
        ..FileDescriptorProto::default()
    }
}

/// Envoy 1.40 tells the health checks of a cluster apart by a name, which `envoy-types` does not have yet.
fn add_name_of_health_checks(schema: &mut FileDescriptorSet) -> Result<(), String> {
    let files = schema.file.iter_mut().filter(|file| file.package() == "envoy.config.core.v3");
    let mut messages = files.flat_map(|file| &mut file.message_type);
    let check = messages.find(|message| message.name() == "HealthCheck").ok_or("there is no HealthCheck to add to")?;
    if check.field.iter().any(|field| field.name() == "name") {
        return Err("envoy-types has HealthCheck.name now: use that".to_owned());
    }
    check.field.push(FieldDescriptorProto {
        name: Some("name".to_owned()),
        json_name: Some("name".to_owned()),
        number: Some(27),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::String.into()),
        ..FieldDescriptorProto::default()
    });
    Ok(())
}

/// A top-level message, enum or service.
struct Owner {
    /// Its full name.
    name: String,
    file: usize,
    kind: Kind,
}

/// Which of its file's top-level items it is.
enum Kind {
    Message(usize),
    Enum,
    Service(usize),
}

impl Owner {
    fn refers_to(&self, set: &FileDescriptorSet) -> Vec<String> {
        let Some(file) = set.file.get(self.file) else { return Vec::new() };
        match self.kind {
            Kind::Message(index) => file.message_type.get(index).map(referenced_types).unwrap_or_default(),
            Kind::Enum => Vec::new(),
            Kind::Service(index) => {
                let methods = file.service.get(index).into_iter().flat_map(|service| &service.method);
                let types = methods.flat_map(|method| [method.input_type(), method.output_type()]);
                types.map(|name| name.trim_start_matches('.').to_owned()).collect()
            }
        }
    }
}

/// Full name of every type → the top-level type it lives in; and of every service.
fn top_level_owners(set: &FileDescriptorSet) -> BTreeMap<String, Owner> {
    let mut owners = BTreeMap::new();
    for (file, content) in set.file.iter().enumerate() {
        let full = |name: &str| format!("{}.{name}", content.package());
        for (index, message) in content.message_type.iter().enumerate() {
            let top = full(message.name());
            for name in names_within(message, &top) {
                owners.insert(name, Owner { name: top.clone(), file, kind: Kind::Message(index) });
            }
        }
        for item in &content.enum_type {
            let top = full(item.name());
            owners.insert(top.clone(), Owner { name: top, file, kind: Kind::Enum });
        }
        for (index, service) in content.service.iter().enumerate() {
            let top = full(service.name());
            owners.insert(top.clone(), Owner { name: top, file, kind: Kind::Service(index) });
        }
    }
    owners
}

fn names_within(message: &DescriptorProto, full_name: &str) -> Vec<String> {
    let mut names = vec![full_name.to_owned()];
    names.extend(message.enum_type.iter().map(|item| format!("{full_name}.{}", item.name())));
    for nested in &message.nested_type {
        names.extend(names_within(nested, &format!("{full_name}.{}", nested.name())));
    }
    names
}

fn referenced_types(message: &DescriptorProto) -> Vec<String> {
    let own = message.field.iter().filter_map(|field| field.type_name.as_deref());
    let mut names: Vec<String> = own.map(|name| name.trim_start_matches('.').to_owned()).collect();
    names.extend(message.nested_type.iter().flat_map(referenced_types));
    names
}
