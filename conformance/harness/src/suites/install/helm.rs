//! Helm, as a user of the chart runs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    control_plane::{ApiUser, ControlPlane},
    process,
    run::SuiteRun,
};

/// A major version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelmVersion {
    /// Helm 3.
    Three,
    /// Helm 4.
    Four,
}

impl HelmVersion {
    pub(super) const ALL: [Self; 2] = [Self::Three, Self::Four];

    /// The name of the program that `make peers` builds.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Three => "helm",
            Self::Four => "helm4",
        }
    }
}

/// A release of the chart.
pub(super) struct Helm {
    program: PathBuf,
    kubeconfig: String,
    home: PathBuf,
    chart: String,
}

impl Helm {
    /// Helm as administrator of a control plane.
    ///
    /// # Errors
    /// If the program is missing, or a file cannot be written.
    pub(super) fn new(run: &SuiteRun, plane: &ControlPlane, version: HelmVersion) -> Result<Self> {
        Self::with_kubeconfig(run, version, &plane.kubeconfig(ApiUser::Admin)?)
    }

    /// Helm that renders templates without a cluster.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn without_cluster(run: &SuiteRun, version: HelmVersion) -> Result<Self> {
        Self::with_kubeconfig(run, version, Path::new("/dev/null"))
    }

    fn with_kubeconfig(run: &SuiteRun, version: HelmVersion, kubeconfig: &Path) -> Result<Self> {
        // Helm writes a cache, a configuration and data below the home directory.
        let home = run.scratch().join(version.program());
        fs::create_dir_all(&home)?;
        Ok(Self {
            program: run.peers().program(version.program())?,
            kubeconfig: kubeconfig.display().to_string(),
            home,
            chart: chart_directory().display().to_string(),
        })
    }

    /// Runs a command of Helm, with the chart in place of the argument `CHART`.
    ///
    /// # Errors
    /// With Helm's message, if it fails.
    pub(super) async fn run(&self, arguments: &[&str]) -> Result<String> {
        let home = self.home.display().to_string();
        let variables = [
            format!("HELM_CACHE_HOME={home}/cache"),
            format!("HELM_CONFIG_HOME={home}/config"),
            format!("HELM_DATA_HOME={home}/data"),
            format!("KUBECONFIG={}", self.kubeconfig),
        ];
        let program = self.program.display().to_string();
        let arguments =
            arguments.iter().map(|argument| if *argument == "CHART" { &self.chart } else { *argument });
        let all: Vec<&str> =
            variables.iter().map(String::as_str).chain([program.as_str()]).chain(arguments).collect();
        process::run_to_completion("env", &all).await
    }
}

/// The chart in the source tree.
pub(super) fn chart_directory() -> PathBuf {
    source_directory().join("deploy/helm/cofferdam")
}

/// The root of the source tree.
pub(in crate::suites) fn source_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes values to a file of the run, and returns its path.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write_values(run: &SuiteRun, name: &str, values: &serde_json::Value) -> Result<String> {
    let path = run.directory().join(format!("{name}.json"));
    fs::write(&path, values.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}
