//! The terminal of a command that `evenkeel exec` runs.
//!
//! A command in a container is not to be trusted with the caller's terminal: with a descriptor of it a process reads what
//! the caller types, and as a member of its session it can also type, into the caller's shell (`TIOCSTI`). So the command
//! gets a session of its own, and in place of each stream that is a terminal a pseudo-terminal, whose bytes this process
//! copies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, killpg, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use rustix::process::{getpgrp, ioctl_tiocsctty};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use crate::confine::{Account, close_on_exec};

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// The most chunks that are still shown when the command has ended: a process that it left behind may go on writing.
const MAX_LAST_CHUNKS: usize = 64;
/// Signals that are passed on to the command.
const PASSED_ON: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];

/// The session of a command.
pub(crate) struct Session {
    pty: Option<Pty>,
    signals: SigSet,
    /// The signals that were blocked before.
    before: SigSet,
}

/// A pseudo-terminal.
struct Pty {
    /// This process's end.
    main: OwnedFd,
    /// The command's end; the parent has none once the command runs.
    command: Option<OwnedFd>,
    /// Which of the command's streams it replaces: input, output, errors.
    replaces: [bool; 3],
    /// Whether the caller types into it: the caller's input is a terminal, and this process is not in the background,
    /// where it may neither read nor change that.
    is_typed: bool,
}

/// The caller's terminal in raw mode: it passes each byte on. Dropping this restores the mode.
struct Raw(Termios);

