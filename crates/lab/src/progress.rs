//! The progress line on standard error while a scenario runs in a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the line is redrawn while nothing happens.
const TICK: Duration = Duration::from_millis(120);

/// A progress line. It prints nothing if standard error is not a terminal.
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
        // This comes before the first tick, which would otherwise draw the library's default line.
        progress.begin("starting", 0);
        progress.bar.enable_steady_tick(TICK);
        progress
    }

    /// Begins a part with this number of steps; 0 if the number is unknown.
    pub fn begin(&self, what: &str, steps: u64) {
        let template = match steps {
            0 => "{prefix:.bold} {spinner} {msg}",
            _ => "{prefix:.bold} {msg:24} {wide_bar:.cyan/dim} {pos}/{len} {elapsed}",
        };
        // The templates are constants. If one were invalid, the default line would be shown.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("━╸─"));
        }
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    /// Sets the number of finished steps.
    pub fn at(&self, step: u64) {
        self.bar.set_position(step);
    }

    /// Removes the line.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
