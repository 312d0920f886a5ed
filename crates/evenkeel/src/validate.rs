//! `evenkeel validate`: reports what the control plane would report about files, without running anything.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_analyze::{Finding, report};
use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources, Span};
use evenkeel_control::source::files::{self, Files};
use evenkeel_model::request_authentication::of_files_alone;
use evenkeel_model::{AddressBook, MeshConfig};

use crate::compiled;
use crate::formats::Output;

/// Reads the files, prints all findings, and returns 1 if one of them is an error, or if `strict` a warning.
///
/// Single files are read each on its own, and then compiled together as proxies would compile them, as a directory is. What
/// else is said about objects as a whole, such as that a reference leads nowhere, is said of directories only: files that
/// are not given may have what is missing.
pub fn run(paths: &[PathBuf], options: Options, output: Output, out: &mut dyn Write) -> io::Result<u8> {
    let Options { strict, mesh } = options;
    let mut read = Validation { mesh, ..Validation::default() };
    for path in paths {
        if path.is_dir() { read.directory(path) } else { read.file(path) }
    }
    read.files_together();
    read.diagnostics.sort();
    let colour = io::stdout().is_terminal();
    if output == Output::Json {
        let findings: Vec<Finding> = read.diagnostics.iter().cloned().map(Finding::unchanged).collect();
        writeln!(out, "{:#}", report::json(&findings))?;
    }
    let (infos, others) = read.diagnostics.split_infos();
    let errors = others.count(Severity::Error);
    let warnings = others.count(Severity::Warning);
    let status = u8::from(errors > 0 || (strict && warnings > 0));
    if output == Output::Json {
        return Ok(status);
    }
    out.write_all(others.render(&read.sources, colour).as_bytes())?;
    out.write_all(infos.in_short().as_bytes())?;
    let (errors_text, warnings_text) = (counted(errors, "error"), counted(warnings, "warning"));
    writeln!(out, "{}: {errors_text}, {warnings_text}", counted(read.objects, "object"))?;
    Ok(status)
}

/// How strictly files are checked, and for which mesh.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Warnings count as errors.
    pub strict: bool,
    /// The control plane's options.
    pub mesh: MeshConfig,
}

#[derive(Default)]
struct Validation {
    mesh: MeshConfig,
    objects: usize,
    /// Those of single files.
    of_files: Vec<Object>,
    diagnostics: Diagnostics,
    sources: Sources,
}

impl Validation {
    fn file(&mut self, path: &Path) {
        let (name, text): (Arc<str>, _) = if path == Path::new("-") {
            ("standard input".into(), files::read_all(io::stdin()))
        } else {
            (path.to_string_lossy().into(), files::read_text(path))
        };
        match text {
            Ok(text) => {
                let text: Arc<str> = text.into();
                let (objects, diagnostics) = evenkeel_api::load(&[(name.clone(), text.clone())]);
                self.sources.insert(name, text);
                self.take(&objects, diagnostics);
                self.of_files.extend(objects);
            }
            Err(error) => self.diagnostics.push(evenkeel_api::unreadable(&name, error)),
        }
    }

    /// Reports what proxies would refuse of single files, and objects that cannot stand beside each other.
    fn files_together(&mut self) {
        if self.of_files.is_empty() {
            return;
        }
        let (_, together) = evenkeel_model::build(&self.of_files, &self.mesh, &mut AddressBook::default());
        self.diagnostics.extend(of_files_alone(together).into_iter().filter(|found| found.severity == Severity::Error));
        self.diagnostics.extend(compiled::refusals_in(&self.of_files, &self.mesh));
    }

    fn directory(&mut self, path: &Path) {
        let mut files = Files::new(vec![path.to_path_buf()]);
        files.refresh(SystemTime::now());
        if files.texts().next().is_none() && files.diagnostics().is_empty() {
            let message = "there is nothing to check in this directory";
            let finding = Diagnostic::warning("no-files", Span::whole_file(path.to_string_lossy()), message);
            self.diagnostics.push(finding.with_help("only files whose names end in .yaml, .yml or .json are read"));
        }
        let objects = files.objects();
        self.take(&objects, files.diagnostics());
        let (_, together) = evenkeel_model::build(&objects, &self.mesh, &mut AddressBook::default());
        self.diagnostics.extend(of_files_alone(together));
        self.diagnostics.extend(compiled::refusals_in(&objects, &self.mesh));
        for (path, _, text) in files.texts() {
            self.sources.insert(&*path.to_string_lossy(), text);
        }
    }

    fn take(&mut self, objects: &[Object], diagnostics: Diagnostics) {
        self.objects += objects.iter().filter(|object| object.refused.is_none()).count();
        self.diagnostics.extend(diagnostics);
    }
}

