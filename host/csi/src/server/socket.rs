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
const PATIENCE: Duration = Duration::from_secs(5);
/// Where names of groups are looked up.
const GROUPS: &str = "/etc/group";

/// Who may connect: permission bits of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(u32);

impl Default for Mode {
    /// The owner only: whoever can connect can delete volumes.
    fn default() -> Self {
        Self(0o600)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| {
            format!("{text:?} is not a socket's mode: expected three octal digits, such as 0660")
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The group that a socket is given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// By number.
    Id(u32),
    /// By a name in `/etc/group`.
    Name(String),
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a group: expected a name in {GROUPS} or a number");
        if text.is_empty() || text.contains([':', '\n', '\0']) {
            return Err(bad());
        }
        match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().map(Self::Id).map_err(|_| bad()),
            false => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Group {
    fn id(&self) -> Result<u32, String> {
        let name = match self {
            Self::Id(id) => return Ok(*id),
            Self::Name(name) => name,
        };
        let table = fs::read_to_string(GROUPS).map_err(|error| format!("{GROUPS}: {error}"))?;
        group_id(&table, name).ok_or_else(|| format!("{GROUPS} has no group {name}"))
    }
}

/// The number of a group in lines of `name:password:number:members`.
fn group_id(table: &str, name: &str) -> Option<u32> {
    let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split(':').nth(1)?.parse().ok()
}

/// What a socket is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Where.
    pub address: Address,
    /// Who may connect.
    pub mode: Mode,
    /// The group that it is given to; absent leaves it to the process' own.
    pub group: Option<Group>,
}

impl SocketOptions {
    /// A socket for the process' own user.
    pub fn new(address: Address) -> Self {
        Self { address, mode: Mode::default(), group: None }
    }
}

/// A socket that cannot be listened on. One line that names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another process listens there.
    #[error("{path}: another process listens on this socket; expected none")]
    Taken {
        /// The socket.
        path: String,
    },
    /// Something else has the name.
    #[error("{path}: is not a socket; expected a socket or nothing there")]
    Foreign {
        /// The name.
        path: String,
    },
    /// The group does not exist.
    #[error("{path}: cannot give the socket to group {group}: {reason}")]
    Group {
        /// The socket.
        path: String,
        /// The group.
        group: Group,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refuses a step.
    #[error("{path}: cannot {step}: {source}")]
    System {
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
pub struct Socket {
    /// It goes first: while somebody listens, nobody else takes the place of the file, and so what is removed
    /// is ours.
    file: File,
    pub(super) listener: UnixListener,
}

/// A socket's file, told from a later one of the same name.
#[derive(Debug)]
struct File {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for File {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Socket {
    /// Listens. A socket that nobody listens on any more is replaced. Nobody can connect before mode and
    /// group are set.
    ///
    /// # Errors
    /// [`SocketError`]
    pub async fn bind(options: &SocketOptions) -> Result<Self, SocketError> {
        let path = options.address.path();
        let shown = || path.display().to_string();
        let failed =
            |step| move |source| SocketError::System { path: path.display().to_string(), step, source };
        let group = match &options.group {
            None => None,
            Some(group) => Some(group.id().map_err(|reason| SocketError::Group {
                path: shown(),
                group: group.clone(),
                reason,
            })?),
        };
        let _turn = turn(path).await.map_err(failed("lock its directory"))?;
        make_room(path).await?;
        let socket = UnixSocket::new_stream().map_err(failed("open a socket"))?;
        socket.bind(path).map_err(failed("bind the socket"))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("look at the socket"))?;
        // From here on the file goes with whatever fails.
        let file = File { path: path.to_owned(), identity: identity(&metadata) };
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group).map_err(failed("give the socket to its group"))?;
        }
        let mode = fs::Permissions::from_mode(options.mode.0);
        fs::set_permissions(path, mode).map_err(failed("set the socket's mode"))?;
        let listener = socket.listen(BACKLOG).map_err(failed("listen on the socket"))?;
        Ok(Self { listener, file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Waits for other processes that set up sockets in the same directory: between looking for a listener and
/// listening, two could each take the other's socket for a stale one.
async fn turn(path: &Path) -> io::Result<fs::File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = fs::File::open(parent)?;
    let locked = tokio::task::spawn_blocking(move || directory.lock().map(|()| directory));
    match tokio::time::timeout(PATIENCE, locked).await {
        Ok(Ok(locked)) => locked,
        Ok(Err(ended)) => Err(io::Error::other(ended)),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("another process has held its lock for {PATIENCE:?}"),
        )),
    }
}

/// Removes a socket that nobody listens on.
async fn make_room(path: &Path) -> Result<(), SocketError> {
    let shown = || path.display().to_string();
    let failed = |step| move |source| SocketError::System { path: path.display().to_string(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at what is there")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::Foreign { path: shown() }),
        Ok(_) => {}
    }
    match tokio::time::timeout(PATIENCE, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "replacing a socket that nobody listens on");
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Ok(Err(error)) => Err(failed("see whether anybody listens")(error)),
        // Whoever is too busy to take a connection listens all the same.
        Ok(Ok(_)) | Err(_) => Err(SocketError::Taken { path: shown() }),
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
