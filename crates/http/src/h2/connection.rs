//! One connection.

use super::error::{ConnectionError, OpenError, Reason, StreamGone};
use super::options::Options;
use super::sink::{PeerSettings, Sink, StreamKey};
use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;

/// An HTTP/2 connection, client or server, without its socket.
#[derive(Debug)]
pub struct Connection {
    output: Vec<u8>,
    output_at: usize,
}

impl Connection {
    /// The server's end. SETTINGS are in the output at once; what is received starts with the client's preface.
    pub fn server(_options: Options) -> Self {
        Self { output: Vec::new(), output_at: 0 }
    }

    /// The client's end. Preface and SETTINGS are in the output at once, and requests may follow them without waiting.
    pub fn client(_options: Options) -> Self {
        Self { output: Vec::new(), output_at: 0 }
    }

    /// Takes what was read: tells the sink about whole frames and the parts of DATA frames at the start of `input`, and returns how
    /// many bytes are done with. Call again with the rest and what follows it (at most [`Options::max_frame_size`] + 9 bytes stay).
    ///
    /// # Errors
    /// The connection is over: write the output, then close. All streams are gone without further calls of the sink.
    pub fn receive(&mut self, input: &[u8], _sink: &mut impl Sink) -> Result<usize, ConnectionError> {
        Ok(input.len())
    }

    /// The peer's bytes have ended. True if that was in order: no frame was cut and no stream was open.
    pub fn end_of_input(&mut self) -> bool {
        true
    }

    /// Tells the time in whole seconds since some moment of the caller's choice, for limits that depend on a stream's age.
    pub fn tick(&mut self, _now_seconds: u32) {}

    // Output ---------------------------------------------------------------------------------------------------------------

    /// What is to be written.
    pub fn output(&self) -> &[u8] {
        self.output.get(self.output_at..).unwrap_or_default()
    }

    /// So many bytes of [`Connection::output`] were written (or taken over by TLS).
    pub fn written(&mut self, bytes: usize) {
        self.output_at += bytes;
    }

    /// Takes the empty output's memory away, to be lent to other connections; `None` while there is output.
    pub fn take_output_buffer(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Lends memory for output; ignored while there is some.
    pub fn lend_output_buffer(&mut self, _buffer: Vec<u8>) {}

    /// Gives back memory that an idle connection does not need.
    pub fn shrink(&mut self) {}

    /// So much output waits that nothing more should be received until some is written.
    pub fn is_congested(&self) -> bool {
        false
    }

    // Client role ----------------------------------------------------------------------------------------------------------

    /// Sends a request. `https`: what `:scheme` says. A body of known length announces it; without body `end` is true.
    /// Header fields that mean one HTTP/1 connection only are left out; extended CONNECT is what has [`RequestHead::protocol`].
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn open(
        &mut self,
        _head: &RequestHead,
        _https: bool,
        _framing: Framing,
        _end: bool,
    ) -> Result<StreamKey, OpenError> {
        Err(OpenError::GoingAway)
    }

    /// Whether [`Connection::open`] would work now.
    ///
    /// # Errors
    /// Why it would not.
    pub fn can_open(&self) -> Result<(), OpenError> {
        Err(OpenError::GoingAway)
    }

    // Server role ----------------------------------------------------------------------------------------------------------

    /// Sends an interim (1xx) response.
    ///
    /// # Errors
    /// The stream is gone.
    pub fn interim(&mut self, _stream: StreamKey, _head: &ResponseHead) -> Result<(), StreamGone> {
        Ok(())
    }

    /// Sends a response's head. A body of known length announces it; `Framing::None` leaves `content-length` as `head` has it (the
    /// answer to HEAD).
    ///
    /// # Errors
    /// The stream is gone.
    pub fn respond(
        &mut self,
        _stream: StreamKey,
        _head: &ResponseHead,
        _framing: Framing,
        _end: bool,
    ) -> Result<(), StreamGone> {
        Ok(())
    }

    // Streams of both roles ------------------------------------------------------------------------------------------------

    /// Appends as much of `data` as windows, room in the output and fairness allow, and returns how many bytes that was. `end` takes
    /// effect with the last byte. When not all is taken the stream gets in line for [`Connection::next_writable`].
    ///
    /// # Errors
    /// The stream is gone.
    pub fn send_data(&mut self, _stream: StreamKey, _data: &[u8], _end: bool) -> Result<usize, StreamGone> {
        Ok(0)
    }

    /// Bytes [`Connection::send_data`] would take now; 0 for a stream that is gone.
    pub fn capacity(&self, _stream: StreamKey) -> usize {
        0
    }

    /// Puts the stream in line for [`Connection::next_writable`] without offering data.
    pub fn wait_for_capacity(&mut self, _stream: StreamKey) {}

    /// The next stream in line that can send, whose turn it now is: it has left the line, may send up to
    /// [`Options::quantum_bytes`] and gets in line again, at the end, if that was not all. `None` when no stream can send, or enough
    /// have been named to use up the connection's window and the room in the output.
    pub fn next_writable(&mut self) -> Option<StreamKey> {
        None
    }

    /// Sends trailers, which end the stream.
    ///
    /// # Errors
    /// The stream is gone.
    pub fn send_trailers(&mut self, _stream: StreamKey, _trailers: &Headers) -> Result<(), StreamGone> {
        Ok(())
    }

    /// Cuts the stream off. Nothing more of it is reported. Does nothing for a stream that is gone.
    pub fn reset(&mut self, _stream: StreamKey, _reason: Reason) {}

    /// The stream's application took so many bytes it was given; the peer gets them back in its window for the stream, in batches.
    pub fn release_stream(&mut self, _stream: StreamKey, _bytes: usize) {}

    /// So many bytes of any stream's data were taken; the peer gets them back in its window for the connection, in batches.
    pub fn release_connection(&mut self, _bytes: usize) {}

    /// Whether the stream is still there, in at least one direction.
    pub fn is_open(&self, _stream: StreamKey) -> bool {
        false
    }

    /// Streams there are.
    pub fn open_streams(&self) -> usize {
        0
    }

    // The connection as a whole --------------------------------------------------------------------------------------------

    /// Sends a PING; [`Sink::pong`] tells when it came back.
    pub fn ping(&mut self, _payload: [u8; 8]) {}

    /// What the peer allows now.
    pub fn peer_settings(&self) -> PeerSettings {
        PeerSettings {
            max_concurrent_streams: u32::MAX,
            enable_connect_protocol: false,
            max_header_list_bytes: u32::MAX,
        }
    }

    /// Announces another number of streams the peer may have open (server role).
    pub fn set_max_concurrent_streams(&mut self, _streams: u32) {}

    /// Begins to end the connection in order (RFC 9113 section 6.8): a first GOAWAY asks the peer to open no more streams, a PING
    /// follows; when it is back, or at [`Connection::finish_shutdown`], a second GOAWAY names the last stream that is served.
    pub fn shutdown(&mut self) {}

    /// Sends the second GOAWAY of [`Connection::shutdown`] now. Streams that come later are refused.
    pub fn finish_shutdown(&mut self) {}

    /// Ends the connection at once with this reason: GOAWAY, after which no stream is taken or opened and those there are can still
    /// finish.
    pub fn goaway(&mut self, _reason: Reason, _debug: &[u8]) {}

    /// The connection was asked to end, by either side, and has no stream any more: write the output, then close.
    pub fn is_finished(&self) -> bool {
        false
    }
}
