//! Records on the disk: one file a volume, named by the digest of its handle. One process has them.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

use super::paths::Result;
use crate::{error::MachineError, record::VolumeRecord};

/// Largest record that is read, in bytes: an attachment of 4 KiB and thousands of targets.
const MAX_RECORD: u64 = 1 << 20;
const ENDING: &str = "json";

/// A directory of records.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    /// Locked for as long as this lives.
    directory: File,
}

impl Records {
    /// Opens the directory, and makes it where there is none.
    ///
    /// # Errors
    /// When another process has it, or it cannot be made.
    pub(super) fn open(path: &Path) -> std::result::Result<Self, String> {
        let fail = |error: io::Error| format!("the records' directory {}: {error}", path.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
        let directory = File::open(path).map_err(fail)?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("the records' directory {} belongs to another process", path.display()))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    fn file(&self, volume: &str, ending: &str) -> PathBuf {
        let mut name = String::new();
        for byte in Sha256::digest(volume.as_bytes()) {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        self.path.join(format!("{name}.{ending}"))
    }

    fn read(path: &Path) -> Result<Option<VolumeRecord>> {
        let fail =
            |problem: String| MachineError::Failed(format!("the record {}: {problem}", path.display()));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error.to_string())),
        };
        let mut text = String::new();
        file.take(MAX_RECORD).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
        serde_json::from_str(&text).map(Some).map_err(|error| fail(error.to_string()))
    }

    pub(super) fn get(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Self::read(&self.file(volume, ENDING))
    }

    pub(super) fn all(&self) -> Result<Vec<VolumeRecord>> {
        let fail = |error: io::Error| MachineError::Failed(format!("the records' directory: {error}"));
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                // It may have been forgotten meanwhile, by a call for another volume.
                records.extend(Self::read(&path)?);
            }
        }
        Ok(records)
    }

    pub(super) fn keep(&self, record: &VolumeRecord) -> Result<()> {
        let fail = |error: io::Error| MachineError::Failed(format!("the record of a volume: {error}"));
        let text = serde_json::to_vec(record).map_err(|error| MachineError::Failed(error.to_string()))?;
        let (path, new) = (self.file(&record.volume, ENDING), self.file(&record.volume, "new"));
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(fail)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&new, &path).and_then(|()| self.directory.sync_all()).map_err(fail)
    }

    pub(super) fn forget(&self, volume: &str) -> Result<()> {
        let fail = |error: io::Error| MachineError::Failed(format!("the record of a volume: {error}"));
        match fs::remove_file(self.file(volume, ENDING)) {
            Ok(()) => self.directory.sync_all().map_err(fail),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(fail(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::{AccessType, CapabilityMode, VolumeCapability};

    use super::*;

    fn record(volume: &str, staged: bool) -> VolumeRecord {
        VolumeRecord {
            volume: volume.to_owned(),
            staging: Some("/var/lib/kubelet/x".to_owned()),
            attachment: None,
            capability: VolumeCapability {
                mode: CapabilityMode::SingleNodeWriter,
                access: AccessType::Block,
            },
            size: None,
            image: None,
            device: None,
            formatting: false,
            staged,
            targets: Default::default(),
        }
    }

    #[test]
    fn records_stay_and_go() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("deep/records");
        let records = Records::open(&path).unwrap();
        assert!(Records::open(&path).unwrap_err().contains("another process"));
        let (one, other) = ("a/../b\n", "other");
        records.keep(&record(one, false)).unwrap();
        records.keep(&record(one, true)).unwrap();
        records.keep(&record(other, false)).unwrap();
        drop(records);
        let records = Records::open(&path).unwrap();
        assert_eq!(records.get(one).unwrap(), Some(record(one, true)));
        assert_eq!(records.get("nobody").unwrap(), None);
        assert_eq!(records.all().unwrap().len(), 2);
        records.forget(one).unwrap();
        records.forget(one).unwrap();
        assert_eq!(records.all().unwrap(), [record(other, false)]);
        fs::write(records.file("broken", ENDING), "{").unwrap();
        assert!(records.get("broken").is_err() && records.all().is_err());
    }
}
