//! The command lines of the Go sidecars and of snapshot-controller.
//!
//! The sidecars' images have an entry point, and the manifests of drivers give arguments only. Under the name
//! of a sidecar the program therefore accepts that sidecar's flags, and runs the role that replaces it.

mod flags;
mod program;
mod syntax;
mod translate;
mod value;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, ffi::OsString};

use crate::config::{CliValues, FeatureGateError};
pub(crate) use flags::help;
pub(crate) use program::Sidecar;
use syntax::SyntaxError;

/// The action that the command line of a sidecar requests.
#[derive(Debug)]
pub(crate) enum SidecarCommand {
    /// Run the role.
    Run(Box<SidecarRun>),
    /// Print the version.
    Version,
    /// Print the help.
    Help,
    /// Exit with code 0: node-driver-registrar with `--mode=kubelet-registration-probe`.
    Exit,
}

/// A role to run with the flags of a sidecar.
#[derive(Debug)]
pub(crate) struct SidecarRun {
    /// Values of settings.
    pub(crate) values: CliValues,
    /// Settings whose default is the sidecar's.
    pub(crate) defaults: &'static [(&'static str, &'static str)],
    /// Flags and arguments that have no effect, with what happens instead, for the log; `None` if there are
    /// none.
    pub(crate) warning: Option<String>,
    /// Limit the runtime's threads to the CPU quota (`--automaxprocs`).
    pub(crate) limits_threads: bool,
    /// The sidecar would update CSIStorageCapacity objects (`--enable-capacity`).
    pub(crate) enables_capacity: bool,
    /// The sidecar reads the environment variable `KUBECONFIG`, as csi-provisioner does.
    pub(crate) reads_kubeconfig_variable: bool,
}

/// A command line that the sidecar, or this program in its place, cannot run with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SidecarError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("argument {0:?} is not UTF-8: expected text")]
    NotUtf8(OsString),
    #[error("--feature-gates: {0}")]
    FeatureGate(#[from] FeatureGateError),
    #[error("--logging-format: unsupported log format {0:?}: expected text or json")]
    LoggingFormat(String),
    #[error("--leader-election-type: unsupported type {0:?}: expected leases")]
    LeaderElectionType(String),
    #[error("only one of --{first} and --{second} can be set")]
    Exclusive { first: &'static str, second: &'static str },
    #[error("--{0} is a required parameter: expected the path of the driver's socket on the host")]
    Required(&'static str),
    #[error("the environment variable {variable} must be set with --{flag}: expected the name of the Node")]
    MissingVariable { variable: &'static str, flag: &'static str },
}

/// Translates the command line of a sidecar.
///
/// # Errors
/// [`SidecarError`], one line.
pub(crate) fn parse(
    sidecar: Sidecar,
    arguments: impl IntoIterator<Item = OsString>,
    environment: &HashMap<String, String>,
) -> Result<SidecarCommand, SidecarError> {
    let arguments: Result<Vec<String>, SidecarError> =
        arguments.into_iter().map(|argument| argument.into_string().map_err(SidecarError::NotUtf8)).collect();
    let find = |name: &str| flags::find(sidecar, name);
    let given = syntax::parse(arguments?, sidecar.go_package(), sidecar.program(), find)?;
    if given.help {
        return Ok(SidecarCommand::Help);
    }
    translate::translate(sidecar, &given, environment)
}
