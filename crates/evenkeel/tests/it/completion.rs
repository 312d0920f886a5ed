//! Shells complete commands, flags and values by the script that `evenkeel completion` prints.

use std::io::Write as _;
use std::process::{Command, Stdio};

fn evenkeel(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What bash offers for these words, of which the last is being written.
fn offered(script: &str, words: &[&str]) -> Vec<String> {
    let last = words.len() - 1;
    let (current, before) = (words[last], words[last - 1]);
    let program = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={last}; _evenkeel evenkeel {current:?} {before:?}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ")
    );
    // By standard input: the script is too long for an argument.
    let mut bash = Command::new("bash");
    let mut bash = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash runs");
    let mut input = bash.stdin.take().expect("piped");
    input.write_all(program.as_bytes()).expect("bash reads it");
    drop(input);
    let output = bash.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = evenkeel(&["completion", "bash"]);
    let check = |words: &[&str], expected: &[&str]| assert_eq!(offered(&script, words), expected, "{words:?}");
    check(&["evenkeel", "expl"], &["explain"]);
    check(&["evenkeel", "explain", "--from-o"], &["--from-outside"]);
    check(&["evenkeel", "explain", "-o", "j"], &["json"]);
    check(&["evenkeel", "analyze", "-o", "sar"], &["sarif"]);
    check(&["evenkeel", "apply", "--wa"], &["--wait"]);
}

#[test]
fn every_shell_gets_a_script_with_every_command() {
    let help = evenkeel(&["help"]);
    let is_command = |line: &&str| line.starts_with("  ") && !line.starts_with("   ") && !line.starts_with("  -");
    let commands: Vec<&str> =
        help.lines().filter(is_command).filter_map(|line| line.split_whitespace().next()).collect();
    for known in ["explain", "effective", "analyze", "apply", "plan", "up"] {
        assert!(commands.contains(&known), "{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = evenkeel(&["completion", shell]);
        let missing: Vec<_> = commands.iter().filter(|command| !script.contains(**command)).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
}
