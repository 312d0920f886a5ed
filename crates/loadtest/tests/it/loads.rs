//! `evenkeel load` inside this process.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser};
use evenkeel_loadtest::{LoadArguments, flags};
use serde_json::Value;

/// The command line of `evenkeel load`.
#[derive(Debug, Parser)]
pub struct Cli {
    /// Its arguments.
    #[command(flatten)]
    pub load: LoadArguments,
}

/// What a run has left behind.
pub struct Finished {
    /// The exit status, or why there was no run.
    pub status: Result<u8, String>,
    /// Standard error.
    pub text: String,
    /// Standard output.
    pub standard: String,
}

impl Finished {
    /// The result as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.standard).unwrap_or_else(|error| panic!("{error}: {:?}\n{}", self.status, self.text))
    }

    /// Checks that this line is in the text.
    pub fn has_line(&self, expected: &str) {
        assert!(self.text.lines().any(|line| line == expected), "no {expected:?} in\n{}", self.text);
    }
}

/// Runs the command line, with spaces between words.
pub fn load(line: &str) -> Finished {
    let words = line.split_whitespace().map(OsString::from).collect();
    let words = flags::with_two_dashes(&Cli::command(), words);
    // A wrong flag fails the test; clap's own end of the process would leave servers behind.
    let cli = Cli::try_parse_from([OsString::from("load")].into_iter().chain(words));
    let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
    let (mut text, mut standard) = (Vec::new(), Vec::new());
    let status = evenkeel_loadtest::run(&cli.load, &mut text, &mut standard).map_err(|error| error.to_string());
    let utf8 = |bytes| String::from_utf8(bytes).expect("text");
    Finished { status, text: utf8(text), standard: utf8(standard) }
}