/// A number with its noun.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: NAME, namespace: shop}\nspec: {ports: [{name: http, port: 80}]}\n";

    fn strict() -> Options {
        Options { strict: true, ..Options::default() }
    }

    /// A RequestAuthentication closes what it would judge, or is left out.
    #[test]
    fn the_mesh_may_leave_out_what_is_refused() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let text = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\n\
            spec: {jwtRulez: []}\n";
        fs::write(folder.path().join("a.yaml"), text)?;
        let said = |leave_out_refused| {
            let mut out = Vec::new();
            let mesh = MeshConfig { leave_out_refused, ..MeshConfig::default() };
            let options = Options { mesh, ..Options::default() };
            run(&[folder.path().to_path_buf()], options, Output::Text, &mut out).expect("written");
            String::from_utf8_lossy(&out).into_owned()
        };
        let (closed, open) = (said(false), said(true));
        assert!(closed.contains("its workloads refuse every request"), "{closed}");
        assert!(!open.contains("its workloads refuse") && open.contains("jwtRulez"), "{open}");
        Ok(())
    }

    /// Proxies support these fields, and gRPC programs do not.
    #[test]
    fn tokens_of_grpc_programs_are_warned_of() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: shop}\nspec:\n  selector: {matchLabels: {app: a}}\n  \
            template:\n    metadata: {labels: {app: a}, annotations: {inject.istio.io/templates: grpc-agent}}\n    \
            spec: {containers: [{name: a}]}\n---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
            metadata: {name: jwt, namespace: shop}\nspec: {jwtRules: [{issuer: me, jwksUri: 'http://a.test/keys'}]}\n";
        fs::write(folder.path().join("a.yaml"), text)?;
        let (_, out) = checked(&[folder.path().to_path_buf()]);
        // Whether keys can be fetched is not known without a control plane.
        assert!(!out.contains("jwks-not-fetched"), "{out}");
        for part in [
            "a.yaml:12:",
            "grpc-without-tokens",
            "RequestAuthentication shop/jwt is for Deployment shop/a",
            "a.yaml:7:",
        ] {
            assert!(out.contains(part), "{part:?} is not in\n{out}");
        }
        Ok(())
    }

    fn checked(paths: &[PathBuf]) -> (u8, String) {
        let mut out = Vec::new();
        let status = run(paths, Options::default(), Output::Text, &mut out).expect("written");
        (status, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn all_files_and_directories_are_checked_and_each_finding_shows_its_line() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| fs::write(path(name), text);
        for directory in ["one", "two", "none"] {
            fs::create_dir(path(directory))?;
        }
        write("one/a.yaml", &SERVICE.replace("NAME", "a"))?;
        assert_eq!(checked(&[path("one")]), (0, "1 object: 0 errors, 0 warnings\n".to_owned()));

        write("two/b.yaml", &SERVICE.replace("NAME", "b").replace("ports", "prots"))?;
        write("c.txt", &SERVICE.replace("NAME", "c").replace("80", "eighty"))?;
        fs::write(path("d.yaml"), [0xff, 0xfe, 0])?;
        // Those of both directories, and of single files, show their lines.
        let (status, out) = checked(&[path("one"), path("two"), path("c.txt"), path("d.yaml"), path("absent.yaml")]);
        assert_eq!(status, 1, "{out}");
        let parts =
            ["two/b.yaml:4:8", "spec: {prots: ", "c.txt:4:", "port: eighty", "is not UTF-8", "absent.yaml", "5 errors"];
        parts.iter().for_each(|part| assert!(out.contains(part), "{part:?} is not in\n{out}"));
        // A directory with nothing in it may be the wrong one.
        let (status, out) = checked(&[path("none")]);
        assert!(status == 0 && out.contains("no-files") && out.contains("1 warning"), "{out}");
        assert_eq!(run(&[path("none")], strict(), Output::Text, &mut io::sink())?, 1, "warnings count");
        assert_eq!(run(&[path("one")], strict(), Output::Text, &mut io::sink())?, 0);
        Ok(())
    }

    /// The same text has the same errors, given as a file and as a directory.
    #[test]
    fn files_are_compiled_as_directories_are() -> io::Result<()> {
        let text = |name: &str, hosts: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{selector: {{a: b}}, \
                 servers: [{{port: {{number: 443, name: tls, protocol: {hosts}}}, hosts: ['*']}}]}}\n"
            )
        };
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.yaml"), text("a", "TCP"))?;
        fs::write(path("b.yaml"), text("b", "HTTP"))?;
        let errors =
            |(status, out): (u8, String)| (status, out.lines().filter(|line| line.starts_with("error")).count());
        assert_eq!(errors(checked(&[folder.path().to_path_buf()])), (1, 1));
        assert_eq!(errors(checked(&[path("a.yaml"), path("b.yaml")])), (1, 1));
        assert_eq!(errors(checked(&[path("a.yaml")])), (0, 0));
        // Proxies refuse what names files that cannot be read.
        let filter = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\n\
            spec: {host: a.test, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: /nowhere/ca.pem}}}\n---\n\
            apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, namespace: shop}\n\
            spec: {hosts: [a.test], resolution: DNS, ports: [{number: 443, name: http, protocol: HTTP}]}\n---\n\
            apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: shop}\nspec: {selector: {matchLabels: {app: a}}, \
            template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a}]}}}\n";
        fs::create_dir(path("one"))?;
        fs::write(path("one/c.yaml"), filter)?;
        let (of_folder, of_file) = (checked(&[path("one")]).1, checked(&[path("one/c.yaml")]).1);
        assert!(of_folder.contains("refused-by-proxy"), "{of_folder}");
        assert_eq!(of_file, of_folder);
        Ok(())
    }

    #[test]
    fn what_is_good_to_know_takes_a_line() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let pods = ["a", "b", "c"].map(|name| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: x, image: y, tty: true}}]}}\n---\n"
            )
        });
        fs::write(folder.path().join("pods.yaml"), pods.concat())?;
        let (status, out) = checked(&[folder.path().join("pods.yaml")]);
        let lines: Vec<&str> = out.lines().filter(|line| line.contains("no-effect")).collect();
        assert!(status == 0 && lines.len() == 1, "{out}");
        assert!(lines[0].starts_with("info[no-effect]: `spec.containers[0].tty`:"), "{out}");
        assert!(lines[0].contains("pods.yaml:4:") && lines[0].ends_with(" and 2 more places)"), "{out}");
        Ok(())
    }
}
