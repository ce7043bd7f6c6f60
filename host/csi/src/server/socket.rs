//! The unix socket that a server listens on.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::address::Address;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 128;
/// How long to wait for another process that is setting up a socket in the same directory, or for one that
/// listens to take a connection; both are done at once.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Where names of groups are looked up.
const GROUP_FILE: &str = "/etc/group";

/// Who may connect: permission bits of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixSocketMode(u32);

impl Default for UnixSocketMode {
    /// The owner only: whoever can connect can delete volumes.
    fn default() -> Self {
        Self(0o600)
    }
}

impl FromStr for UnixSocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| {
            format!("{text:?} is not a socket's mode: expected three octal digits, such as 0660")
        })
    }
}

impl fmt::Display for UnixSocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The group that a socket is given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnixSocketGroup {
    /// By number.
    Id(u32),
    /// By a name in `/etc/group`.
    Name(String),
}

impl FromStr for UnixSocketGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a group: expected a name in {GROUP_FILE} or a number");
        if text.is_empty() || text.contains([':', '\n', '\0']) {
            return Err(invalid());
        }
        match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().map(Self::Id).map_err(|_| invalid()),
            false => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for UnixSocketGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl UnixSocketGroup {
    fn resolve_id(&self) -> Result<u32, String> {
        let name = match self {
            Self::Id(id) => return Ok(*id),
            Self::Name(name) => name,
        };
        let group_file = fs::read_to_string(GROUP_FILE).map_err(|error| format!("{GROUP_FILE}: {error}"))?;
        group_id(&group_file, name).ok_or_else(|| format!("{GROUP_FILE} has no group {name}"))
    }
}

/// The number of a group in lines of `name:password:number:members`.
fn group_id(group_file: &str, name: &str) -> Option<u32> {
    let line = group_file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split(':').nth(1)?.parse().ok()
}

/// What a socket is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Where.
    pub address: Address,
    /// Who may connect.
    pub mode: UnixSocketMode,
    /// The group that it is given to; absent leaves it to the process' own.
    pub group: Option<UnixSocketGroup>,
}

impl SocketOptions {
    /// A socket for the process' own user.
    pub fn new(address: Address) -> Self {
        Self { address, mode: UnixSocketMode::default(), group: None }
    }
}

/// A socket that cannot be listened on. One line that names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another process listens there.
    #[error("{path}: another process listens on this socket; expected none")]
    InUse {
        /// The socket.
        path: String,
    },
    /// Something else has the name.
    #[error("{path}: is not a socket; expected a socket or nothing there")]
    NotASocket {
        /// The name.
        path: String,
    },
    /// The group does not exist.
    #[error("{path}: cannot give the socket to group {group}: {reason}")]
    Group {
        /// The socket.
        path: String,
        /// The group.
        group: UnixSocketGroup,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refuses a step.
    #[error("{path}: cannot {step}: {source}")]
    Io {
        /// The socket.
        path: String,
        /// What was tried.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A socket that is listened on. Its file goes when it is dropped.
#[derive(Debug)]
pub struct ServerSocket {
    /// It goes first: while somebody listens, nobody else takes the place of the file, and so what is removed
    /// is ours.
    file: SocketFile,
    pub(super) listener: UnixListener,
}

/// A socket's file, told from a later one of the same name.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_own_file =
            fs::symlink_metadata(&self.path).is_ok_and(|metadata| file_identity(&metadata) == self.identity);
        if is_own_file && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn file_identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl ServerSocket {
    /// Listens. A socket that nobody listens on any more is replaced. Nobody can connect before mode and
    /// group are set.
    ///
    /// # Errors
    /// [`SocketError`]
    pub async fn bind(options: &SocketOptions) -> Result<Self, SocketError> {
        let path = options.address.path();
        let path_text = || path.display().to_string();
        let io_error =
            |step| move |source| SocketError::Io { path: path.display().to_string(), step, source };
        let group = match &options.group {
            None => None,
            Some(group) => Some(group.resolve_id().map_err(|reason| SocketError::Group {
                path: path_text(),
                group: group.clone(),
                reason,
            })?),
        };
        let _directory_lock = lock_directory(path).await.map_err(io_error("lock its directory"))?;
        remove_stale_socket(path).await?;
        let socket = UnixSocket::new_stream().map_err(io_error("open a socket"))?;
        socket.bind(path).map_err(io_error("bind the socket"))?;
        let metadata = fs::symlink_metadata(path).map_err(io_error("look at the socket"))?;
        // From here on the file goes with whatever fails.
        let file = SocketFile { path: path.to_owned(), identity: file_identity(&metadata) };
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group).map_err(io_error("give the socket to its group"))?;
        }
        let mode = fs::Permissions::from_mode(options.mode.0);
        fs::set_permissions(path, mode).map_err(io_error("set the socket's mode"))?;
        let listener = socket.listen(BACKLOG).map_err(io_error("listen on the socket"))?;
        Ok(Self { listener, file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Waits for other processes that set up sockets in the same directory: between looking for a listener and
/// listening, two could each take the other's socket for a stale one.
async fn lock_directory(path: &Path) -> io::Result<fs::File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = fs::File::open(parent)?;
    let lock_result = tokio::task::spawn_blocking(move || directory.lock().map(|()| directory));
    match tokio::time::timeout(SETUP_TIMEOUT, lock_result).await {
        Ok(Ok(lock_result)) => lock_result,
        Ok(Err(join_error)) => Err(io::Error::other(join_error)),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("another process has held its lock for {SETUP_TIMEOUT:?}"),
        )),
    }
}

/// Removes a socket that nobody listens on.
async fn remove_stale_socket(path: &Path) -> Result<(), SocketError> {
    let path_text = || path.display().to_string();
    let io_error = |step| move |source| SocketError::Io { path: path.display().to_string(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("look at what is there")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path_text() });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(SETUP_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "replacing a socket that nobody listens on");
            fs::remove_file(path).map_err(io_error("remove the stale socket"))
        }
        Ok(Err(error)) => Err(io_error("see whether anybody listens")(error)),
        // Whoever is too busy to take a connection listens all the same.
        Ok(Ok(_)) | Err(_) => Err(SocketError::InUse { path: path_text() }),
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
