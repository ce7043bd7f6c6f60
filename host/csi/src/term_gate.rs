//! Stops requests that are queued on a connection when their term ends.
//!
//! A call checks its term before it hands its request to the connection, whose task writes the request later.
//! A process that is stopped in between, and continues after its Lease has expired, would still write all
//! queued requests.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cofferdam_domain::term::{PermitSource as _, Term};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};

/// The term of the last call that began on a connection. No bytes are written after its end, until a call of
/// another term begins. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermGate(Arc<Mutex<Option<Term>>>);

impl TermGate {
    /// Sets the term of a call that begins.
    pub(crate) fn set_term(&self, term: Term) {
        *self.0.lock() = Some(term);
    }

    /// Returns an error after the end of the term.
    pub(crate) fn check(&self) -> io::Result<()> {
        match &*self.0.lock() {
            Some(term) => term.permit().map(|_| ()).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// A stream whose writes fail after the end of its gate's term.
#[derive(Debug)]
pub(crate) struct GatedStream {
    stream: UnixStream,
    gate: TermGate,
}

impl GatedStream {
    pub(crate) const fn new(stream: UnixStream, gate: TermGate) -> Self {
        Self { stream, gate }
    }
}

impl AsyncRead for GatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for GatedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
