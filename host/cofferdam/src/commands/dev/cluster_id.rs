//! The id of dev mode's cluster. Drivers store it with their volumes, so it is the same for all runs in a
//! directory: a later run finds what a killed one left.

use std::{
    env,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use cofferdam_domain::ClusterId;
use sha2::{Digest as _, Sha256};

/// Length of the names of the files with ids, in hexadecimal digits.
const NAME_DIGITS: usize = 16;
/// Largest id in a file, in bytes.
const MAX_ID_BYTES: u64 = 64;

/// The cluster's id, reserved for this process.
#[derive(Debug)]
pub(super) struct DevClusterId {
    /// The id.
    pub(super) id: ClusterId,
    /// True if later runs in the directory have the same id.
    pub(super) is_stored: bool,
    /// Locked while the process runs: two clusters with one id would delete each other's volumes. `None` for
    /// an id of this run only.
    _file: Option<File>,
}

impl DevClusterId {
    /// The id of the current directory. An id of this run only, with a warning, if the directory's id is in use
    /// or cannot be stored.
    pub(super) fn of_current_directory() -> Self {
        let reserved =
            state_directory().and_then(|states| Self::reserve(&states, &key_of(&env::current_dir()?)?));
        reserved.unwrap_or_else(|error| {
            tracing::warn!(
                "volumes of this run cannot be recognised by a later one, because its cluster id is new: {error}"
            );
            Self { id: new_id(), is_stored: false, _file: None }
        })
    }

    /// Reserves the id of a directory's key, which is in a file in `states`.
    fn reserve(states: &Path, key: &[u8]) -> io::Result<Self> {
        fs::create_dir_all(states)?;
        let mut name = format!("{:x}", Sha256::digest(key));
        name.truncate(NAME_DIGITS);
        let path = states.join(name);
        let describe = |problem: String| io::Error::other(format!("{}: {problem}", path.display()));
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                describe("another `cofferdam dev` uses the id of this directory".to_owned())
            }
            TryLockError::Error(error) => error,
        })?;
        let mut text = String::new();
        (&mut file).take(MAX_ID_BYTES + 1).read_to_string(&mut text)?;
        let id = match text.trim() {
            "" => {
                let id = new_id();
                file.rewind()?;
                file.write_all(id.as_str().as_bytes())?;
                file.sync_all()?;
                id
            }
            id if is_uuid(id) => ClusterId::new(id),
            _ => return Err(describe("expected a UUID".to_owned())),
        };
        Ok(Self { id, is_stored: true, _file: Some(file) })
    }
}

/// Identifies a directory on this machine. Machines that share the user's home directory have directories with
/// the same path.
fn key_of(directory: &Path) -> io::Result<Vec<u8>> {
    let machine = fs::read("/etc/machine-id").unwrap_or_default();
    let metadata = fs::metadata(directory)?;
    let place = format!("{}:{}", metadata.dev(), metadata.ino());
    Ok([directory.as_os_str().as_bytes(), place.as_bytes(), &machine].join(&0))
}

/// The directory with the ids of all directories.
fn state_directory() -> io::Result<PathBuf> {
    let absolute = |variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|states| states.join("cofferdam/dev"))
        .ok_or_else(|| io::Error::other("neither XDG_STATE_HOME nor HOME is an absolute path"))
}

fn new_id() -> ClusterId {
    ClusterId::new(cofferdam_apiserver::new_uid())
}

/// Reports if a text has the form of [`new_id`].
fn is_uuid(text: &str) -> bool {
    let is_part = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
    text.split('-').all(is_part) && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_id_and_lends_it_to_one_process() {
        let states = tempfile::tempdir().unwrap();
        let reserve = |directory: &str| DevClusterId::reserve(states.path(), directory.as_bytes());
        let first = reserve("/a").unwrap();
        let id = first.id.clone();
        assert_ne!(reserve("/b").unwrap().id, id);
        let error = reserve("/a").unwrap_err().to_string();
        assert!(error.contains("another `cofferdam dev` uses the id"), "{error}");
        drop(first);
        assert_eq!(reserve("/a").unwrap().id, id);
    }

    #[test]
    fn directories_have_different_keys() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(key_of(one.path()).unwrap(), key_of(one.path()).unwrap());
        assert_ne!(key_of(one.path()).unwrap(), key_of(other.path()).unwrap());
    }

    #[test]
    fn a_file_that_is_no_id_is_named_and_kept() {
        let states = tempfile::tempdir().unwrap();
        drop(DevClusterId::reserve(states.path(), b"/a").unwrap());
        let file = fs::read_dir(states.path()).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, "x".repeat(1_000)).unwrap();
        let error = DevClusterId::reserve(states.path(), b"/a").unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()) && error.ends_with("expected a UUID"), "{error}");
        assert_eq!(fs::read(&file).unwrap().len(), 1_000);
    }
}
