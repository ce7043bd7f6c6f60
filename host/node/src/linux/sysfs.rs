//! Attributes of devices in sysfs.

use std::{fs, io, path::Path};

use rustix::io::Errno;

use super::paths::Result;
use crate::error::MounterError;

/// Reads an attribute without the line feed at its end; `None` if it does not exist, or no longer.
pub(super) fn read_attribute(directory: &Path, name: &str) -> Result<Option<String>> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(content) => Ok(Some(attribute_text(&content))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(MounterError::Failed(format!("{}: {error}", path.display()))),
    }
}

/// Returns the text of an attribute. NVMe subsystems and Ceph clusters choose some texts, of any bytes: one that is
/// not UTF-8 must not fail the list of all devices. It gets U+FFFD, which no valid name has. White space before the
/// kernel's line feed is a part of the text.
pub(super) fn attribute_text(content: &[u8]) -> String {
    String::from_utf8_lossy(content.strip_suffix(b"\n").unwrap_or(content)).into_owned()
}

/// Returns true if the error of an attribute says that its device does not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}
