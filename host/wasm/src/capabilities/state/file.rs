//! Blobs in an embedded database file, durable with every commit.
//!
//! Entries, their size and the version counter change in one transaction, which is on the disk when a commit
//! returns. However the process ends, the file has every committed change, completely.

use std::{
    fs::{self, OpenOptions},
    io,
    ops::Bound::{Excluded, Included, Unbounded},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock},
};

use redb::{
    Builder, Database, DatabaseError, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _,
    ReadableTableMetadata as _, TableDefinition,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

#[cfg(test)]
use super::full_disk::new_backend;
use super::rules::{
    ExistingEntry, PageBuilder, StateCommitError, check_limit, cost, key_of, size_after_change,
};
use crate::{
    bindings::cofferdam::storage::state::{Change, Entry, Page, Put, Remove, StateError},
    capabilities::lock_file::{LockFile, LockFileError},
};

/// Key to version and value.
const ENTRIES_TABLE: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("cofferdam-state");
/// Metadata of the file: format, last version, and bytes of all entries.
const METADATA_TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("cofferdam-state-whole");
/// Key of the layout's version.
const FORMAT_KEY: &str = "format";
/// Key of the version of the last commit.
const VERSION_KEY: &str = "version";
/// Key of the size of all entries.
const BYTES_KEY: &str = "bytes";
/// Version of the layout of these tables.
const FORMAT_VERSION: u64 = 1;
/// Page cache of the database, in bytes: the upper levels of its trees and recent pages.
const CACHE_BYTES: usize = 8 << 20;
/// Only this process' user may read and write the file: the state is private to the driver.
const FILE_MODE: u32 = 0o600;

/// A state file that cannot be used. The message follows the file's name.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The path cannot be resolved, and has no file name: it is empty or ends in `..`.
    #[error("is no name of a file: expected one such as `state.redb`")]
    NotAFileName,
    /// The path cannot be resolved, and neither can its directory, such as one that does not exist.
    #[error("cannot be made: {source}: expected its directory {} to exist", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The lock file cannot be opened or created.
    #[error("has a lock file that cannot be opened: {0}")]
    OpenLockFile(#[source] io::Error),
    /// The lock file is locked already, or cannot be locked or written.
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    /// The path is that of a directory, a pipe or a device.
    #[error("is not a regular file: expected a state file of this program")]
    NotAFile,
    /// The file is empty: it is another program's, or has lost its content. A new state file gets its name
    /// only when it is complete.
    #[error("is empty: expected a state file of this program, or none")]
    Empty,
    /// The file's metadata cannot be read.
    #[error("cannot be read: {0}")]
    Metadata(#[source] io::Error),
    /// The file cannot be opened.
    #[error("cannot be opened: {0}: expected to read and write it")]
    Open(#[source] io::Error),
    /// A new file cannot be created, renamed to its name or made durable; or the file that an interrupted
    /// creation left cannot be removed.
    #[error("cannot be made: {0}")]
    Create(#[source] io::Error),
    /// No database can be created in the new file.
    #[error("cannot be made: {0}")]
    CreateDatabase(#[source] redb::Error),
    /// The database is locked although the lock file was not: another program has it open, or a backend that
    /// opened the file under another name (hard link).
    #[error("is in use by another process; expected to be its only user")]
    InUse,
    /// The library of the database cannot open the file: it is not a database, is damaged or in an old
    /// format, or cannot be read.
    #[error("cannot be used: {0}: expected a whole state file of this program; it was not changed")]
    InvalidDatabase(#[source] DatabaseError),
    /// The library of the database panicked while it opened the file, which is damaged in a way that the
    /// library does not check for.
    #[error("is damaged: expected a whole state file of this program")]
    Damaged,
    /// A table of state files cannot be opened: the database lacks it, has it with other types, or cannot be
    /// read.
    #[error("is another program's database: {0}: expected a state file")]
    OtherDatabase(#[source] redb::Error),
    /// The file's metadata table or its number of entries cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] redb::StorageError),
    /// The file has another version of the layout; 0 if it names none.
    #[error("has the format {0}; this program reads format {FORMAT_VERSION}")]
    Format(u64),
}

/// Blobs in a file.
#[derive(Debug)]
pub(super) struct FileBlobs {
    limit: usize,
    path: PathBuf,
    /// `None` after a failure, until the file is opened again: after a failed write, such as to a full disk,
    /// redb rejects every further access.
    database: RwLock<Option<Database>>,
    /// Number of entries and their bytes after the last commit; readable without disk access.
    usage: Mutex<(usize, usize)>,
    /// One commit at a time, so that `usage` follows the database.
    write_lock: Mutex<()>,
    _lock_file: LockFile,
}

impl FileBlobs {
    /// Opens a database, and creates it if there is no file. A file that is not a state file is not changed.
    pub(super) fn open(path: &Path, limit: usize) -> Result<Self, StateFileError> {
        let path = canonical_path(path)?;
        let mut lock = OpenOptions::new();
        lock.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let lock = lock.open(with_suffix(&path, ".lock")).map_err(StateFileError::OpenLockFile)?;
        let ownership = LockFile::acquire(lock)?;
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Err(StateFileError::NotAFile),
            Ok(found) if found.len() == 0 => return Err(StateFileError::Empty),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => create_database(&path)?,
            Err(error) => return Err(StateFileError::Metadata(error)),
        }
        let database = open_database(&path)?;
        let (entries, bytes) = check_format(&database)?;
        Ok(Self {
            limit,
            path,
            database: RwLock::new(Some(database)),
            usage: Mutex::new((entries, bytes)),
            write_lock: Mutex::default(),
            _lock_file: ownership,
        })
    }

    pub(super) fn usage(&self) -> (usize, usize) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keys(&self) -> Result<Vec<String>, StateError> {
        self.read(|entries| {
            let entries = entries.range::<&str>(..).map_err(unavailable)?;
            entries.map(|entry| Ok(entry.map_err(unavailable)?.0.value().to_owned())).collect()
        })
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.read(|entries| {
            let found = entries.get(key).map_err(unavailable)?;
            Ok(found.map(|found| {
                let (version, value) = found.value();
                Entry { value: value.to_vec(), version }
            }))
        })
    }

    /// Reads the entries.
    fn read<T>(
        &self,
        read: impl FnOnce(&ReadOnlyTable<&'static str, (u64, &'static [u8])>) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.with_database(|database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            read(&transaction.open_table(ENTRIES_TABLE).map_err(unavailable)?)
        })
    }

    /// Calls `access` with the database, which is opened again after an error of it.
    fn with_database<T, E: MayBeUnavailable>(
        &self,
        access: impl FnOnce(&Database) -> Result<T, E>,
    ) -> Result<T, E> {
        self.reopen()?;
        let result = match &*self.database.read().unwrap_or_else(PoisonError::into_inner) {
            Some(database) => access(database),
            None => Err(StateError::Unavailable("another call has failed".to_owned()).into()),
        };
        if result.as_ref().is_err_and(E::is_unavailable) {
            *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        result
    }

    /// Opens the file again, if an access has failed.
    fn reopen(&self) -> Result<(), StateError> {
        if self.database.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            let opened = open_database(&self.path).and_then(|opened| Ok((check_format(&opened)?, opened)));
            let (usage, opened) =
                opened.map_err(|error| StateError::Unavailable(format!("the file {error}")))?;
            *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
            *database = Some(opened);
        }
        Ok(())
    }

    pub(super) fn commit(&self, changes: &[Change]) -> Result<u64, StateCommitError> {
        let _writing = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, usage) = self.with_database(|database| {
            let transaction = database.begin_write().map_err(unavailable)?;
            let applied = apply_changes(&transaction, changes, self.limit)?;
            // Until now the file is unchanged; from now on the result is unknown until the commit succeeds.
            transaction.commit().map_err(|error| StateCommitError::Unknown(error.to_string()))?;
            Ok::<_, StateCommitError>(applied)
        })?;
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
        Ok(version)
    }

    pub(super) fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        mut pager: PageBuilder,
    ) -> Result<Page, StateError> {
        self.read(|entries| {
            let start = after.map_or(Included(prefix), Excluded);
            for entry in entries.range::<&str>((start, Unbounded)).map_err(unavailable)? {
                let (key, blob) = entry.map_err(unavailable)?;
                let (version, value) = blob.value();
                if !key.value().starts_with(prefix) || !pager.try_push(key.value(), value, version) {
                    break;
                }
            }
            Ok(pager.page)
        })
    }
}

/// Errors that may be those of the database.
trait MayBeUnavailable: From<StateError> {
    /// Returns true if the database has failed.
    fn is_unavailable(&self) -> bool;
}

impl MayBeUnavailable for StateError {
    fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

impl MayBeUnavailable for StateCommitError {
    fn is_unavailable(&self) -> bool {
        match self {
            Self::Rejected(error) => error.is_unavailable(),
            Self::Unknown(_) => true,
        }
    }
}

/// Applies changes to a transaction. Returns their version, and the number and bytes of all entries after
/// them.
fn apply_changes(
    transaction: &redb::WriteTransaction,
    changes: &[Change],
    limit: usize,
) -> Result<(u64, (usize, usize)), StateError> {
    let mut entries = transaction.open_table(ENTRIES_TABLE).map_err(unavailable)?;
    let mut metadata = transaction.open_table(METADATA_TABLE).map_err(unavailable)?;
    let before = to_usize(read_counter(&metadata, BYTES_KEY)?);
    let version = read_counter(&metadata, VERSION_KEY)?.saturating_add(1);
    let mut bytes = before;
    for change in changes {
        let key = key_of(change);
        let found = entries.get(key).map_err(unavailable)?.map(|found| {
            let (version, value) = found.value();
            ExistingEntry { version, cost: cost(key, value) }
        });
        bytes = size_after_change(bytes, change, found)?;
    }
    check_limit(limit, before, bytes)?;
    for change in changes {
        match change {
            Change::Put(Put { key, value, .. }) => {
                entries.insert(key.as_str(), (version, value.as_slice())).map_err(unavailable)?;
            }
            Change::Remove(Remove { key, .. }) => {
                entries.remove(key.as_str()).map_err(unavailable)?;
            }
        }
    }
    metadata.insert(VERSION_KEY, version).map_err(unavailable)?;
    metadata.insert(BYTES_KEY, u64::try_from(bytes).unwrap_or(u64::MAX)).map_err(unavailable)?;
    Ok((version, (to_usize(entries.len().map_err(unavailable)?), bytes)))
}

fn read_counter(
    metadata: &impl redb::ReadableTable<&'static str, u64>,
    key: &str,
) -> Result<u64, StateError> {
    Ok(metadata.get(key).map_err(unavailable)?.map_or(0, |number| number.value()))
}

fn to_usize(number: u64) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

fn unavailable(error: impl Into<redb::Error>) -> StateError {
    StateError::Unavailable(error.into().to_string())
}

/// Resolves a path, or only its directory if the file does not exist, so that every path to a file leads to
/// the same lock file.
fn canonical_path(path: &Path) -> Result<PathBuf, StateFileError> {
    if let Ok(real) = path.canonicalize() {
        return Ok(real);
    }
    let name = path.file_name().ok_or(StateFileError::NotAFileName)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent
        .canonicalize()
        .map_err(|source| StateFileError::Directory { directory: parent.to_owned(), source })?;
    Ok(parent.join(name))
}

fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Creates an empty database. It gets its name when it is complete on the disk.
fn create_database(path: &Path) -> Result<(), StateFileError> {
    let tmp_path = with_suffix(path, ".new");
    // Left by a process that died here. No other process uses it: this one has the lock.
    match fs::remove_file(&tmp_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StateFileError::Create(error)),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(&tmp_path);
    let file = file.map_err(StateFileError::Create)?;
    let create_tables = || -> Result<(), redb::Error> {
        let database = open_file(file)?;
        let transaction = database.begin_write()?;
        transaction.open_table(ENTRIES_TABLE)?;
        transaction.open_table(METADATA_TABLE)?.insert(FORMAT_KEY, FORMAT_VERSION)?;
        Ok(transaction.commit()?)
    };
    create_tables().map_err(StateFileError::CreateDatabase)?;
    // Never replaces anything, not even a dangling symbolic link.
    renameat_with(CWD, &tmp_path, CWD, path, RenameFlags::NOREPLACE)
        .map_err(|error| StateFileError::Create(error.into()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(StateFileError::Create)
}

/// Opens an existing database. Every page is checked, which costs as much as reading the file once.
fn open_database(path: &Path) -> Result<Database, StateFileError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(StateFileError::Open)?;
    // redb panics on some kinds of damage that its checks do not detect. Nothing of the database is used
    // then.
    let opened = std::panic::catch_unwind(|| open_file(file));
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch)) => {
            Err(StateFileError::InUse)
        }
        Ok(Err(error)) => Err(StateFileError::InvalidDatabase(error)),
        Err(_) => Err(StateFileError::Damaged),
    }
}

fn open_file(file: fs::File) -> Result<Database, DatabaseError> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder.create_with_backend(new_backend(file)?)
}

#[cfg(not(test))]
fn new_backend(file: fs::File) -> Result<redb::backends::FileBackend, DatabaseError> {
    redb::backends::FileBackend::new(file)
}

/// Checks that a database is a state file. Returns the number and the size of its entries.
fn check_format(database: &Database) -> Result<(usize, usize), StateFileError> {
    let tables = || -> Result<_, redb::Error> {
        let transaction = database.begin_read()?;
        Ok((transaction.open_table(ENTRIES_TABLE)?, transaction.open_table(METADATA_TABLE)?))
    };
    let (entries, metadata) = tables().map_err(StateFileError::OtherDatabase)?;
    let number = |key| Ok::<_, redb::StorageError>(metadata.get(key)?.map_or(0, |number| number.value()));
    let format = number(FORMAT_KEY)?;
    if format != FORMAT_VERSION {
        return Err(StateFileError::Format(format));
    }
    Ok((to_usize(entries.len()?), to_usize(number(BYTES_KEY)?)))
}
