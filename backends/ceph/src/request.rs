//! Checks of requests.

use cofferdam_guest::{AccessMode, AccessType, Result, StorageError, VolumeCapability, handle};

/// Fails with `invalid-argument` if a volume or snapshot cannot have the name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > handle::MAX_LENGTH || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "the name has {} bytes; expected 1 to {} without control characters",
            name.len(),
            handle::MAX_LENGTH
        )));
    }
    Ok(())
}

/// The capabilities of a volume, one a line. Fails with `invalid-argument` if one is not supported.
pub(crate) fn capabilities(capabilities: &[VolumeCapability]) -> Result<String> {
    let is_shared_filesystem = |capability: &VolumeCapability| {
        matches!(capability.mode, AccessMode::MultiNodeSingleWriter | AccessMode::MultiNodeMultiWriter)
            && matches!(capability.access, AccessType::Filesystem(_))
    };
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no volume capability was given; expected at least one"));
    }
    if capabilities.iter().any(is_shared_filesystem) {
        return Err(StorageError::invalid_argument(
            "a filesystem of an RBD image is written on one node; volumeMode Block is supported on several",
        ));
    }
    let mut lines: Vec<_> = capabilities.iter().map(VolumeCapability::canonical_string).collect();
    lines.sort();
    lines.dedup();
    Ok(lines.join("\n"))
}
