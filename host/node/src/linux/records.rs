//! Records on disk: one file per volume, named by the SHA-256 of its handle.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cofferdam_domain::{names, text::printable};
use rustix::fs::{FlockOperation, flock};

use super::{error::MounterSetupError, paths::Result};
use crate::{
    error::MounterError,
    record::{VolumeRecord, VolumeRecords},
};

/// Maximum size of a record in bytes. Enough for 4 KiB of connection info and thousands of targets with few
/// mount flags.
const MAX_RECORD_BYTES: usize = 1 << 20;
const RECORD_EXTENSION: &str = "json";
/// Extension of a record that is being saved.
const UNSAVED_EXTENSION: &str = "new";

/// Decodes the record in a file.
pub(super) fn decode(path: &Path, text: &str) -> Result<VolumeRecord> {
    serde_json::from_str(text).map_err(|error| {
        // The error quotes texts of the record.
        let problem = printable(&error.to_string());
        MounterError::Failed(format!("record {}: {problem}", path.display()))
    })
}

/// Encodes a record.
///
/// # Errors
/// [`MounterError::FailedPrecondition`] if it has more than [`MAX_RECORD_BYTES`].
pub(super) fn encode(record: &VolumeRecord) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(record).map_err(|error| MounterError::Failed(error.to_string()))?;
    if text.len() > MAX_RECORD_BYTES {
        return Err(MounterError::FailedPrecondition(format!(
            "the record of a volume would have {} bytes: expected at most {MAX_RECORD_BYTES}",
            text.len()
        )));
    }
    Ok(text)
}

/// A directory of records, locked by this process.
#[derive(Debug)]
pub(super) struct RecordStore {
    path: PathBuf,
    /// Holds the lock.
    directory: File,
}

impl RecordStore {
    /// Opens and locks the directory. Creates it if it does not exist. Removes what a process that died while it
    /// saved a record has left.
    ///
    /// # Errors
    /// [`MounterSetupError`] if the directory cannot be created, opened, locked or cleaned.
    pub(super) fn open(path: &Path) -> std::result::Result<Self, MounterSetupError> {
        let fail = |source: io::Error| MounterSetupError::Records { path: path.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
        let directory = File::open(path).map_err(fail)?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| MounterSetupError::RecordsLocked { path: path.to_owned() })?;
        for entry in fs::read_dir(path).map_err(fail)? {
            let file = entry.map_err(fail)?.path();
            if file.extension().is_some_and(|extension| extension == UNSAVED_EXTENSION) {
                fs::remove_file(file).map_err(fail)?;
            }
        }
        Ok(Self { path: path.to_owned(), directory })
    }

    fn record_path(&self, volume: &str, extension: &str) -> PathBuf {
        self.path.join(format!("{}.{extension}", names::sha256_hex([volume])))
    }

