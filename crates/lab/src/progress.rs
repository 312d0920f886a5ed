//! What is shown on a terminal while a scenario runs: one line, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the line is drawn anew while nothing happens.
const TICK: Duration = Duration::from_millis(120);

/// A progress line; nothing at all where standard error is not a terminal.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For a scenario of this name.
    pub fn new(scenario: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        bar.set_prefix(scenario.to_owned());
        let progress = Self { bar };
        // Before the first tick, which would draw the library's own line.
        progress.begin("starting", 0);
        progress.bar.enable_steady_tick(TICK);
        progress
    }

    /// A part begins that has so many steps; 0: it is not known how many.
    pub fn begin(&self, what: &str, steps: u64) {
        let template = match steps {
            0 => "{prefix:.bold} {spinner} {msg}",
            _ => "{prefix:.bold} {msg:24} {wide_bar:.cyan/dim} {pos}/{len} {elapsed}",
        };
        // The templates are constant; one that could not be read would show the default line.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("━╸─"));
        }
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    /// So many of its steps are done.
    pub fn at(&self, step: u64) {
        self.bar.set_position(step);
    }

    /// Takes the line away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
