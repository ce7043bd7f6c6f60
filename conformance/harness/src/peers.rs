//! Programs built by `make peers`, and programs of the distribution.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

/// Debian's directory of CNI plugins.
pub const CNI_PLUGINS: &str = "/usr/lib/cni";
/// Debian's runc.
pub const RUNC: &str = "/usr/sbin/runc";
/// Debian's static busybox.
pub const BUSYBOX: &str = "/bin/busybox";

/// The directory in which Cofferdam caches programs and packages for its tests.
///
/// # Errors
/// If the environment has neither `XDG_CACHE_HOME` nor `HOME`.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("cofferdam"))
}

/// The programs that `make peers` builds, by their directory.
#[derive(Clone, Debug)]
pub struct PeerPrograms {
    directory: PathBuf,
}

impl PeerPrograms {
    /// Gets the directory from `peers/build.sh where`, which builds nothing.
    ///
    /// # Errors
    /// If the script fails.
    pub fn find() -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/build.sh");
        let output = Command::new(&script)
            .arg("where")
            .output()
            .with_context(|| format!("cannot run {}", script.display()))?;
        let directory = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        ensure!(
            output.status.success() && directory.is_absolute(),
            "{} where: {}",
            script.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(Self { directory })
    }

    /// The programs of a directory that [`find`](Self::find) returned.
    #[must_use]
    pub const fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program of this name.
    ///
    /// # Errors
    /// If it has not been built.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        if !path.exists() {
            bail!("{name} has not been built: expected {}; run `make peers`", path.display());
        }
        Ok(path)
    }

    /// The version of Kubernetes, such as `v1.36.3`.
    ///
    /// # Errors
    /// If kube-apiserver has not been built, cannot be run, or says something else.
    pub fn kubernetes_version(&self) -> Result<String> {
        let program = self.program("kube-apiserver")?;
        let output = Command::new(&program).arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim().strip_prefix("Kubernetes ").map(str::to_owned);
        version.with_context(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("{} --version printed {text:?}, {stderr:?}, {}", program.display(), output.status)
        })
    }
}
