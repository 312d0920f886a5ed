//! Output formats; the commands without `-o json`, and the reasons; how wide text may be.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use evenkeel_base::terminal;
use evenkeel_explain::Look;

/// Commands whose output is no data of their own, and what programs use instead.
const WITHOUT: [(&[&str], &str); 31] = [
    (&["up"], "it runs until it is interrupted; `proxy-status -o json` tells what runs, --check exits with 0 or 1"),
    (&["inject"], "it prints manifests, for `kubectl apply -f -`"),
    (&["install"], "--dry-run prints the objects; `check -o json` says what works"),
    (&["uninstall"], "it prints what it deletes"),
    (&["bug-report"], "it writes an archive; most pages in it are JSON"),
    (&["workload", "group", "create"], "it prints a manifest, for `kubectl apply -f -`"),
    (&["workload", "entry", "configure"], "it writes files"),
    (&["create-remote-secret"], "it prints a manifest, for `kubectl apply -f -`"),
    (&["crds"], "it prints manifests, for `kubectl apply --server-side -f -`"),
    (&["tag", "set"], "`tag list -o json` lists them"),
    (&["tag", "generate"], "it prints a manifest, for `kubectl apply -f -`"),
    (&["tag", "remove"], "`tag list -o json` lists them"),
    (&["istio-iptables"], "it loads rules into the kernel; --dry-run prints them"),
    (&["cni"], "it answers the container runtime, in JSON"),
    (&["cni-node"], "it is a server; its port has metrics"),
    (&["exec"], "it prints what the command prints"),
    (&["load", "curl"], "it prints the response"),
    (&["load", "compare"], "its exit status is 1 if something differs"),
    (&["load", "report"], "it prints a page of results that are JSON"),
    (&["load", "serve"], "it is a server; /fortio/rest/run responds in JSON"),
    (&["bench", "compare"], "its exit status is 1 if something differs"),
    (&["bench", "report"], "it prints results that are JSON"),
    (&["profile"], "it writes a profile in the format of pprof, which programs read"),
    (&["dashboard"], "it prints an address; the pages below /api there are JSON (docs/dashboard.md)"),
    (&["echo"], "it is a server; /debug shows a request"),
    (&["completion"], "it prints a script"),
    (&["control-plane"], "it is a server; its HTTP port answers in JSON (/debug/proxies)"),
    (&["proxy"], "it is a server; its admin port answers in JSON (/server_info, ?format=json)"),
    (&["agent"], "it is a server; the admin port of its proxy answers in JSON"),
    (&["proxy-config", "log"], "it prints what the proxy answers"),
    (&["proxy-config", "page"], "it prints the page as the proxy sends it; many pages take ?format=json"),
];

/// The columns of the terminal on standard output; without one, text is as wide as it is.
pub fn width() -> usize {
    terminal::columns().unwrap_or(usize::MAX)
}

/// How answers are shown on standard output.
pub fn look() -> Look {
    if io::stdout().is_terminal() { Look { colour: true, width: width() } } else { Look::from(false) }
}

/// Returns why a command has no `-o`, if that is the error in these arguments.
pub fn why_no_output(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let is_output = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) => {
            let is_short = name.starts_with("-o") && !name.starts_with("--");
            is_short || name.split('=').next() == Some("--output")
        }
        _ => false,
    };
    if error.kind() != ErrorKind::UnknownArgument || !is_output {
        return None;
    }
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let (path, reason) = WITHOUT.into_iter().find(|(path, _)| words.starts_with(path))?;
    Some(format!("`evenkeel {}` has no -o: {reason}", path.join(" ")))
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;
    use crate::commands::Cli;

    /// Collects the leaf commands, with the words of each.
    fn leaves<'c>(command: &'c Command, path: &[&'c str], all: &mut Vec<(Vec<&'c str>, &'c Command)>) {
        if !command.has_subcommands() {
            all.push((path.to_vec(), command));
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            leaves(sub, &[path, &[sub.get_name()]].concat(), all);
        }
    }

    #[test]
    fn every_command_prints_json_or_has_a_reason() {
        let cli = Cli::command();
        let mut all = Vec::new();
        leaves(&cli, &[], &mut all);
        for (path, command) in &all {
            let output = command.get_arguments().find(|argument| argument.get_long() == Some("output"));
            let formats = output.map(|argument| argument.get_possible_values()).unwrap_or_default();
            let has_json = formats.iter().any(|format| format.get_name() == "json");
            let is_short = output.is_some_and(|argument| argument.get_short() == Some('o'));
            let reason = WITHOUT.iter().find(|(own, _)| own == path);
            assert!(has_json != reason.is_some(), "{path:?}: -o json: {has_json}, reason: {reason:?}");
            assert!(!has_json || is_short, "{path:?} has --output json without -o");
        }
        assert!(WITHOUT.iter().all(|(own, _)| all.iter().any(|(path, _)| own == path)), "a command is gone");
    }

    #[test]
    fn whoever_asks_for_json_is_told_why_not() {
        let check = |line: &str, expected: Option<&str>| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Cli::command().try_get_matches_from(&arguments).expect_err(line);
            let told = why_no_output(&error, &arguments);
            assert_eq!(told.as_deref(), expected, "{line}: {error}");
        };
        check("evenkeel exec -o json web", Some("`evenkeel exec` has no -o: it prints what the command prints"));
        let up = WITHOUT[0].1;
        check("evenkeel up dir --output=json", Some(&format!("`evenkeel up` has no -o: {up}")));
        check("evenkeel up dir --outputs", None);
        check("evenkeel explain --nonsense", None);
    }
}

/// How to print an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs; docs/explain.md describes the keys.
    Json,
}
