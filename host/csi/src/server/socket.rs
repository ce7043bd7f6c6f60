//! The unix socket of a server.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::address::Address;

/// Maximum connections waiting to be accepted.
const BACKLOG: u32 = 128;
/// Timeout of the wait for the directory's lock, which another process may hold while it sets up a socket,
/// and of the connect to an existing socket.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The file with the group names.
const GROUP_FILE: &str = "/etc/group";

/// A text that is not a socket mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a socket's mode: expected three octal digits, such as 0660")]
pub struct InvalidSocketMode {
    text: String,
}

/// A text that is neither a possible name of a group nor a group id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a group: expected a name in {GROUP_FILE} or a number")]
pub struct InvalidSocketGroup {
    text: String,
}

/// A group name that cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group file cannot be read, or is not UTF-8.
    #[error("{GROUP_FILE}: {0}")]
    Unreadable(#[from] io::Error),
    /// The group file has no line with this name and a valid group id.
    #[error("{GROUP_FILE} has no group {name}")]
    NotFound {
        /// The group's name.
        name: String,
    },
}

/// Permission bits of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixSocketMode(u32);

impl Default for UnixSocketMode {
    /// 0600, the owner only: every process that can connect can delete volumes.
    fn default() -> Self {
        Self(0o600)
    }
}

impl FromStr for UnixSocketMode {
    type Err = InvalidSocketMode;

    fn from_str(text: &str) -> Result<Self, InvalidSocketMode> {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| InvalidSocketMode { text: text.to_owned() })
    }
}

impl fmt::Display for UnixSocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The group that owns a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnixSocketGroup {
    /// A group id.
    Id(u32),
    /// A name in `/etc/group`.
    Name(String),
}

impl FromStr for UnixSocketGroup {
    type Err = InvalidSocketGroup;

    fn from_str(text: &str) -> Result<Self, InvalidSocketGroup> {
        let invalid = || InvalidSocketGroup { text: text.to_owned() };
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
    fn resolve_id(&self) -> Result<u32, GroupError> {
        let name = match self {
            Self::Id(id) => return Ok(*id),
            Self::Name(name) => name,
        };
        let group_file = fs::read_to_string(GROUP_FILE)?;
        group_id(&group_file, name).ok_or_else(|| GroupError::NotFound { name: name.clone() })
    }
}

/// Looks up a group id in lines of `name:password:gid:members`.
fn group_id(group_file: &str, name: &str) -> Option<u32> {
    let line = group_file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split(':').nth(1)?.parse().ok()
}

/// Options of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The address.
    pub address: Address,
    /// The permission bits.
    pub mode: UnixSocketMode,
    /// The owning group. If absent, the process's own.
    pub group: Option<UnixSocketGroup>,
}

impl SocketOptions {
    /// Options for a socket with mode 0600 and the process's own group.
    pub fn new(address: Address) -> Self {
        Self { address, mode: UnixSocketMode::default(), group: None }
    }
}

/// A socket that cannot be created. The text is one line and names the socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A process listens on the socket, or the attempt to connect to the socket timed out, which means that a
    /// listener's backlog is full.
    #[error("{path}: another process listens on this socket; expected none")]
    InUse {
        /// The socket's path.
        path: String,
    },
    /// The path exists and is not a socket.
    #[error("{path}: is not a socket; expected a socket or nothing there")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// The group cannot be resolved.
    #[error("{path}: cannot give the socket to group {group}: {source}")]
    Group {
        /// The socket's path.
        path: String,
        /// The group.
        group: UnixSocketGroup,
        /// The cause.
        source: GroupError,
    },
    /// A system call failed, or another process held the lock on the socket's directory until the timeout.
    #[error("{path}: cannot {step}: {source}")]
    Io {
        /// The socket's path.
        path: String,
        /// The failed step.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// A listening socket. Its file is removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub struct ServerSocket {
    /// Dropped first: the listener keeps other processes from replacing the file before it is removed.
    file: SocketFile,
    pub(super) listener: UnixListener,
}

/// A socket's file, identified by device and inode.
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
    /// Creates and listens on a socket. A socket without a listener is replaced. Connections are refused
    /// until mode and group are set.
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
            Some(group) => Some(group.resolve_id().map_err(|source| SocketError::Group {
                path: path_text(),
                group: group.clone(),
                source,
            })?),
        };
        let _directory_lock = lock_directory(path).await.map_err(io_error("lock its directory"))?;
        remove_unused_file(path).await?;
        let socket = UnixSocket::new_stream().map_err(io_error("open a socket"))?;
        socket.bind(path).map_err(io_error("bind the socket"))?;
        let metadata = fs::symlink_metadata(path).map_err(io_error("inspect the socket"))?;
        // From here on an error removes the file.
        let file = SocketFile { path: path.to_owned(), identity: file_identity(&metadata) };
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group).map_err(io_error("give the socket to its group"))?;
        }
        let mode = fs::Permissions::from_mode(options.mode.0);
        fs::set_permissions(path, mode).map_err(io_error("set the socket's mode"))?;
        let listener = socket.listen(BACKLOG).map_err(io_error("listen on the socket"))?;
        Ok(Self { listener, file })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Locks the directory against other processes that set up sockets in it. Without the lock, two processes
/// could each take the other's socket for a stale one.
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

/// Removes the file of a socket without a listener, such as a killed process leaves behind. Succeeds if there
/// is no file.
///
/// # Errors
/// [`SocketError::InUse`] and [`SocketError::NotASocket`], and the file remains; [`SocketError::Io`].
pub async fn remove_stale_socket(path: &Path) -> Result<(), SocketError> {
    let io_error = |step| move |source| SocketError::Io { path: path.display().to_string(), step, source };
    let _directory_lock = lock_directory(path).await.map_err(io_error("lock its directory"))?;
    remove_unused_file(path).await
}

/// Like [`remove_stale_socket`]; the directory must be locked.
async fn remove_unused_file(path: &Path) -> Result<(), SocketError> {
    let path_text = || path.display().to_string();
    let io_error = |step| move |source| SocketError::Io { path: path.display().to_string(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("inspect the path")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path_text() });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(SETUP_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "removing a stale socket");
            fs::remove_file(path).map_err(io_error("remove the stale socket"))
        }
        Ok(Err(error)) => Err(io_error("check for a listener")(error)),
        // A connect that times out has a listener too: its backlog is full.
        Ok(Ok(_)) | Err(_) => Err(SocketError::InUse { path: path_text() }),
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
