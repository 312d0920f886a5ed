//! `docs/yaml-fields.md` is generated from the decoders' field tables; run with `BLESS=1` after changing one. (The
//! crate `runtime-config` generates the proxy's page.)

use std::fmt::Write;

use evenkeel_api::Kind;
use evenkeel_api::decode::{Field, Schema, Status};
use evenkeel_testkit::{golden, workspace};

#[test]
fn yaml_fields_page_is_the_decoders_tables() {
    let mut page = String::from(
        "# YAML kinds and fields the control plane supports\n\n\
         This page lists every kind and field of YAML that the control plane reads. \
         A kind or field that is not supported is named in a [diagnostic](diagnostics.md) with its file, line and column. \
         Three groups of fields are known but do not work:\n\n\
         - *ignored*: a warning names the field, and the rest of the object takes effect;\n\
         - *refused*: without the field the rest of the object would mean something else (for example let more requests pass), \
         so the object is rejected;\n\
         - *no effect*: the field has a meaning only in a Kubernetes cluster.\n\n\
         The page is generated from the field tables in `crates/api` by a test (`make bless` writes it); do not edit it.\n",
    );
    for kind in Kind::ALL.iter().filter(|kind| kind.is_supported()) {
        let group = if kind.group().is_empty() { "core".to_owned() } else { kind.group().to_owned() };
        let _ = writeln!(page, "\n## {} ({group}: {})\n", kind.as_str(), kind.versions().join(", "));
        let mut rows = Rows::default();
        rows.add("", &kind.schema(), 0);
        page.push_str(&rows.render());
    }
    golden::check(workspace::root().join("docs/yaml-fields.md"), &page);
}

/// Deeper than any supported kind: ends the walk if a type ever holds itself.
const MAX_DEPTH: usize = 16;

/// One kind's fields, flattened to paths.
#[derive(Default)]
struct Rows {
    works: Vec<(String, String)>,
    other: Vec<(Status, String)>,
}

impl Rows {
    fn add(&mut self, path: &str, schema: &Schema, depth: usize) {
        assert!(depth < MAX_DEPTH, "{path} is nested more than {MAX_DEPTH} deep");
        match schema {
            Schema::Object(fields) => fields.iter().for_each(|field| self.add_field(path, field, depth)),
            Schema::List(item) => self.add_inner(&format!("{path}[]"), item, schema, depth),
            Schema::Map(value) => self.add_inner(&format!("{path}.*"), value, schema, depth),
            leaf => self.works.push((path.to_owned(), leaf.describe())),
        }
    }

    fn add_inner(&mut self, path: &str, inner: &Schema, outer: &Schema, depth: usize) {
        match inner {
            Schema::Object(_) | Schema::List(_) | Schema::Map(_) => self.add(path, inner, depth + 1),
            _ => self.works.push((path.to_owned(), outer.describe())),
        }
    }

    fn add_field(&mut self, path: &str, field: &Field, depth: usize) {
        let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        match (field.status, field.schema) {
            (Status::Works, Some(schema)) => {
                let before = self.works.len();
                self.add(&path, &schema(), depth + 1);
                if let Some((name, _)) = self.works.get_mut(before).filter(|(name, _)| *name == path)
                    && (field.required)()
                {
                    name.push_str(" (required)");
                }
            }
            (status, _) => self.other.push((status, path)),
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        if !self.works.is_empty() {
            text.push_str("| field | accepts |\n| --- | --- |\n");
        }
        for (path, accepts) in &self.works {
            let _ = writeln!(text, "| {} | {} |", code(path), accepts.replace('|', "\\|"));
        }
        for (status, title) in [
            (Status::Later, "Ignored"),
            (Status::Refused, "Refused"),
            (Status::Inert, "No effect"),
            (Status::Removed, "No effect any more"),
        ] {
            let paths: Vec<_> = self.other.iter().filter(|(s, _)| *s == status).map(|(_, path)| code(path)).collect();
            if !paths.is_empty() {
                let gap = if text.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}{title}: {}.", paths.join(", "));
            }
        }
        if text.is_empty() { "Only the object's metadata is read.\n".to_owned() } else { text }
    }
}

fn code(path: &str) -> String {
    match path.strip_suffix(" (required)") {
        Some(path) => format!("`{path}` (required)"),
        None => format!("`{path}`"),
    }
}
