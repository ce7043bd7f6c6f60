//! The kubeconfig of dev mode. Only the user that runs dev mode can read the file, and dev mode removes it at
//! the end.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::error::CommandError;

/// First line of the file. It identifies a file that a killed process left behind.
const HEADER: &str = "# Written by `cofferdam dev`, which removes it at the end.\n";

/// An error of writing the kubeconfig.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    #[error("cannot write the kubeconfig {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{} exists and was not written by cofferdam: expected an unused path for the kubeconfig",
        path.display()
    )]
    NotOwned { path: PathBuf },
}

impl From<KubeconfigError> for CommandError {
    fn from(error: KubeconfigError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// A written kubeconfig; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct KubeconfigFile {
    path: PathBuf,
    /// The directory that was created for the file, and is removed with it; `None` for a path that the user
    /// chose.
    directory: Option<PathBuf>,
}

impl KubeconfigFile {
    /// Writes to `path`, or to a new directory under `base`.
    ///
    /// # Errors
    /// [`KubeconfigError`], with the path.
    pub(crate) fn write(path: Option<&Path>, base: &Path, text: &str) -> Result<Self, KubeconfigError> {
        let file = match path {
            Some(path) => {
                remove_own_file(path)?;
                Self { path: path.to_owned(), directory: None }
            }
            None => {
                let directory = base.join(format!("cofferdam-{}", std::process::id()));
                create_directory(&directory)?;
                Self { path: directory.join("kubeconfig"), directory: Some(directory) }
            }
        };
        let failed = |source| KubeconfigError::Write { path: file.path.clone(), source };
        // The file has the token: do not follow links, and do not let others read it.
        let mut out =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file.path).map_err(failed)?;
        out.write_all(HEADER.as_bytes()).and_then(|()| out.write_all(text.as_bytes())).map_err(failed)?;
        Ok(file)
    }

    /// Path of the written file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates a private directory. A killed process with the same id may have left one behind.
fn create_directory(directory: &Path) -> Result<(), KubeconfigError> {
    let failed = |source| KubeconfigError::Write { path: directory.to_owned(), source };
    let build = || DirBuilder::new().mode(0o700).create(directory);
    match build() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove_own_file(&directory.join("kubeconfig"))?;
            std::fs::remove_dir(directory).and_then(|()| build()).map_err(failed)
        }
        result => result.map_err(failed),
    }
}

fn remove_own_file(path: &Path) -> Result<(), KubeconfigError> {
    let failed = |source| KubeconfigError::Write { path: path.to_owned(), source };
    let mut start = vec![0; HEADER.len()];
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(failed)?,
    };
    let read = file.take(HEADER.len() as u64).read(&mut start).map_err(failed)?;
    if start.get(..read) == Some(HEADER.as_bytes()) {
        std::fs::remove_file(path).map_err(failed)
    } else {
        Err(KubeconfigError::NotOwned { path: path.to_owned() })
    }
}

impl Drop for KubeconfigFile {
    fn drop(&mut self) {
        let mut removed = match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        if let Some(directory) = &self.directory {
            removed = removed.and_then(|()| std::fs::remove_dir(directory));
        }
        if let Err(error) = removed {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the kubeconfig");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cofferdam-test-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_kubeconfig_is_private_and_removed_on_drop() {
        let scratch = TestDirectory::new("own");
        let file = KubeconfigFile::write(None, &scratch.0, "kind: Config\n").unwrap();
        let path = file.path().to_owned();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("kind: Config\n"));
        drop(file);
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    }

    #[test]
    fn the_kubeconfig_of_a_killed_process_is_replaced() {
        let scratch = TestDirectory::new("left");
        std::mem::forget(KubeconfigFile::write(None, &scratch.0, "old").unwrap());
        let file = KubeconfigFile::write(None, &scratch.0, "new").unwrap();
        assert!(std::fs::read_to_string(file.path()).unwrap().ends_with("new"));
    }

    #[test]
    fn a_file_of_another_program_is_not_overwritten() {
        let scratch = TestDirectory::new("foreign");
        let path = scratch.0.join("config");
        std::fs::write(&path, "mine").unwrap();
        let error = KubeconfigFile::write(Some(&path), &scratch.0, "new").unwrap_err();
        assert!(error.to_string().contains("exists and was not written by cofferdam"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
