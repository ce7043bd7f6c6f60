//! Attributes of devices in sysfs.

use std::{fs, io, path::Path};

use rustix::io::Errno;

use super::paths::Result;
use crate::error::MounterError;

/// Reads an attribute without the white space around it; `None` if it does not exist, or no longer.
pub(super) fn read_attribute(directory: &Path, name: &str) -> Result<Option<String>> {
    let path = directory.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(MounterError::Failed(format!("{}: {error}", path.display()))),
    }
}

/// Returns true if the error of an attribute says that its device does not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}
