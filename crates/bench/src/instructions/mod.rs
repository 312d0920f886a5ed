//! Instructions per operation, counted by Valgrind's callgrind. The counts are the same on a busy machine as on an idle one,
//! so that a test can check them. Valgrind presents the same processor everywhere, so they do not depend on the machine
//! either.
//!
//! The CPU-bound parts of a request's processing are called from [`cases`], one function each; callgrind's inclusive cost of
//! that function counts. The whole hop is a proxy under callgrind: the difference between what it executed for many requests
//! and for few, divided by the difference of their numbers. The pair is two of them.

mod callgrind;
pub mod cases;
mod changes;
mod counted;
mod hop;
mod matching;
mod pair;
mod policies;
mod series;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::first_line;

/// Growth that fails, in parts of the recorded count.
const TOLERANCE: f64 = 0.03;
/// Tolerance for a pair, where the number of reads in which a response comes from one proxy to the other depends on time, and
/// two runs differ by up to 7 %; and for registering a scope, which allocates: builds of the same code in two directories
/// differ by 6 %.
const WIDE_TOLERANCE: f64 = 0.1;
/// Tolerance when the counts were recorded with another compiler, which generates other code.
const OTHER_COMPILER_TOLERANCE: f64 = 0.15;

/// Instructions by operation, sorted by name.
pub type Counts = BTreeMap<String, u64>;

/// Counts all there is to count, on as many cores as that needs.
pub fn count() -> Result<Counts> {
    let folder = tempfile::Builder::new().prefix("evenkeel-counts.").tempdir()?;
    std::thread::scope(|scope| {
        let parts = scope.spawn(|| cases::count(folder.path()));
        let mut counts = hop::count(folder.path())?;
        counts.append(&mut pair::count(folder.path())?);
        counts.append(&mut parts.join().unwrap_or_else(|_| bail!("counting panicked"))?);
        Ok(counts)
    })
}

/// The recorded counts, as they stand in the repository.
pub struct Recorded {
    compiler: String,
    counts: Counts,
}

impl Recorded {
    /// Counts of this build.
    pub fn new(counts: Counts) -> Result<Self> {
        Ok(Self { compiler: compiler()?, counts })
    }

    /// Reads a file that [`Recorded::text`] made.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        let (mut compiler, mut counts) = (String::new(), Counts::new());
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.split_once('\t') {
                Some(("compiler", value)) => value.clone_into(&mut compiler),
                Some((name, count)) => {
                    let count = count.replace('_', "").parse();
                    counts.insert(name.to_owned(), count.with_context(|| format!("{}: {line}", path.display()))?);
                }
                None => bail!("{}: expected a name, a tab and a number: {line:?}", path.display()),
            }
        }
        Ok(Self { compiler, counts })
    }

    /// The file.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# Instructions per operation, in the build that the tests run (see docs/performance.md).\n\
             # BLESS=1 cargo test -p evenkeel-bench --test it instructions\n\ncompiler\t{}\n",
            self.compiler
        );
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name}\t{count}");
        }
        text
    }

    /// Returns complaints about `now`, one line each: counts that grew by more than the tolerance, missing or new ones, and
    /// counts that shrank so much that the record would hide the next growth.
    pub fn complaints(&self, now: &Self) -> Vec<String> {
        let same = self.compiler == now.compiler;
        let mut complaints = changes::complaints(&now.counts);
        complaints.append(&mut series::complaints(&now.counts));
        complaints.append(&mut matching::complaints(&now.counts));
        complaints.append(&mut policies::complaints(&now.counts));
        for (name, &count) in &now.counts {
            let Some(&before) = self.counts.get(name) else {
                complaints.push(format!("{name}: {count}, not recorded yet"));
                continue;
            };
            let is_wide =
                name.starts_with(pair::PREFIX) || [series::FIRST_SCOPE, series::LATER_SCOPE].contains(&&**name);
            let tolerance = match is_wide {
                _ if !same => OTHER_COMPILER_TOLERANCE,
                true => WIDE_TOLERANCE,
                false => TOLERANCE,
            };
            let change = count as f64 / before as f64 - 1.0;
            if count.abs_diff(before) as f64 > before as f64 * tolerance {
                let word = if change > 0.0 { "more" } else { "fewer" };
                complaints.push(format!("{name}: {count}, {:.1} % {word} than {before}", change.abs() * 100.0));
            }
        }
        let missing = self.counts.keys().filter(|name| !now.counts.contains_key(*name));
        complaints.extend(missing.map(|name| format!("{name}: recorded, but not counted any more")));
        complaints
    }
}

fn compiler() -> Result<String> {
    first_line(Path::new("rustc"), &["--version"])
}

#[cfg(test)]
mod tests {
    use super::{Counts, Recorded};

    fn recorded(compiler: &str, counts: &[(&str, u64)]) -> Recorded {
        let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Counts>();
        Recorded { compiler: compiler.to_owned(), counts }
    }

    #[test]
    fn growth_over_three_per_cent_is_named() {
        let before = recorded("a", &[("parse", 1000), ("gone", 1)]);
        let check = |now: &Recorded, expected: &[&str]| assert_eq!(before.complaints(now), expected);
        check(&recorded("a", &[("parse", 1030), ("gone", 1)]), &[]);
        check(&recorded("a", &[("parse", 1031), ("gone", 1)]), &["parse: 1031, 3.1 % more than 1000"]);
        check(&recorded("a", &[("parse", 900), ("gone", 1)]), &["parse: 900, 10.0 % fewer than 1000"]);
        check(&recorded("b", &[("parse", 1149), ("gone", 1)]), &[]);
        let pair = |count| recorded("a", &[("pair: a proxy", count)]);
        assert!(pair(1000).complaints(&pair(1100)).is_empty());
        assert_eq!(pair(1000).complaints(&pair(1101)), ["pair: a proxy: 1101, 10.1 % more than 1000"]);
        check(
            &recorded("a", &[("parse", 1000), ("new", 7)]),
            &["new: 7, not recorded yet", "gone: recorded, but not counted any more"],
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        let counts = recorded("rustc 1", &[("h1 parse", 1234)]);
        std::fs::write(&path, counts.text()).unwrap();
        let again = Recorded::read(&path).unwrap();
        assert_eq!((again.compiler.as_str(), again.counts), ("rustc 1", counts.counts));
        std::fs::write(&path, "h1 parse\tmany\n").unwrap();
        assert!(Recorded::read(&path).is_err());
    }
}
