//! `evenkeel proxy-config log`: the levels of a proxy's log, while it runs.

use std::io::Write;

use super::target::Target;

/// Shows the levels, or sets them.
#[derive(Debug, clap::Args)]
pub struct Log {
    #[command(flatten)]
    target: Target,

    /// The level to set: trace, debug, info, warning, error, critical, off. A stock Envoy also takes LOGGER:LEVEL, several of
    /// them with commas between.
    #[arg(long, value_name = "LEVEL")]
    level: Option<String>,

    /// Set the level that a proxy starts with: warning.
    #[arg(short, long, conflicts_with = "level")]
    reset: bool,
}

/// The level of Istio's proxies.
const DEFAULT: &str = "warning";

/// Prints the levels after a change, if one is asked for.
pub fn run(log: &Log, out: &mut dyn Write) -> anyhow::Result<()> {
    let level = if log.reset { Some(DEFAULT) } else { log.level.as_deref() };
    out.write_all(&log.target.post(&page(level)?)?)?;
    Ok(())
}

fn page(level: Option<&str>) -> anyhow::Result<String> {
    let Some(level) = level else { return Ok("/logging".to_owned()) };
    let is_plain = level.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":,_-".contains(&byte));
    anyhow::ensure!(is_plain && !level.is_empty(), "`{}` is not a level", level.escape_debug());
    // By name, Envoy has the parameter `paths`.
    let parameter = if level.contains(':') { "paths" } else { "level" };
    Ok(format!("/logging?{parameter}={level}"))
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn levels_become_the_parameters_of_the_page() {
        let check = |level: Option<&str>, expected: Option<&str>| {
            assert_eq!(page(level).ok().as_deref(), expected, "{level:?}");
        };
        check(None, Some("/logging"));
        check(Some("debug"), Some("/logging?level=debug"));
        check(Some("http:debug,router:info"), Some("/logging?paths=http:debug,router:info"));
        check(Some("debug&x=1"), None);
        check(Some(""), None);
    }
}
