//! External tools. They are located at start in the system directories. Their environment has only `PATH` and
//! `LC_ALL`.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{error::MounterSetupError, paths::Result};
use crate::{connection::ConnectionKind, error::MounterError, filesystem::Filesystem, policy::NodePolicy};

const TOOL_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// Maximum length of the standard error that an error message includes, in characters.
const MAX_STDERR_BYTES: usize = 512;

/// An external tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tool {
    Losetup,
    Blkid,
    MkfsExt4,
    E2fsck,
    Resize2fs,
    MkfsXfs,
    XfsGrowfs,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Losetup => "losetup",
            Self::Blkid => "blkid",
            Self::MkfsExt4 => "mkfs.ext4",
            Self::E2fsck => "e2fsck",
            Self::Resize2fs => "resize2fs",
            Self::MkfsXfs => "mkfs.xfs",
            Self::XfsGrowfs => "xfs_growfs",
        }
    }
}

/// The result of a tool.
pub(super) struct ToolOutput {
    /// `None` if a signal ended the tool.
    pub(super) exit_code: Option<i32>,
    pub(super) stdout: String,
    /// The end of standard error, on one line.
    pub(super) stderr: String,
}

/// The tools that a policy needs, with their paths. A tool that only an earlier policy needed is absent, also
/// if a volume that was staged under that policy still needs it.
#[derive(Debug, Default)]
pub(super) struct Tools(BTreeMap<Tool, PathBuf>);

impl Tools {
    /// Locates the tools.
    ///
    /// # Errors
    /// [`MounterSetupError::MissingTools`]
    pub(super) fn find(policy: &NodePolicy) -> std::result::Result<Self, MounterSetupError> {
        Self::find_with(policy, Path::is_file)
    }

    /// As [`find`](Self::find), with a function that returns true for the files that exist.
    fn find_with(
        policy: &NodePolicy,
        is_file: impl Fn(&Path) -> bool,
    ) -> std::result::Result<Self, MounterSetupError> {
        let mut needed: Vec<Tool> = Vec::new();
        if policy.has_kind(ConnectionKind::Image) {
            needed.push(Tool::Losetup);
        }
        if policy.has_kind(ConnectionKind::Image) || policy.has_kind(ConnectionKind::LocalDevice) {
            needed.push(Tool::Blkid);
            for filesystem in &policy.filesystems {
                needed.extend(match filesystem {
                    Filesystem::Ext4 => [Tool::MkfsExt4, Tool::E2fsck, Tool::Resize2fs].as_slice(),
                    Filesystem::Xfs => &[Tool::MkfsXfs, Tool::XfsGrowfs],
                });
            }
        }
        let find_path = |tool: &Tool| {
            let paths = TOOL_DIRECTORIES.iter().map(|directory| Path::new(directory).join(tool.name()));
            paths.into_iter().find(|path| is_file(path))
        };
        let missing: Vec<&str> =
            needed.iter().filter(|tool| find_path(tool).is_none()).map(|tool| tool.name()).collect();
        if !missing.is_empty() {
            return Err(MounterSetupError::MissingTools { tools: missing, directories: &TOOL_DIRECTORIES });
        }
        Ok(Self(needed.into_iter().filter_map(|tool| Some((tool, find_path(&tool)?))).collect()))
    }

    /// Runs a tool and waits until it ends, without a timeout. Fails if the tool was not located or cannot be
    /// started, but not because of its exit code or a signal.
    pub(super) fn run<A: AsRef<OsStr>>(&self, tool: Tool, arguments: &[A]) -> Result<ToolOutput> {
        let name = tool.name();
        let tool_error = |problem: String| MounterError::Failed(format!("{name}: {problem}"));
        let path = self.0.get(&tool).ok_or_else(|| tool_error("not located at start".to_owned()))?;
        let output = Command::new(path)
            .args(arguments)
            .env_clear()
            // mkfs.* and fsck.* start other programs.
            .env("PATH", TOOL_DIRECTORIES.join(":"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| tool_error(error.to_string()))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        let stderr: String =
            stderr.chars().rev().take(MAX_STDERR_BYTES).collect::<Vec<_>>().into_iter().rev().collect();
        Ok(ToolOutput {
            exit_code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        })
    }

    /// Runs a tool and returns its standard output. Fails unless the exit code is one of `codes`.
    pub(super) fn run_checked<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        arguments: &[A],
        codes: &[i32],
    ) -> Result<String> {
        let output = self.run(tool, arguments)?;
        if output.exit_code.is_some_and(|code| codes.contains(&code)) {
            return Ok(output.stdout);
        }
        let outcome = output.exit_code.map_or("was killed".to_owned(), |code| format!("ended with {code}"));
        Err(MounterError::Failed(format!("{} {outcome}: {}", tool.name(), output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_the_policy_needs_and_the_node_lacks_are_named() {
        let policy = |kinds: &[ConnectionKind]| NodePolicy {
            connection_kinds: kinds.iter().copied().collect(),
            filesystems: [Filesystem::Ext4, Filesystem::Xfs].into(),
            ..NodePolicy::default()
        };
        let missing = |kinds: &[ConnectionKind], present: &[&str]| {
            let is_file = |path: &Path| present.iter().any(|present| path == Path::new(present));
            Tools::find_with(&policy(kinds), is_file).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(missing(&[ConnectionKind::Directory, ConnectionKind::Tmpfs], &[]), Ok(()));
        let present =
            ["/usr/sbin/losetup", "/sbin/blkid", "/usr/bin/mkfs.ext4", "/sbin/e2fsck", "/bin/resize2fs"];
        assert_eq!(
            missing(&[ConnectionKind::Image], &present).unwrap_err(),
            "the policy needs programs that are not in /usr/sbin, /sbin, /usr/bin, /bin: mkfs.xfs, xfs_growfs"
        );
        let present = [&present[1..], &["/sbin/mkfs.xfs", "/sbin/xfs_growfs"]].concat();
        assert_eq!(missing(&[ConnectionKind::LocalDevice], &present), Ok(()));
        let error = missing(&[ConnectionKind::Image], &present).unwrap_err();
        assert!(error.ends_with(": losetup"), "{error}");
    }
}
