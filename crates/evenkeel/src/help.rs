//! The overview of `evenkeel --help`: commands grouped by purpose.

use std::fmt::Write as _;

use clap::Command;

/// The groups, in order.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Run a mesh on this machine", &["up", "apply", "delete", "get", "reset", "exec", "logs", "restart"]),
    ("Ask before it runs", &["explain", "plan", "effective", "describe", "prove", "authz", "analyze", "validate"]),
    (
        "Inspect it",
        &[
            "dashboard",
            "proxy-status",
            "proxy-config",
            "why",
            "tap",
            "top",
            "profile",
            "mtls",
            "ca",
            "history",
            "bug-report",
        ],
    ),
    (
        "Install it into a cluster",
        &[
            "migrate",
            "install",
            "upgrade",
            "uninstall",
            "check",
            "tag",
            "workload",
            "create-remote-secret",
            "remote-clusters",
            "crds",
        ],
    ),
    ("Put it into Pods", &["inject", "check-inject", "injector", "istio-iptables", "cni", "cni-node"]),
    ("Run its parts separately", &["control-plane", "agent", "proxy"]),
    ("Put it under load", &["load", "echo", "bench"]),
    ("Other", &["completion", "version", "help"]),
];

/// Returns the command with its subcommands shown in groups.
pub fn in_groups(mut command: Command) -> Command {
    command.build();
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut groups = String::new();
    for (group, names) in GROUPS {
        _ = writeln!(groups, "{header}{group}:{header:#}");
        for sub in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            _ = writeln!(groups, "  {literal}{:width$}{literal:#}  {about}", sub.get_name());
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn every_command_is_in_one_group_and_those_for_a_mesh_come_first() {
        let mut command = in_groups(Cli::command());
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut commands: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        commands.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(commands, grouped);
        let help = command.render_long_help().to_string();
        let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{help}"));
        let wanted = ["Usage: evenkeel", "\n  up ", "\n  proxy-status ", "\n  control-plane ", "Options:\n"];
        let places = wanted.map(place);
        assert!(places.is_sorted(), "{help}");
    }
}
