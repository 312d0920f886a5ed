//! `evenkeel get` without kinds, and `evenkeel reset`: what `apply` and `delete` have left, which takes precedence over the directory also
//! after a restart.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use evenkeel_base::Span;
use evenkeel_base::suggest::instead;
use evenkeel_explain::columns::filled;
use evenkeel_local::applied::{Applied, Override};
use evenkeel_local::cleanup::StateDir;
use serde_json::json;

use crate::formats::{Output, width};

/// The mesh whose objects are meant.
#[derive(Debug, Args)]
pub struct MeshArguments {
    /// The mesh's directory; needed only if it does not run.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// State directory of `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Flags of `evenkeel reset`.
#[derive(Debug, Args)]
pub struct ResetArguments {
    /// Objects as `evenkeel get` prints them, or KIND/NAME; all if none is given.
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,

    /// The namespace of these objects; needed only if several namespaces have one of that name.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    mesh: MeshArguments,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl MeshArguments {
    fn applied(&self) -> anyhow::Result<Applied> {
        let state = StateDir::new(&self.state.clone().unwrap_or_else(StateDir::default_path))?;
        let named = |directory: &PathBuf| directory.canonicalize().with_context(|| directory.display().to_string());
        let directory = match &self.directory {
            Some(directory) => named(directory)?,
            None => state.running().with_context(|| {
                let state = state.path().display();
                format!("no mesh is running with the state directory {state}; name the mesh: --directory DIR")
            })?,
        };
        Ok(Applied::of(&state, &directory))
    }
}

/// Lists the objects that override the directory.
pub fn get(arguments: &MeshArguments, output: Output, out: &mut dyn Write) -> anyhow::Result<u8> {
    let applied = arguments.applied()?;
    let all = list(&applied)?;
    if output == Output::Json {
        writeln!(out, "{:#}", json!({ "objects": all.iter().map(as_json).collect::<Vec<_>>() }))?;
        return Ok(0);
    }
    if all.is_empty() {
        writeln!(out, "the directory applies as it is: nothing was applied or deleted")?;
    }
    for one in &all {
        let namespace = if one.namespace.is_empty() { String::new() } else { format!(" -n {}", one.namespace) };
        writeln!(out, "{}{namespace}", one.object)?;
        write!(out, "{}", filled(&format!("  {}\n", meaning(one)), width()))?;
    }
    Ok(0)
}

/// Forgets objects, so that the directory applies again.
pub fn reset(arguments: &ResetArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let applied = arguments.mesh.applied()?;
    let all = list(&applied)?;
    let chosen = match arguments.objects.as_slice() {
        [] => all.iter().collect(),
        names => chosen(&all, names, arguments.namespace.as_deref())?,
    };
    for one in &chosen {
        applied.reset(one).with_context(|| removing(applied.folder()))?;
        if arguments.output == Output::Text {
            writeln!(out, "{} reset", one.object)?;
        }
    }
    if arguments.output == Output::Json {
        writeln!(out, "{:#}", json!({ "objects": chosen.into_iter().map(as_json).collect::<Vec<_>>() }))?;
    } else if chosen.is_empty() {
        writeln!(out, "the directory applies as it is: nothing was applied or deleted")?;
    }
    Ok(0)
}

fn list(applied: &Applied) -> anyhow::Result<Vec<Override>> {
    applied.list().with_context(|| format!("reading {}", applied.folder().display()))
}

fn removing(folder: &Path) -> String {
    format!("removing a file of {}", folder.display())
}

/// The objects that the names mean; each name must mean one.
fn chosen<'a>(all: &'a [Override], names: &[String], namespace: Option<&str>) -> anyhow::Result<Vec<&'a Override>> {
    let mut found = Vec::new();
    for name in names {
        let is_it = |one: &&Override| {
            is_named(&one.object, name) && namespace.is_none_or(|namespace| *one.namespace == *namespace)
        };
        let of_name: Vec<&Override> = all.iter().filter(is_it).collect();
        match of_name.as_slice() {
            [one] => found.push(*one),
            [] => {
                bail!("{name} was neither applied nor deleted; {}", instead(name, all.iter().map(|one| &*one.object)))
            }
            [first, ..] => bail!("{name} is in several namespaces; say which: -n {}", first.namespace),
        }
    }
    Ok(found)
}

/// Whether a name means an object: `virtualservice.networking.istio.io/ratings`, `virtualservice/ratings`, or `ratings`.
fn is_named(object: &str, name: &str) -> bool {
    let Some((kind, own)) = object.split_once('/') else { return false };
    match name.split_once('/') {
        Some((wanted, name)) => own == name && (kind == wanted || kind.split('.').next() == Some(wanted)),
        None => own == name,
    }
}

fn meaning(one: &Override) -> String {
    let over = if one.in_directory { ", over that of the directory" } else { "" };
    match (&one.from, one.deleted) {
        (_, true) => "deleted, although the directory has it".to_owned(),
        // Its file is already named as that of an applied object.
        (Some(from), false) => format!("{}{over}", place(from)),
        (None, false) => format!("applied{over}"),
    }
}

fn place(from: &Span) -> String {
    if from.line == 0 { from.file.to_string() } else { format!("{}:{}", from.file, from.line) }
}

fn as_json(one: &Override) -> serde_json::Value {
    let change = if one.deleted { "deleted" } else { "applied" };
    let from = one.from.as_ref().map(|from| json!({ "file": from.path(), "line": from.line }));
    json!({
        "object": one.object,
        "namespace": &*one.namespace,
        "change": change,
        "in_directory": one.in_directory,
        "from": from,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_chosen_by_every_name_that_is_printed() {
        let one = |object: &str, namespace: &str| Override {
            object: object.to_owned(),
            namespace: namespace.into(),
            deleted: false,
            in_directory: true,
            file: PathBuf::new(),
            from: None,
        };
        let all = [
            one("virtualservice.networking.istio.io/ratings", "default"),
            one("service/ratings", "default"),
            one("service/details", "default"),
            one("service/details", "other"),
        ];
        let check = |name: &str, namespace: Option<&str>, expected: Result<&str, &str>| {
            let found = chosen(&all, &[name.to_owned()], namespace);
            let found = found.map(|found| found[0].object.clone()).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{name}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{name}: {found}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        };
        let ratings = "virtualservice.networking.istio.io/ratings";
        check(ratings, None, Ok(ratings));
        check("virtualservice/ratings", None, Ok(ratings));
        check("service/ratings", None, Ok("service/ratings"));
        check("ratings", None, Err("several"));
        check("service/details", Some("other"), Ok("service/details"));
        check("service/details", None, Err("-n default"));
        check("service/detail", None, Err("neither applied nor deleted"));
    }
}
