//! Secrets in files.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Longest secret, in bytes; Kubernetes' limit for a whole Secret.
const MAX_SECRET_BYTES: u64 = 1 << 20;

/// A secret that cannot be read. The error names the file and never quotes its content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretFileError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has {size} bytes: expected at most {MAX_SECRET_BYTES}", path.display())]
    TooLarge { path: PathBuf, size: u64 },
}

/// Reads a secret from a file, without its final line break.
///
/// # Errors
/// [`SecretFileError`]
pub(crate) fn read_secret(path: &Path) -> Result<String, SecretFileError> {
    let failed = |source| SecretFileError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_SECRET_BYTES {
        return Err(SecretFileError::TooLarge { path: path.to_owned(), size });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    // Editors and `echo` end a file with a line break that is not part of the password.
    Ok(text
        .strip_suffix('\n')
        .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line))
        .to_owned())
}
