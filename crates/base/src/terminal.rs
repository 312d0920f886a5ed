//! What SIGHUP means: that the terminal was closed, or that somebody would have the process look at something anew.

use std::io::{self, IsTerminal};

/// Whether a process has a terminal to end with.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    was_there: bool,
}

impl Terminal {
    /// As the process begins.
    pub fn at_start() -> Self {
        Self { was_there: io::stdin().is_terminal() }
    }

    /// Whether there was one, and it has been closed: a process in its foreground is to end. One that was started without (by
    /// a supervisor, or with `nohup`) has nothing to end for.
    pub fn is_gone(self) -> bool {
        // A closed terminal answers no question any more.
        self.was_there && !io::stdin().is_terminal()
    }
}
