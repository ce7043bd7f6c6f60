//! An exchange with a server that shows that it responds. The kernel would wait for it much longer, and lets
//! connections to other servers wait meanwhile.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::onc_rpc::NullReplyError;

/// Type and length in bytes of the PDUs that initialise a connection of NVMe/TCP (NVM Express TCP Transport
/// Specification 1.0, section 3.6.2).
const NVME_REQUEST: u8 = 0;
const NVME_RESPONSE: u8 = 1;
const NVME_PDU_BYTES: u8 = 128;
/// The start of the banners of Ceph's messenger, version 1 (`ceph v027`) and 2 (`ceph v2`).
const CEPH_BANNER: &[u8] = b"ceph v";

/// The reason why a server does not respond as expected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The limit is over.
    #[error("no response within {limit:?}")]
    Timeout { limit: Duration },
    /// The connection fails.
    #[error(transparent)]
    Connection(io::Error),
    /// The server ends the connection.
    #[error("it closed the connection")]
    Closed,
    /// The server speaks another protocol.
    #[error("its response is not one of {protocol}")]
    OtherProtocol { protocol: &'static str },
    /// The reply of an NFS server.
    #[error(transparent)]
    Nfs(#[from] NullReplyError),
}

impl ProbeError {
    fn of(error: io::Error, limit: Duration) -> Self {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            Self::Timeout { limit }
        } else {
            Self::Connection(error)
        }
    }
}

/// A connection with a limit for everything that happens on it.
pub(super) struct ProbeConnection {
    stream: TcpStream,
    limit: Duration,
    deadline: Instant,
}

impl ProbeConnection {
    /// Connects.
    ///
    /// # Errors
    /// [`ProbeError`]: the server refuses, or does not respond in time.
    pub(super) fn open(server: SocketAddr, limit: Duration) -> Result<Self, ProbeError> {
        let deadline = Instant::now() + limit;
        let connected = TcpStream::connect_timeout(&server, limit);
        let stream = connected.map_err(|error| ProbeError::of(error, limit))?;
        Ok(Self { stream, limit, deadline })
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// [`ProbeError`]: the connection fails, or the limit is over.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        let sent = self.remaining().and_then(|remaining| {
            self.stream.set_write_timeout(Some(remaining))?;
            self.stream.write_all(bytes)
        });
        sent.map_err(|error| ProbeError::of(error, self.limit))
    }

    /// Receives as many bytes as the buffer has.
    ///
    /// # Errors
    /// [`ProbeError`]: the connection fails or ends, or the limit is over.
    pub(super) fn receive(&mut self, mut buffer: &mut [u8]) -> Result<(), ProbeError> {
        while !buffer.is_empty() {
            let received = self.remaining().and_then(|remaining| {
                self.stream.set_read_timeout(Some(remaining))?;
                self.stream.read(buffer)
            });
            match received.map_err(|error| ProbeError::of(error, self.limit))? {
                0 => return Err(ProbeError::Closed),
                length => buffer = buffer.get_mut(length..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    fn remaining(&self) -> io::Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
    }
}

/// Initialises a connection of NVMe/TCP, and closes it.
///
/// # Errors
/// [`ProbeError`]: the server does not respond in time, or not as NVMe/TCP.
pub(super) fn probe_nvme(server: SocketAddr, limit: Duration) -> Result<(), ProbeError> {
    let mut connection = ProbeConnection::open(server, limit)?;
    connection.send(&nvme_request())?;
    let mut response = [0; NVME_PDU_BYTES as usize];
    connection.receive(&mut response)?;
    check_nvme_response(&response)
}

/// A request to initialise a connection: format version 0, no digests, no alignment.
fn nvme_request() -> [u8; NVME_PDU_BYTES as usize] {
    let mut request = [0; NVME_PDU_BYTES as usize];
    let header = [NVME_REQUEST, 0, NVME_PDU_BYTES, 0, NVME_PDU_BYTES];
    for (byte, value) in request.iter_mut().zip(header) {
        *byte = value;
    }
    request
}

fn check_nvme_response(response: &[u8]) -> Result<(), ProbeError> {
    if response.starts_with(&[NVME_RESPONSE, 0, NVME_PDU_BYTES, 0, NVME_PDU_BYTES, 0, 0, 0]) {
        Ok(())
    } else {
        Err(ProbeError::OtherProtocol { protocol: "NVMe/TCP" })
    }
}

/// Receives the banner of a daemon of Ceph, and closes the connection.
///
/// # Errors
/// [`ProbeError`]: the server does not respond in time, or not as Ceph.
pub(super) fn probe_ceph(server: SocketAddr, limit: Duration) -> Result<(), ProbeError> {
    let mut banner = [0; CEPH_BANNER.len()];
    ProbeConnection::open(server, limit)?.receive(&mut banner)?;
    if banner == CEPH_BANNER { Ok(()) } else { Err(ProbeError::OtherProtocol { protocol: "Ceph" }) }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    /// The result of a probe of a server that sends these bytes, and waits for the client then.
    fn probe(
        answer: &'static [u8],
        probe: fn(SocketAddr, Duration) -> Result<(), ProbeError>,
    ) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client may have closed the connection.
            let _ = stream.write_all(answer);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let result = probe(address, LIMIT).map_err(|error| error.to_string());
        server.join().unwrap();
        result
    }

    #[test]
    fn a_silent_server_fails_within_the_limit() {
        for run in [probe_nvme, probe_ceph] {
            assert_eq!(probe(b"", run), Err("no response within 300ms".to_owned()));
        }
    }

    #[test]
    fn servers_of_other_protocols_are_told_apart() {
        const RESPONSE: [u8; 128] = {
            let mut response = [0; 128];
            (response[0], response[2], response[4]) = (1, 128, 128);
            response
        };
        assert_eq!(probe(&RESPONSE, probe_nvme), Ok(()));
        assert_eq!(probe(&[b'x'; 128], probe_nvme), Err("its response is not one of NVMe/TCP".to_owned()));
        for banner in [&b"ceph v027"[..], b"ceph v2\n"] {
            assert_eq!(probe(banner, probe_ceph), Ok(()));
        }
        assert_eq!(probe(b"SSH-2.0-x", probe_ceph), Err("its response is not one of Ceph".to_owned()));
    }
}