    fn read(path: &Path) -> Result<Option<VolumeRecord>> {
        let fail = |problem: String| MounterError::Failed(format!("record {}: {problem}", path.display()));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error.to_string())),
        };
        let mut text = String::new();
        file.take(MAX_RECORD_BYTES as u64)
            .read_to_string(&mut text)
            .map_err(|error| fail(error.to_string()))?;
        decode(path, &text).map(Some)
    }

    pub(super) fn get(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        Self::read(&self.record_path(volume, RECORD_EXTENSION))
    }

    pub(super) fn list(&self) -> Result<VolumeRecords> {
        let fail = |error: io::Error| MounterError::Failed(format!("the records' directory: {error}"));
        let mut records = VolumeRecords::default();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if path.extension().is_some_and(|extension| extension == RECORD_EXTENSION) {
                // A call for another volume may have deleted it in the meantime.
                match Self::read(&path) {
                    Ok(record) => records.readable.extend(record),
                    Err(problem) => records.unreadable.push(problem.to_string()),
                }
            }
        }
        Ok(records)
    }

    pub(super) fn save(&self, record: &VolumeRecord) -> Result<()> {
        let fail = |error: io::Error| MounterError::Failed(format!("the record of a volume: {error}"));
        let text = encode(record)?;
        let (path, new) = (
            self.record_path(&record.volume, RECORD_EXTENSION),
            self.record_path(&record.volume, UNSAVED_EXTENSION),
        );
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(fail)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&new, &path).and_then(|()| self.directory.sync_all()).map_err(fail)
    }

    pub(super) fn delete(&self, volume: &str) -> Result<()> {
        let fail = |error: io::Error| MounterError::Failed(format!("the record of a volume: {error}"));
        match fs::remove_file(self.record_path(volume, RECORD_EXTENSION)) {
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
    use crate::record::TargetRecord;

    fn record(volume: &str, staged: bool) -> VolumeRecord {
        VolumeRecord {
            volume: volume.to_owned(),
            staging_path: Some("/var/lib/kubelet/x".to_owned()),
            connection_info: None,
            capability: VolumeCapability {
                access_mode: CsiAccessMode::SingleNodeWriter,
                access_type: AccessType::Block,
            },
            size: None,
            image_id: None,
            device_number: None,
            format_in_progress: false,
            is_staged: staged,
            targets: Default::default(),
        }
    }

    #[test]
    fn records_are_saved_replaced_and_deleted() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("deep/records");
        let records = RecordStore::open(&path).unwrap();
        assert!(RecordStore::open(&path).unwrap_err().to_string().contains("another process"));
        let (first, other) = ("a/../b\n", "other");
        records.save(&record(first, false)).unwrap();
        records.save(&record(first, true)).unwrap();
        records.save(&record(other, false)).unwrap();
        drop(records);
        let records = RecordStore::open(&path).unwrap();
        assert_eq!(records.get(first).unwrap(), Some(record(first, true)));
        assert_eq!(records.get("unknown").unwrap(), None);
        assert_eq!(records.list().unwrap().readable.len(), 2);
        records.delete(first).unwrap();
        records.delete(first).unwrap();
        assert_eq!(records.list().unwrap().all_or_error().unwrap(), [record(other, false)]);
        // An unreadable record is reported and does not hide others.
        let broken = records.record_path("broken", RECORD_EXTENSION);
        fs::write(&broken, "{").unwrap();
        assert!(records.get("broken").is_err());
        let text = serde_json::to_string(&record("x", true)).unwrap();
        let text = text.replace(r#""block""#, r#""block\n\u001b[2J""#);
        let unknown_variant = decode(&broken, &text).unwrap_err().to_string();
        assert!(!unknown_variant.contains(char::is_control), "{unknown_variant:?}");
        let all = records.list().unwrap();
        assert_eq!(all.readable, [record(other, false)]);
        let problem = all.all_or_error().unwrap_err().to_string();
        assert!(problem.contains(&broken.display().to_string()), "{problem}");
    }

    #[test]
    fn an_interrupted_save_leaves_no_file() {
        let directory = tempfile::TempDir::new().unwrap();
        let records = RecordStore::open(directory.path()).unwrap();
        records.save(&record("volume", true)).unwrap();
        let unsaved = records.record_path("volume", UNSAVED_EXTENSION);
        fs::write(&unsaved, "{").unwrap();
        drop(records);
        let records = RecordStore::open(directory.path()).unwrap();
        assert!(!unsaved.exists());
        assert_eq!(records.get("volume").unwrap(), Some(record("volume", true)));
    }

    #[test]
    fn record_above_the_size_limit_is_not_saved() {
        let directory = tempfile::TempDir::new().unwrap();
        let records = RecordStore::open(directory.path()).unwrap();
        let mut large = record("large", true);
        records.save(&large).unwrap();
        let target = TargetRecord { capability: large.capability.clone(), read_only: false };
        let paths = (0..MAX_RECORD_BYTES / 100).map(|number| (format!("/{number:0100}"), target.clone()));
        large.targets = paths.collect();
        let problem = records.save(&large).unwrap_err().to_string();
        assert!(problem.contains("at most 1048576"), "{problem}");
        assert_eq!(records.get("large").unwrap(), Some(record("large", true)));
    }
}
