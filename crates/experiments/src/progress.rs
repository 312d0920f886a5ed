//! Progress on standard error: a bar with the time left in a terminal, and a line for each round elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress over the samples of an experiment.
pub struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    begin: Instant,
    done: u64,
    total: u64,
}

impl Progress {
    /// For so many samples.
    pub fn new(name: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        // The template is a constant. If it were invalid, the default bar would be shown.
        if let Ok(style) = ProgressStyle::with_template("{prefix:.bold} {wide_bar:.cyan/dim} {pos}/{len}, {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_prefix(name.to_owned());
        Self { bar, is_terminal: std::io::stderr().is_terminal(), begin: Instant::now(), done: 0, total }
    }

    /// A line about what happens.
    pub fn say(&self, line: &str) {
        if self.is_terminal {
            self.bar.println(line);
        } else {
            // Nothing can be done if standard error is closed.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// One sample more.
    pub fn advance(&mut self) {
        self.done += 1;
        self.bar.set_message(remaining(self.begin.elapsed(), self.done, self.total));
        self.bar.set_position(self.done);
    }

    /// The estimate of the time left.
    pub fn remaining(&self) -> String {
        remaining(self.begin.elapsed(), self.done, self.total)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn remaining(elapsed: Duration, done: u64, total: u64) -> String {
    if done == 0 {
        return "time left unknown".to_owned();
    }
    let seconds = elapsed.as_secs_f64() / done as f64 * total.saturating_sub(done) as f64;
    if seconds < 90.0 { format!("about {seconds:.0} s left") } else { format!("about {:.0} min left", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_time_so_far() {
        let check = |elapsed: u64, done: u64, total: u64, expected: &str| {
            assert_eq!(remaining(Duration::from_secs(elapsed), done, total), expected);
        };
        check(3, 0, 10, "time left unknown");
        check(10, 5, 10, "about 10 s left");
        check(60, 10, 100, "about 9 min left");
        check(10, 10, 10, "about 0 s left");
    }
}
