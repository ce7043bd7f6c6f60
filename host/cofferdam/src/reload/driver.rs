//! Takes over changes of a driver's section and of its files.

use std::collections::BTreeMap;

use cofferdam_wasm::{Engine, ReloadError};
use tokio::sync::watch;

use super::files::{FileVersions, file_version};
use crate::{
    config::BackendSection,
    drivers::{DriverKind, LoadedDriver, backend_config, component_source, read_secrets},
    error::CommandError,
};

/// The drivers' sections of the configuration on disk; `None` if that cannot be used.
pub(super) type Sections = Option<BTreeMap<String, BackendSection>>;

/// A running driver.
pub(super) struct ReloadableDriver {
    pub(super) name: String,
    kind: DriverKind,
    engine: Engine,
    /// The section and its files at the last attempt.
    section: BackendSection,
    pub(super) files: FileVersions,
    /// The error of the last attempt.
    pub(super) problem: Option<String>,
}

/// The reason why a driver does not use a changed section.
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error("a change of `{0}` needs a restart")]
    NeedsRestart(&'static str),
    #[error(transparent)]
    Secret(#[from] CommandError),
    #[error(transparent)]
    Reload(#[from] ReloadError),
}

impl ReloadableDriver {
    /// A driver that was loaded from `section`. `files` are the [`section_files`] from before the load, which
    /// can take long.
    pub(super) fn new(
        engine: Engine,
        driver: &LoadedDriver,
        section: BackendSection,
        files: FileVersions,
    ) -> Self {
        Self { name: driver.name.clone(), kind: driver.kind.clone(), engine, section, files, problem: None }
    }

    /// Checks for changes each time that the sections are sent.
    pub(super) async fn run(mut self, mut sections: watch::Receiver<Sections>) {
        while sections.changed().await.is_ok() {
            let section = self.section_of(&sections.borrow_and_update());
            self.check(section).await;
        }
    }

    /// The section to check. If the configuration on disk cannot be used, this is the running section, whose
    /// files may have changed. `None` if the configuration has no section of this driver.
    pub(super) fn section_of(&self, sections: &Sections) -> Option<BackendSection> {
        match sections {
            None => Some(self.section.clone()),
            Some(sections) => sections.get(&self.name).cloned(),
        }
    }

    /// Takes over a section, if it or one of its files has changed since the last attempt. A failure is
    /// logged once, and the driver continues with what it has.
    pub(super) async fn check(&mut self, section: Option<BackendSection>) {
        let Some(section) = section else { return };
        let files = section_files(&section);
        if self.section == section && self.files == files {
            return;
        }
        let updated = self.apply(&section).await;
        let may_succeed_later = matches!(updated, Err(UpdateError::Reload(ReloadError::NotReady { .. })));
        if !may_succeed_later {
            (self.section, self.files) = (section, files);
        }
        let backend = &self.name;
        match &updated {
            Ok(()) => tracing::info!(backend, "the changed configuration and files are in use"),
            Err(error) if self.problem != Some(error.to_string()) => {
                tracing::warn!(backend, "the changed configuration and files are not in use: {error}");
            }
            Err(_) => {}
        }
        self.problem = updated.err().map(|error| error.to_string());
    }

    async fn apply(&self, section: &BackendSection) -> Result<(), UpdateError> {
        if section.socket != self.section.socket {
            return Err(UpdateError::NeedsRestart("socket"));
        }
        match &self.kind {
            DriverKind::Csi(backend) => {
                if section.csi != self.section.csi {
                    return Err(UpdateError::NeedsRestart("csi"));
                }
                if section.driver_name != self.section.driver_name {
                    return Err(UpdateError::NeedsRestart("driver-name"));
                }
                backend.replace_secrets(read_secrets(&self.name, section)?);
                Ok(())
            }
            DriverKind::Component(backend) => {
                if section.csi.is_some() {
                    return Err(UpdateError::NeedsRestart("csi"));
                }
                let source = component_source(&self.name, section);
                let config = backend_config(&self.name, section)?;
                Ok(self.engine.reload(backend, source, config).await?)
            }
        }
    }
}

/// The versions of the files that a section names.
pub(super) fn section_files(section: &BackendSection) -> FileVersions {
    section.files().into_iter().map(|path| (path.clone(), file_version(&path))).collect()
}
