//! The pages with the metrics of the workload's programs.

use serde::Deserialize;

/// The pages with the programs' metrics: the Pod's annotations `prometheus.io/…` and `prometheus.istio.io/scrape-targets` as Istio's
/// injector passes them on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProgramMetrics {
    #[serde(default)]
    scrape: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    path: String,
    /// In place of `port` and `path`.
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Target {
    port: String,
    #[serde(default)]
    path: String,
}

/// A page with metrics on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPage {
    /// Its port.
    pub port: u16,
    /// Its path.
    pub path: String,
}

impl ProgramMetrics {
    /// The pages in their order, or why one cannot be used; empty if no program is to be scraped. `own` are the sidecar's ports, whose
    /// pages are not for everybody who may scrape metrics.
    pub fn pages(&self, own: &[u16]) -> Vec<Result<ProgramPage, String>> {
        match (self.scrape.as_str(), &*self.targets) {
            ("true", []) => vec![ProgramPage::read(&self.port, &self.path, own)],
            ("true" | "", targets) => {
                targets.iter().map(|target| ProgramPage::read(&target.port, &target.path, own)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl ProgramPage {
    fn read(port: &str, path: &str, own: &[u16]) -> Result<Self, String> {
        let port = match port {
            "" => 80,
            text => text.parse().ok().filter(|port| *port != 0).ok_or_else(|| format!("`{text}` is no port"))?,
        };
        if own.contains(&port) {
            return Err(format!("{port} is a port of the sidecar, not of the program"));
        }
        let path = if path.is_empty() { "/metrics" } else { path };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        http::Uri::try_from(&path).map_err(|error| format!("`{path}` is no path: {error}"))?;
        Ok(Self { port, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_name_the_pages() {
        let check = |json: &str, expected: &[Result<(u16, &str), &str>]| {
            let found: ProgramMetrics = serde_json::from_str(json).unwrap();
            let page = |(port, path): (u16, &str)| ProgramPage { port, path: path.to_owned() };
            let expected: Vec<_> = expected.iter().map(|one| one.map(page).map_err(str::to_owned)).collect();
            assert_eq!(found.pages(&[15000, 15020]), expected, "{json}");
        };
        check("{}", &[]);
        check(r#"{"scrape":"false","port":"8080"}"#, &[]);
        check(r#"{"scrape":"true"}"#, &[Ok((80, "/metrics"))]);
        check(r#"{"scrape":"true","port":"8080","path":"stats?x=y"}"#, &[Ok((8080, "/stats?x=y"))]);
        check(r#"{"scrape":"true","port":"http"}"#, &[Err("`http` is no port")]);
        check(r#"{"scrape":"true","port":"0"}"#, &[Err("`0` is no port")]);
        let own = "15000 is a port of the sidecar, not of the program";
        check(r#"{"scrape":"true","port":"15000","path":"/config_dump"}"#, &[Err(own)]);
        check(r#"{"scrape":"true","port":"15020"}"#, &[Err("15020 is a port of the sidecar, not of the program")]);
        check(r#"{"scrape":"false","port":"15000"}"#, &[]);
        check(r#"{"scrape":"true","path":"/a b"}"#, &[Err("`/a b` is no path: invalid uri character")]);
        let targets = r#""targets":[{"port":"9100","path":"/a"},{"port":"15000"},{"port":"8080"}]"#;
        let expected = [Ok((9100, "/a")), Err(own), Ok((8080, "/metrics"))];
        check(&format!(r#"{{{targets}}}"#), &expected);
        check(&format!(r#"{{"scrape":"true","port":"7","path":"/x",{targets}}}"#), &expected);
        check(&format!(r#"{{"scrape":"false",{targets}}}"#), &[]);
    }
}
