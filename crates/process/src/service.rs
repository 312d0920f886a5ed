//! Receives the notifications that a service sends to its supervisor: the other side of [`manager`](crate::manager).

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Maximum length of a notice, in bytes; the rest is ignored. systemd has the same limit.
const MAX_NOTICE_BYTES: usize = 4096;

/// The socket whose path a service gets in `NOTIFY_SOCKET`.
#[derive(Debug)]
pub struct Notices {
    socket: UnixDatagram,
    path: PathBuf,
}

/// One datagram, with the sender's process id in this process's namespace, as reported by the kernel.
#[derive(Debug)]
struct Notice {
    sender: u32,
    text: String,
}

impl Notices {
    /// Listens at this path and replaces a socket that is there. Must be called within a runtime.
    ///
    /// # Errors
    /// Those of the system; a path of more than 107 bytes is not valid.
    pub fn listen(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(path)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Completes when the process `main` names another process as the service (`MAINPID=`). Notices of other processes
    /// are ignored, as with systemd's `NotifyAccess=main`. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn successor_of(&self, main: u32) -> io::Result<u32> {
        loop {
            let notice = self.socket.async_io(Interest::READABLE, || self.receive()).await?;
            if let Some(successor) = notice.successor_of(main) {
                return Ok(successor);
            }
        }
    }

    /// Like [`successor_of`](Self::successor_of), from notices that have already arrived: for a process that has ended, these
    /// are all.
    pub fn successor_named_by(&self, main: u32) -> Option<u32> {
        std::iter::from_fn(|| self.receive().ok()).find_map(|notice| notice.successor_of(main))
    }

    fn receive(&self) -> io::Result<Notice> {
        let mut buffer = [0; MAX_NOTICE_BYTES];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let (sender, length) = {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
            let sender = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmCredentials(credentials) => u32::try_from(credentials.pid()).ok(),
                _ => None,
            });
            (sender.unwrap_or_default(), message.bytes)
        };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
        Ok(Notice { sender, text })
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // It may be gone already, with its folder.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Notice {
    /// The last `MAINPID=` of a notice by `main` that names another process.
    fn successor_of(&self, main: u32) -> Option<u32> {
        let named = self.text.lines().rev().find_map(|line| line.strip_prefix("MAINPID="))?;
        // 0 is a process outside this namespace, 1 is the namespace's init.
        named.parse().ok().filter(|process| self.sender == main && *process > 1 && *process != main)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_main_process_names_another_one() {
        let check = |sender, text: &str, expected| {
            assert_eq!(Notice { sender, text: text.to_owned() }.successor_of(40), expected, "{sender}: {text}");
        };
        check(40, "MAINPID=41", Some(41));
        check(40, "READY=1\nMAINPID=41\nMAINPID=42\n", Some(42));
        check(41, "MAINPID=42", None);
        check(0, "MAINPID=42", None);
        for nobody in ["READY=1", "MAINPID=", "MAINPID=0", "MAINPID=1", "MAINPID=40", "MAINPID=-4", "XMAINPID=41"] {
            check(40, nobody, None);
        }
    }

    #[tokio::test]
    async fn what_is_sent_arrives_with_its_sender_and_what_others_say_is_left() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("notify");
        std::fs::write(&path, "an earlier run's")?;
        let notices = Notices::listen(&path)?;
        let own = std::process::id();
        let say = |what: &str| std::os::unix::net::UnixDatagram::unbound()?.send_to(what.as_bytes(), &path);
        say("READY=1")?;
        say(&"X".repeat(2 * MAX_NOTICE_BYTES))?;
        say("MAINPID=4711")?;
        assert_eq!(notices.successor_of(own).await?, 4711);
        assert_eq!(notices.successor_named_by(own), None);
        say("MAINPID=4711")?;
        assert_eq!(notices.successor_named_by(own + 1), None);
        say("READY=1")?;
        say("MAINPID=4712")?;
        assert_eq!(notices.successor_named_by(own), Some(4712));
        drop(notices);
        assert!(!path.exists());
        Ok(())
    }
}
