//! A TLS connection over an asynchronous socket.
//!
//! rustls implements the protocol, this module moves the bytes. It is cheap for three reasons: a read takes as much
//! from the socket as the caller has room for, instead of rustls' 4 KB; ciphertext passes through one buffer per
//! thread; all records of a write leave with one vectored system call.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use rustls::{Connection, HandshakeKind, NamedGroup, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::{FailedHandshake, HandshakeError};
use crate::session::Session;
use crate::suites::openssl_name;
use crate::verified_chains;
use crate::verify::{self, ClientVerifier};

/// Maximum amount of ciphertext read from a socket at once, in bytes: eight full records.
const MAX_READ_BYTES: usize = 129 * 1024;
/// Least ciphertext read at once, in bytes.
const MIN_READ_BYTES: usize = 4 * 1024;
/// The overhead of records that is assumed when the size of a read is chosen, in bytes.
const RECORD_OVERHEAD_BYTES: usize = 256;

thread_local! {
    /// Ciphertext on its way from a socket into rustls. It is taken for one poll and put back; a TLS stream inside
    /// another finds it taken and uses one of its own.
    static CIPHERTEXT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A TLS connection after its handshake.
///
/// A write completes as soon as its data is encrypted; what the socket does not take at once is buffered (64 KB at
/// most), so flush after the last write. Dropping it without [`AsyncWrite::poll_shutdown`] sends no `close_notify`.
pub struct TlsStream<S> {
    io: S,
    connection: Box<Connection>,
    /// Ciphertext that was read but not yet taken by rustls, whose buffers were full.
    unread: Vec<u8>,
    closing: bool,
    /// Ciphertext that the socket has taken, in bytes.
    sent: u64,
    session: Arc<Session>,
}

impl<S> TlsStream<S> {
    /// The result of the handshake.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The socket below.
    pub fn get_ref(&self) -> &S {
        &self.io
    }

    /// Bytes of ciphertext that the socket took since the connection began.
    pub fn ciphertext_sent(&self) -> u64 {
        self.sent
    }

    /// Replaces the socket of the connection, to move it from one reactor to another.
    ///
    /// # Errors
    /// Those of `map`; the connection is then lost.
    pub fn try_map_io<T>(self, map: impl FnOnce(S) -> io::Result<T>) -> io::Result<TlsStream<T>> {
        let Self { io, connection, unread, closing, sent, session } = self;
        Ok(TlsStream { io: map(io)?, connection, unread, closing, sent, session })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Drives a handshake to its end. `unread` has bytes of the peer that were read before, `session` what is known
    /// before. `untrusted` verifies the peer after a handshake that has accepted any certificate.
    pub(crate) async fn handshake(
        io: S,
        connection: Connection,
        unread: Vec<u8>,
        session: Session,
        untrusted: Option<&ClientVerifier>,
        now: SystemTime,
    ) -> Result<Self, Box<FailedHandshake>> {
        let connection = Box::new(connection);
        let mut stream = Self { io, connection, unread, closing: false, sent: 0, session: Arc::new(session) };
        if let Err(error) = poll_fn(|cx| stream.poll_handshake(cx)).await {
            // The alert tells the peer why. It is one record; there is no wait for a peer that does not take it.
            poll_fn(|cx| match stream.poll_send(cx) {
                Poll::Pending | Poll::Ready(_) => Poll::Ready(()),
            })
            .await;
            return Err(stream.failed(error));
        }
        match stream.describe(untrusted, now) {
            Ok(()) => Ok(stream),
            Err(error) => Err(stream.failed(error)),
        }
    }

    fn failed(self, error: HandshakeError) -> Box<FailedHandshake> {
        let mut session = Arc::unwrap_or_clone(self.session);
        (session.version, session.cipher, session.group) = agreed(&self.connection);
        session.peer = verify::take_refused().or(session.peer);
        Box::new(FailedHandshake { error, session })
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            while self.connection.wants_write() {
                ready!(self.poll_send(cx))?;
            }
            if !self.connection.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            self.feed_unread()?;
            if self.connection.wants_write() || !self.connection.is_handshaking() {
                continue;
            }
            if !self.unread.is_empty() {
                return Poll::Ready(Err(stuck().into()));
            }
            if ready!(self.poll_fill(cx, MIN_READ_BYTES, &mut ReadBuf::new(&mut [])))? == 0 {
                let reason = "the peer closed the connection during the TLS handshake";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into()));
            }
        }
    }

    fn describe(&mut self, untrusted: Option<&ClientVerifier>, now: SystemTime) -> Result<(), HandshakeError> {
        let connection = &self.connection;
        let mut session = (*self.session).clone();
        session.resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let identified = |chain: &&[_]| match untrusted.map(|clients| clients.identify(chain, now)) {
            Some(Err(error)) => {
                session.untrusted = Some(refusal(error).into());
                false
            }
            None | Some(Ok(())) => true,
        };
        if let Some(chain) = connection.peer_certificates().filter(identified) {
            let peer = verified_chains::parse_verified(chain)
                .map_err(|error| HandshakeError::PeerCertificate(error.to_string()))?;
            // rustls does not verify a certificate again that is recorded in a ticket.
            if session.resumed && peer.not_after() <= now {
                return Err(HandshakeError::ResumedExpired);
            }
            session.peer = Some(peer);
        }
        session.alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
        (session.version, session.cipher, session.group) = agreed(connection);
        self.session = Arc::new(session);
        Ok(())
    }

    /// Reads ciphertext from the socket once and passes it to rustls; moves plaintext to `plaintext` where rustls needs
    /// room. Returns how much ciphertext was read, 0 at the end.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        size: usize,
        plaintext: &mut ReadBuf<'_>,
    ) -> Poll<Result<usize, Failure>> {
        let mut ciphertext = CIPHERTEXT.take();
        let size = size.clamp(MIN_READ_BYTES, MAX_READ_BYTES);
        if ciphertext.len() < size {
            ciphertext.resize(size, 0);
        }
        let result = self.poll_fill_through(cx, ciphertext.get_mut(..size).unwrap_or_default(), plaintext);
        CIPHERTEXT.set(ciphertext);
        result
    }

    fn poll_fill_through(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        plaintext: &mut ReadBuf<'_>,
    ) -> Poll<Result<usize, Failure>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        let mut rest = buffer.filled();
        let (count, before) = (rest.len(), plaintext.filled().len());
        if count == 0 {
            // This lets rustls tell a truncated stream from one that was closed properly.
            self.connection.read_tls(&mut io::empty())?;
            return Poll::Ready(Ok(0));
        }
        while !rest.is_empty() {
            match feed(&mut self.connection, rest) {
                Ok(0) if rest.len() == count => return Poll::Ready(Err(stuck())),
                Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
                // Plaintext before the error is delivered first; rustls reports the error again when it gets the rest.
                Err(_) if plaintext.filled().len() > before => break,
                Err(failure) => return Poll::Ready(Err(failure)),
            }
            if !self.take_plaintext(plaintext) {
                break;
            }
        }
        self.unread.extend_from_slice(rest);
        Poll::Ready(Ok(count))
    }

    /// Moves the available plaintext; returns whether there was any, and room for it.
    fn take_plaintext(&mut self, plaintext: &mut ReadBuf<'_>) -> bool {
        let before = plaintext.filled().len();
        while plaintext.remaining() > 0 {
            match self.connection.reader().read(plaintext.initialize_unfilled()) {
                // The next read finds the end or the error again.
                Ok(0) | Err(_) => break,
                Ok(count) => plaintext.advance(count),
            }
        }
        plaintext.filled().len() > before
    }

    /// Passes ciphertext to rustls that it had no room for before.
    fn feed_unread(&mut self) -> Result<(), Failure> {
        if !self.unread.is_empty() {
            let taken = feed(&mut self.connection, &self.unread)?;
            self.unread.drain(..taken);
            if self.unread.is_empty() {
                self.unread = Vec::new();
            }
        }
        Ok(())
    }

    /// Sends what rustls has encrypted, with one system call.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.connection.write_tls(&mut Socket { io: &mut self.io, cx }) {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                self.sent += count as u64;
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            ready!(self.poll_send(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts with `encrypt`, and begins to send. Pending only when nothing could be encrypted.
    fn poll_encrypt(
        &mut self,
        cx: &mut Context<'_>,
        encrypt: impl Fn(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let count = encrypt(&mut self.connection.writer())?;
            match self.poll_send_all(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if count == 0 => return Poll::Pending,
                // rustls' buffer was full of earlier writes, but has room now.
                Poll::Ready(Ok(())) if count == 0 => continue,
                _ => return Poll::Ready(Ok(count)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        loop {
            // Take all available plaintext: the next record may wait in `unread`.
            let mut filled = buffer.filled().len() > before;
            while buffer.remaining() > 0 {
                match this.connection.reader().read(buffer.initialize_unfilled()) {
                    Ok(0) => return Poll::Ready(Ok(())),
                    Ok(count) => {
                        buffer.advance(count);
                        filled = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && !this.unread.is_empty() => {
                        let unread = this.unread.len();
                        match this.feed_unread() {
                            // Plaintext before the error is delivered first; rustls reports the error again.
                            Err(_) if filled => return Poll::Ready(Ok(())),
                            result => result?,
                        }
                        if this.unread.len() == unread {
                            return Poll::Ready(Err(stuck().into()));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) if filled => return Poll::Ready(Ok(())),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            // These are answers to key updates; they may leave now or with the next write.
            if this.connection.wants_write()
                && let Poll::Ready(Err(error)) = this.poll_send_all(cx)
            {
                return Poll::Ready(Err(error));
            }
            if filled {
                return Poll::Ready(Ok(()));
            }
            match this.poll_fill(cx, buffer.remaining() + RECORD_OVERHEAD_BYTES, buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(failure)) => {
                    // Send the alert, if rustls made one.
                    let _ = this.poll_send_all(cx);
                    return Poll::Ready(Err(failure.into()));
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let (first, rest) = bytes.split_at(first_record(bytes));
        self.get_mut().poll_encrypt(cx, |writer| {
            let count = writer.write(first)?;
            if count < first.len() { Ok(count) } else { Ok(count + writer.write(rest)?) }
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.get_mut().poll_encrypt(cx, |writer| writer.write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send_all(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.closing {
            this.closing = true;
            this.connection.send_close_notify();
        }
        ready!(this.poll_send_all(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

/// The size in bytes of the first of the records that `bytes` are written as, 0 for that of the others.
///
/// rustls copies the data of each record to a block of its own, after the record's header. On processors of AMD since
/// Zen 3, `memcpy` of glibc before 2.40 (`REP MOVSB`, sourceware bug 30994) takes 16 times as long, and four times as
/// long as the encryption, where the target lies 1 to 15 bytes further in its page than the source. So it would be for
/// every record of data that begins a page, as that of most buffers does. A short first record moves the others.
fn first_record(bytes: &[u8]) -> usize {
    // Blocks of more than 8 KB begin at multiples of this.
    const BLOCK_ALIGNMENT: usize = 2048;
    let distance = RECORD_HEADER_BYTES.wrapping_sub(bytes.as_ptr().addr()) % BLOCK_ALIGNMENT;
    if bytes.len() > REP_MOVSB_BYTES && (1..16).contains(&distance) { SHIFT_BYTES } else { 0 }
}

/// The length in bytes of a record's header (RFC 8446, section 5.1).
const RECORD_HEADER_BYTES: usize = 5;
/// The length in bytes from which a short first record costs less than a slow copy; `memcpy` uses `REP MOVSB` from 2 KB.
const REP_MOVSB_BYTES: usize = 4096;
/// The size in bytes of the short record: a cache line.
const SHIFT_BYTES: usize = 64;

/// Sends an alert on a connection that is about to be closed, as far as the socket takes it at once.
pub(crate) async fn send_alert<S: AsyncWrite + Unpin>(mut io: S, bytes: &[u8]) {
    poll_fn(|cx| {
        let _ = Pin::new(&mut io).poll_write(cx, bytes);
        Poll::Ready(())
    })
    .await;
}

/// Lets rustls take and decrypt as much as its buffers can hold; returns how much it took.
fn feed(connection: &mut Connection, bytes: &[u8]) -> Result<usize, Failure> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let before = rest.len();
        match connection.read_tls(&mut rest) {
            // The peer has closed its side; further bytes are ignored.
            Ok(0) => return Ok(bytes.len()),
            Ok(_) => {}
            // The plaintext buffer is full.
            Err(_) if rest.len() == before => break,
            Err(error) => return Err(Failure::Io(error)),
        }
        let state = connection.process_new_packets().map_err(Failure::Tls)?;
        if state.plaintext_bytes_to_read() >= PLAINTEXT_BYTES {
            break;
        }
    }
    Ok(bytes.len() - rest.len())
}

/// Amount of buffered plaintext that is taken out of rustls before it gets more ciphertext, in bytes; rustls has the
/// same limit.
const PLAINTEXT_BYTES: usize = 16 * 1024;

/// Why a certificate was not accepted.
fn refusal(error: rustls::Error) -> String {
    match HandshakeError::from(error) {
        HandshakeError::PeerCertificate(reason) => reason,
        other => other.to_string(),
    }
}

/// Version, cipher suite and group of the key exchange, as far as they are negotiated.
fn agreed(connection: &Connection) -> (&'static str, &'static str, &'static str) {
    let version = match connection.protocol_version() {
        Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        _ => "",
    };
    let cipher = connection.negotiated_cipher_suite().map_or("", |suite| openssl_name(suite.suite()));
    let group = connection.negotiated_key_exchange_group().map_or("", |group| group_name(group.name()));
    (version, cipher, group)
}

/// The name of a group, as OpenSSL and IANA's registry have it.
fn group_name(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768",
        NamedGroup::secp256r1MLKEM768 => "SecP256r1MLKEM768",
        NamedGroup::MLKEM768 => "MLKEM768",
        NamedGroup::MLKEM1024 => "MLKEM1024",
        NamedGroup::X25519 => "X25519",
        NamedGroup::secp256r1 => "secp256r1",
        NamedGroup::secp384r1 => "secp384r1",
        NamedGroup::secp521r1 => "secp521r1",
        _ => "other",
    }
}

/// rustls' buffers are empty, yet it takes nothing: a message of the peer is over its limits.
fn stuck() -> Failure {
    Failure::Io(io::Error::new(io::ErrorKind::InvalidData, "a TLS message over the size limit"))
}

/// A failure below a read.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Tls(rustls::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Failure> for HandshakeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(error) => Self::Io(error),
            Failure::Tls(error) => error.into(),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(error) => error,
            Failure::Tls(error) => io::Error::new(io::ErrorKind::InvalidData, HandshakeError::from(error)),
        }
    }
}

/// The socket as rustls uses it: blocking I/O that returns `WouldBlock` when it is pending.
struct Socket<'a, 'b, S> {
    io: &'a mut S,
    cx: &'a mut Context<'b>,
}

impl<S: AsyncWrite + Unpin> Write for Socket<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.io).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.io).poll_write_vectored(self.cx, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{SHIFT_BYTES, first_record};

    #[test]
    fn data_that_begins_a_page_is_moved_against_its_records() {
        let bytes = vec![0; 3 * 4096];
        let page = bytes.as_ptr().align_offset(4096);
        let at = |offset: usize, length: usize| first_record(&bytes[page + offset..][..length]);
        for (offset, expected) in [
            (0, SHIFT_BYTES),
            (4, SHIFT_BYTES),
            (5, 0),
            (SHIFT_BYTES, 0),
            (2037, 0),
            (2038, SHIFT_BYTES),
            (2048, SHIFT_BYTES),
            (4090, SHIFT_BYTES),
        ] {
            assert_eq!(at(offset, 4097), expected, "{offset}");
            assert_eq!(at(offset, 4096), 0, "{offset}");
        }
    }
}
