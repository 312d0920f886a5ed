//! Flags with one dash, as Go's programs have them: of the commands that stand for such a program.

use std::ffi::OsString;

use clap::Command;

/// The commands whose flags are Fortio's.
const COMMANDS: [&str; 2] = ["load", "echo"];

/// The arguments as clap reads them: `-qps` of such a command becomes `--qps`.
pub fn arguments(command: &Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.get(1).and_then(|name| name.to_str()).filter(|name| COMMANDS.contains(name));
    if let Some(subcommand) = name.and_then(|name| command.find_subcommand(name)) {
        let rest = arguments.split_off(2);
        arguments.extend(evenkeel_loadtest::flags::with_two_dashes(subcommand, rest));
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn only_fortios_flags_have_one_dash() {
        let check = |line: &str, expected: &str| {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(arguments(&Cli::command(), words(line)), words(expected));
        };
        check("evenkeel load -qps 5 -c 1 http://a", "evenkeel load --qps 5 -c 1 http://a");
        check("evenkeel explain -qps", "evenkeel explain -qps");
    }
}
