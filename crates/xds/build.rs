//! Builds what the crate embeds: Rust types of Istio's few wire messages, and one small descriptor set that holds
//! them and the part of Envoy's API that `protos/roots.txt` reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const OWN_PROTOS: [&str; 6] = [
    "evenkeel/scope.proto",
    "evenkeel/xds.proto",
    "istio/nds.proto",
    "istio/ca.proto",
    "udpa/typed_struct.proto",
    "xds/typed_struct.proto",
];
const ROOTS: &str = "protos/roots.txt";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=protos");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let own = protox::compile(OWN_PROTOS, ["protos"])?;
    tonic_prost_build::configure().out_dir(&out).compile_fds(own.clone())?;

    let envoy_path = envoy_types_source()?.join("src/generated/types.bin");
    let envoy = FileDescriptorSet::decode(&*fs::read(&envoy_path)?)?;
    let roots = fs::read_to_string(ROOTS)?;
    let roots = roots.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut schema = prune(envoy, roots)?;
    add_name_of_health_checks(&mut schema)?;
    for mut file in own.file {
        if !schema.file.iter().any(|kept| kept.name == file.name) {
            file.source_code_info = None;
            schema.file.push(file);
        }
    }
    fs::write(out.join("schema.bin"), schema.encode_to_vec())?;
    Ok(())
}

/// Where cargo keeps the source of `envoy-types`: it ships its descriptor set as a file but exports no path to it.
fn envoy_types_source() -> Result<PathBuf, Box<dyn Error>> {
    // A build fetches what it compiles, and cargo describes nothing before it has what the tests need as well: on a machine
    // that has built nothing yet the rest is fetched now.
    let output = match metadata(&["--offline"])? {
        output if output.status.success() => output,
        _ => metadata(&[])?,
    };
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

/// What cargo knows of the workspace. Only what this target needs is asked for.
fn metadata(more: &[&str]) -> Result<Output, Box<dyn Error>> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &env::var("TARGET")?])
        .args(more)
        .current_dir(env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    Ok(output)
}

/// Keeps the top-level messages and enums that `roots` reach. Comments, services, extensions and custom options go:
/// they are two thirds of the bytes, and nothing here reads them.
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
        let Some(message) = owner.message.map(|index| &set.file[owner.file].message_type[index]) else { continue };
        for name in referenced_types(message) {
            let target = owners.get(name.as_str()).ok_or_else(|| format!("{name} is not in envoy-types"))?;
            uses.insert(target.file);
            queue.push(target);
        }
    }

    let file_names: Vec<String> = set.file.iter().map(|file| file.name().to_owned()).collect();
    let file = used_files
        .iter()
        .map(|(&index, uses)| {
            let file = &set.file[index];
            let package = file.package();
            FileDescriptorProto {
                name: file.name.clone(),
                package: file.package.clone(),
                syntax: file.syntax.clone(),
                dependency: uses.iter().filter(|&&used| used != index).map(|&used| file_names[used].clone()).collect(),
                message_type: file
                    .message_type
                    .iter()
                    .filter(|message| kept.contains(&*format!("{package}.{}", message.name())))
                    .cloned()
                    .collect(),
                enum_type: file
                    .enum_type
                    .iter()
                    .filter(|item| kept.contains(&*format!("{package}.{}", item.name())))
                    .cloned()
                    .collect(),
                ..Default::default()
            }
        })
        .collect();
    Ok(FileDescriptorSet { file })
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

struct Owner {
    /// Full name of the top-level message or enum.
    name: String,
    file: usize,
    /// Index among the file's messages; none for an enum.
    message: Option<usize>,
}

/// Full name of every type → the top-level type it lives in.
fn top_level_owners(set: &FileDescriptorSet) -> BTreeMap<String, Owner> {
    let mut owners = BTreeMap::new();
    for (file_index, file) in set.file.iter().enumerate() {
        for (index, message) in file.message_type.iter().enumerate() {
            let top = format!("{}.{}", file.package(), message.name());
            for name in names_within(message, &top) {
                owners.insert(name, Owner { name: top.clone(), file: file_index, message: Some(index) });
            }
        }
        for item in &file.enum_type {
            let top = format!("{}.{}", file.package(), item.name());
            owners.insert(top.clone(), Owner { name: top, file: file_index, message: None });
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
