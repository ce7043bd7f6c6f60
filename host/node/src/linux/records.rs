//! Records on the disk: one file a volume, named by the digest of its handle. One process has them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cofferdam_domain::names;
use rustix::fs::{FlockOperation, flock};

use super::paths::Result;
use crate::{
    error::MachineError,
    record::{VolumeRecord, VolumeRecords},
};

/// Largest record in bytes: an attachment of 4 KiB and thousands of targets.
const MAX_RECORD: usize = 1 << 20;
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
        self.path.join(format!("{}.{ending}", names::sha256_hex([volume])))
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
        file.take(MAX_RECORD as u64).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
        serde_json::from_str(&text).map(Some).map_err(|error| fail(error.to_string()))
    }

    pub(super) fn get(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Self::read(&self.file(volume, ENDING))
    }

    pub(super) fn all(&self) -> Result<VolumeRecords> {
        let fail = |error: io::Error| MachineError::Failed(format!("the records' directory: {error}"));
        let mut records = VolumeRecords::default();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                // It may have been forgotten meanwhile, by a call for another volume.
                match Self::read(&path) {
                    Ok(record) => records.readable.extend(record),
                    Err(problem) => records.unreadable.push(problem.to_string()),
                }
            }
        }
        Ok(records)
    }

    pub(super) fn keep(&self, record: &VolumeRecord) -> Result<()> {
        let fail = |error: io::Error| MachineError::Failed(format!("the record of a volume: {error}"));
        let text = serde_json::to_vec(record).map_err(|error| MachineError::Failed(error.to_string()))?;
        if text.len() > MAX_RECORD {
            return Err(MachineError::Refused(format!(
                "the record of a volume would have {} bytes: expected at most {MAX_RECORD}",
                text.len()
            )));
        }
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
    use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

    use super::*;
    use crate::record::Target;

    fn record(volume: &str, staged: bool) -> VolumeRecord {
        VolumeRecord {
            volume: volume.to_owned(),
            staging: Some("/var/lib/kubelet/x".to_owned()),
            attachment: None,
            capability: VolumeCapability {
                access_mode: CsiAccessMode::SingleNodeWriter,
                access_type: AccessType::Block,
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
        assert_eq!(records.all().unwrap().readable.len(), 2);
        records.forget(one).unwrap();
        records.forget(one).unwrap();
        assert_eq!(records.all().unwrap().complete().unwrap(), [record(other, false)]);
        // One that cannot be read is named, and hides no other.
        let broken = records.file("broken", ENDING);
        fs::write(&broken, "{").unwrap();
        assert!(records.get("broken").is_err());
        let all = records.all().unwrap();
        assert_eq!(all.readable, [record(other, false)]);
        let problem = all.complete().unwrap_err().to_string();
        assert!(problem.contains(&broken.display().to_string()), "{problem}");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_kept() {
        let directory = tempfile::TempDir::new().unwrap();
        let records = Records::open(directory.path()).unwrap();
        let mut large = record("large", true);
        records.keep(&large).unwrap();
        let target = Target { capability: large.capability.clone(), read_only: false };
        let paths = (0..MAX_RECORD / 100).map(|number| (format!("/{number:0100}"), target.clone()));
        large.targets = paths.collect();
        let problem = records.keep(&large).unwrap_err().to_string();
        assert!(problem.contains("at most 1048576"), "{problem}");
        assert_eq!(records.get("large").unwrap(), Some(record("large", true)));
    }
}
