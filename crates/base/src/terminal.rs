//! The terminal: how wide it is, and the meaning of SIGHUP: it was closed, or a user asks the process to reload something.

use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;

/// Remembers whether the process was started from a terminal, and so should end with it.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    was_there: bool,
}

impl Terminal {
    /// Checks at the start of the process.
    pub fn at_start() -> Self {
        Self { was_there: io::stdin().is_terminal() }
    }

    /// Whether the process had a terminal that has been closed since: then it should end. A process that was started
    /// without one (by a supervisor, or with `nohup`) goes on.
    pub fn is_gone(self) -> bool {
        // A closed terminal is not a terminal any more.
        self.was_there && !io::stdin().is_terminal()
    }
}

/// The columns of the terminal on standard output; `None` if there is no terminal, or it does not say.
pub fn columns() -> Option<usize> {
    let columns = tcgetwinsize(io::stdout()).map(|size| size.ws_col).ok();
    columns.filter(|columns| *columns > 0).map(usize::from)
}