impl Session {
    /// Prepares a session for a command of this user. From here on signals wait for [`Self::follow`].
    ///
    /// # Errors
    /// If there are no pseudo-terminals.
    pub(crate) fn begin(account: Option<Account>) -> io::Result<Self> {
        let pty = Pty::open(account)?;
        let signals: SigSet = PASSED_ON.into_iter().chain([Signal::SIGCHLD, Signal::SIGWINCH]).collect();
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))?;
        Ok(Self { pty, signals, before })
    }

    /// Whether the command has a terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        self.pty.is_some()
    }

    /// The command's side, after the fork.
    pub(crate) fn enter(self) -> io::Result<()> {
        for number in PASSED_ON {
            // A caller in the background may ignore some; the command's are the defaults, as for every program in a container.
            // SAFETY: the default action installs no handler code.
            unsafe { signal(number, SigHandler::SigDfl) }?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None)?;
        setsid()?;
        close_on_exec()?;
        let Some(Pty { command: Some(command), replaces, .. }) = &self.pty else { return Ok(()) };
        ioctl_tiocsctty(command)?;
        let [input, output, errors] = replaces;
        if *input {
            dup2_stdin(command)?;
        }
        if *output {
            dup2_stdout(command)?;
        }
        if *errors {
            dup2_stderr(command)?;
        }
        Ok(())
    }

    /// The caller's side: copies bytes, passes signals on, and waits for the command's end.
    pub(crate) fn follow(mut self, command: Pid) -> io::Result<WaitStatus> {
        let pending = SignalFd::with_flags(&self.signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let outputs = [output.as_fd(), errors.as_fd()];
        let shown = outputs.into_iter().find(|stream| isatty(stream)).unwrap_or(input.as_fd());
        let mut raw = None;
        if let Some(pty) = &mut self.pty {
            pty.command = None;
            raw = pty.is_typed.then(|| Raw::begin(input.as_fd())).transpose()?;
        }
        let mut copied = self.pty.as_ref().map(|pty| Copied::new(pty, input.as_fd(), shown));
        let ended = loop {
            match copied.as_mut() {
                Some(copied) => copied.step(pending.as_fd())?,
                None => drop(poll(&mut [PollFd::new(pending.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)),
            }
            while let Some(came) = pending.read_signal()? {
                match Signal::try_from(i32::try_from(came.ssi_signo).unwrap_or_default())? {
                    Signal::SIGCHLD => {}
                    Signal::SIGWINCH => {
                        if let Some(copied) = &copied {
                            copied.resize();
                        }
                    }
                    // The command may have ended, or not have its session yet.
                    other => drop(killpg(command, other)),
                }
            }
            match waitpid(command, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::StillAlive => {}
                ended => break ended,
            }
        };
        if let Some(copied) = &mut copied {
            copied.show_rest();
        }
        drop(raw);
        Ok(ended)
    }
}

impl Pty {
    /// Opens one like the caller's terminal, if any of the streams is that.
    fn open(account: Option<Account>) -> io::Result<Option<Self>> {
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
        let replaces = streams.map(isatty);
        let Some(terminal) = streams.into_iter().find(|stream| isatty(stream)) else { return Ok(None) };
        let made = openpty(None, None)?;
        for end in [&made.master, &made.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        fcntl(&made.master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        let is_typed = replaces[0] && tcgetpgrp(&input).is_ok_and(|group| group == getpgrp());
        let mut mode = tcgetattr(terminal)?;
        if !is_typed {
            // The caller's terminal stays in its own mode, and ends lines itself.
            mode.output_modes.remove(OutputModes::OPOST);
        }
        tcsetattr(&made.slave, OptionalActions::Now, &mode)?;
        tcsetwinsize(&made.slave, tcgetwinsize(terminal)?)?;
        if let Some(account) = account {
            // Programs open it by its name, too.
            std::os::unix::fs::fchown(&made.slave, Some(account.uid), Some(account.gid))?;
        }
        Ok(Some(Self { main: made.master, command: Some(made.slave), replaces, is_typed }))
    }
}

impl Raw {
    fn begin(terminal: BorrowedFd<'_>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Bytes under way between the caller's terminal and the pseudo-terminal.
struct Copied<'a> {
    main: &'a OwnedFd,
    /// The caller's input, as long as it is a terminal that is open.
    input: Option<BorrowedFd<'a>>,
    shown: BorrowedFd<'a>,
    /// What the caller has typed and the command's terminal has not taken.
    typed: Vec<u8>,
    /// Whether the command's end is open.
    is_open: bool,
}

impl<'a> Copied<'a> {
    fn new(pty: &'a Pty, input: BorrowedFd<'a>, shown: BorrowedFd<'a>) -> Self {
        let input = pty.is_typed.then_some(input);
        Self { main: &pty.main, input, shown, typed: Vec::new(), is_open: true }
    }

    /// Waits until there is something to copy, or a signal, and copies it.
    fn step(&mut self, signals: BorrowedFd<'_>) -> io::Result<()> {
        let mut wanted = if self.is_open { PollFlags::POLLIN } else { PollFlags::empty() };
        wanted.set(PollFlags::POLLOUT, self.is_open && !self.typed.is_empty());
        let input = self.input.filter(|_| self.typed.is_empty());
        let mut waits = vec![PollFd::new(signals, PollFlags::POLLIN)];
        waits.extend(self.is_open.then(|| PollFd::new(self.main.as_fd(), wanted)));
        waits.extend(input.map(|input| PollFd::new(input, PollFlags::POLLIN)));
        match poll(&mut waits, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => return Ok(()),
            polled => polled?,
        };
        let came = |fd: BorrowedFd<'_>| {
            let it = waits.iter().find(|wait| wait.as_fd().as_raw_fd() == fd.as_raw_fd());
            it.is_some_and(|wait| wait.any().unwrap_or_default())
        };
        let (typed, shown) = (input.is_some_and(came), self.is_open && came(self.main.as_fd()));
        if typed {
            self.read_typed();
        }
        self.pass_typed();
        if shown {
            self.show();
        }
        Ok(())
    }

    fn read_typed(&mut self) {
        let Some(input) = self.input else { return };
        let mut chunk = [0; CHUNK_BYTES];
        match nix::unistd::read(input, &mut chunk) {
            Ok(0) | Err(nix::errno::Errno::EIO) => self.input = None,
            Ok(count) => self.typed.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(_) => {}
        }
    }

    fn pass_typed(&mut self) {
        if !self.typed.is_empty() {
            match nix::unistd::write(self.main, &self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Shows a chunk; false if there is none now.
    fn show(&mut self) -> bool {
        let mut chunk = [0; CHUNK_BYTES];
        match nix::unistd::read(self.main, &mut chunk) {
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => false,
            // The last of the command's processes has closed it.
            Ok(0) | Err(_) => {
                self.is_open = false;
                false
            }
            Ok(count) => {
                let mut rest = chunk.get(..count).unwrap_or_default();
                while !rest.is_empty() {
                    match nix::unistd::write(self.shown, rest) {
                        Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                        Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => {}
                        // Nobody looks any more.
                        Err(_) => break,
                    }
                }
                true
            }
        }
    }

    /// Shows what the command has written before its end.
    fn show_rest(&mut self) {
        let _ = (0..MAX_LAST_CHUNKS).take_while(|_| self.is_open && self.show()).count();
    }

    /// Gives the pseudo-terminal the size of the caller's.
    fn resize(&self) {
        let _ = tcgetwinsize(self.shown).and_then(|size| tcsetwinsize(self.main, size));
    }
}
