//! The location of the workload's own metrics.

use serde::Deserialize;

/// The location of the workload's own metrics: the Pod's annotations `prometheus.io/…` as Istio's injector passes them on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProgramMetrics {
    #[serde(default)]
    scrape: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    path: String,
}

impl ProgramMetrics {
    /// Port and path; `None` if the program is not to be scraped. `own` are the sidecar's ports, whose pages are not for
    /// everybody who may scrape metrics.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub fn place(&self, own: &[u16]) -> Result<Option<(u16, String)>, String> {
        if self.scrape != "true" {
            return Ok(None);
        }
        let port = match self.port.as_str() {
            "" => 80,
            text => text.parse().ok().filter(|port| *port != 0).ok_or_else(|| format!("`{text}` is no port"))?,
        };
        if own.contains(&port) {
            return Err(format!("{port} is a port of the sidecar, not of the program"));
        }
        let path = if self.path.is_empty() { "/metrics" } else { &self.path };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        http::Uri::try_from(&path).map_err(|error| format!("`{path}` is no path: {error}"))?;
        Ok(Some((port, path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_name_the_place() {
        let check = |json: &str, expected: Result<Option<(u16, &str)>, &str>| {
            let found: ProgramMetrics = serde_json::from_str(json).unwrap();
            let expected = expected.map(|place| place.map(|(port, path)| (port, path.to_owned())));
            assert_eq!(found.place(&[15000, 15020]), expected.map_err(str::to_owned), "{json}");
        };
        check("{}", Ok(None));
        check(r#"{"scrape":"false","port":"8080"}"#, Ok(None));
        check(r#"{"scrape":"true"}"#, Ok(Some((80, "/metrics"))));
        check(r#"{"scrape":"true","port":"8080","path":"stats?x=y"}"#, Ok(Some((8080, "/stats?x=y"))));
        check(r#"{"scrape":"true","port":"http"}"#, Err("`http` is no port"));
        check(r#"{"scrape":"true","port":"0"}"#, Err("`0` is no port"));
        check(
            r#"{"scrape":"true","port":"15000","path":"/config_dump"}"#,
            Err("15000 is a port of the sidecar, not of the program"),
        );
        check(r#"{"scrape":"true","port":"15020"}"#, Err("15020 is a port of the sidecar, not of the program"));
        check(r#"{"scrape":"false","port":"15000"}"#, Ok(None));
        check(r#"{"scrape":"true","path":"/a b"}"#, Err("`/a b` is no path: invalid uri character"));
    }
}
