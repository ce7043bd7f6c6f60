//! Reads the configuration on disk again, and reports the changes that need a restart.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    driver::Sections,
    files::{FileVersions, file_version},
};
use crate::config::{ConfigError, Configuration, NodeRole, ResolvedConfig};

/// Resolves the configuration from its sources.
pub(crate) type ConfigSource = Box<dyn Fn() -> Result<ResolvedConfig, ConfigError> + Send + Sync>;

/// Compares the configuration on disk with that of the start.
pub(super) struct ConfigurationReloader {
    source: ConfigSource,
    settings: BTreeMap<&'static str, String>,
    /// Names of the running drivers' sections; `None` in a process that runs no drivers, and reads no
    /// section.
    pub(super) drivers: Option<BTreeSet<String>>,
    manifest: FileVersions,
    /// The last problem that was logged.
    pub(super) problem: Option<String>,
}

impl ConfigurationReloader {
    /// A reloader for a process that runs no drivers.
    pub(super) fn new(source: ConfigSource, resolved: &ResolvedConfig) -> Self {
        let manifest = manifest_file(&resolved.configuration);
        Self { source, settings: resolved.setting_values(), drivers: None, manifest, problem: None }
    }

    /// Reports the changes that need a restart, and returns the sections of the drivers.
    pub(super) fn check(&mut self) -> Sections {
        match (self.source)() {
            Ok(resolved) => {
                self.report(self.unsupported_changes(&resolved));
                Some(resolved.configuration.backend)
            }
            Err(error) => {
                self.report(Some(format!("the configuration on disk is not taken over: {error}")));
                None
            }
        }
    }

    /// Logs a problem once.
    fn report(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|problem| self.problem.as_ref() != Some(problem)) {
            tracing::warn!("{problem}");
        }
        self.problem = problem;
    }

    /// The changes that need a restart.
    fn unsupported_changes(&self, resolved: &ResolvedConfig) -> Option<String> {
        let settings = resolved.setting_values();
        let names = self.settings.keys().chain(settings.keys());
        let mut changed: BTreeSet<String> = names
            .filter(|name| self.settings.get(*name) != settings.get(*name))
            .map(|name| (*name).to_owned())
            .collect();
        if let Some(running) = &self.drivers {
            let sections = resolved.configuration.backend.keys().cloned().collect();
            let added_or_removed = running.symmetric_difference(&sections);
            changed.extend(added_or_removed.map(|name| format!("backend.{name}")));
        }
        if self.manifest.iter().any(|(path, version)| file_version(path) != *version) {
            changed.insert("manifest".to_owned());
        }
        (!changed.is_empty()).then(|| {
            format!(
                "the configuration on disk has changed; this change needs a restart: {}",
                changed.into_iter().collect::<Vec<_>>().join(", ")
            )
        })
    }
}

/// The file of the setting `manifest`, which the role `node` reads when it starts.
fn manifest_file(configuration: &Configuration) -> FileVersions {
    let is_read = configuration.role.node.contains(&NodeRole::Node);
    let manifest = configuration.manifest.iter().filter(|_| is_read);
    manifest.map(|path| (path.clone(), file_version(path))).collect()
}
