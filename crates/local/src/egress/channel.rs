//! Short messages between the keeper and the mesh, each of which may carry a descriptor (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Maximum length of a message, in bytes: `tcp [` an IPv6 address with its scope `]:65535`.
pub const MAX_MESSAGE_BYTES: usize = 80;

/// Creates a pair of sockets that preserve message boundaries and are closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its text.
    pub text: String,
    /// The descriptor that it carries.
    pub descriptor: Option<OwnedFd>,
}

/// One end, registered with the event loop.
#[derive(Debug)]
pub struct ChannelEnd(AsyncFd<OwnedFd>);

impl ChannelEnd {
    /// Registers the descriptor with the event loop. It must be called within a runtime.
    pub fn new(end: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` is open, and the same descriptor, until it is dropped.
        Ok(Self(unsafe { AsyncFd::register(end) }?))
    }

    /// Sends one message, whole; waits while the other end's queue is full.
    pub async fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let carried: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&carried)];
        let rights = if carried.is_empty() { &[][..] } else { &rights };
        let parts = [IoSlice::new(text.as_bytes())];
        let send = |end: &OwnedFd| Ok(sendmsg::<()>(end.as_raw_fd(), &parts, rights, MsgFlags::MSG_NOSIGNAL, None)?);
        self.0.async_io(Interest::WRITABLE, send).await.map(drop)
    }

    /// The next message; `None` when the other end is closed.
    pub async fn receive(&self) -> io::Result<Option<Message>> {
        self.0.async_io(Interest::READABLE, receive).await
    }

    /// Waits until the other end is closed. Only for use where the other end sends nothing.
    pub async fn closed(&self) {
        while let Ok(Some(_)) = self.receive().await {}
    }
}

fn receive(end: &OwnedFd) -> io::Result<Option<Message>> {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut carried = RecvAncillaryBuffer::new(&mut space);
    let length = recvmsg(end, &mut [IoSliceMut::new(&mut bytes)], &mut carried, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptor = None;
    for message in carried.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            // All received descriptors are owned here, so that none stays open.
            descriptor = received.last();
        }
    }
    let text = bytes.get(..length).unwrap_or_default();
    let text = std::str::from_utf8(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((length > 0).then(|| Message { text: text.to_owned(), descriptor }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[tokio::test]
    async fn messages_stay_apart_and_carry_descriptors_until_the_end_is_closed() -> io::Result<()> {
        let (one, other) = pair()?;
        let (one, other) = (ChannelEnd::new(one)?, ChannelEnd::new(other)?);
        let (carried, kept) = pair()?;
        one.send("tcp 192.0.2.1:80", Some(carried.as_fd())).await?;
        one.send("second", None).await?;
        let first = other.receive().await?.expect("a message");
        assert_eq!(first.text, "tcp 192.0.2.1:80");
        let received = ChannelEnd::new(first.descriptor.expect("a descriptor"))?;
        ChannelEnd::new(kept)?.send("through", None).await?;
        assert_eq!(received.receive().await?.expect("a message").text, "through");
        let second = other.receive().await?.expect("a message");
        assert!(second.text == "second" && second.descriptor.is_none());
        drop(one);
        assert!(other.receive().await?.is_none());
        Ok(())
    }
}
