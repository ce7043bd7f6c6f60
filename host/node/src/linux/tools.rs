//! External tools. They are located at start in the system directories. Their environment has only `PATH` and
//! `LC_ALL`. Their time and the size of their output are limited: a pod can write any content to a device.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, Read},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

use super::{error::MounterSetupError, paths::Result};
use crate::{connection::ConnectionKind, error::MounterError, filesystem::Filesystem, policy::NodePolicy};

const TOOL_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// Maximum length of the standard error that an error message includes, in characters.
const MAX_STDERR_CHARS: usize = 512;
/// Largest output of a tool, in bytes of each stream.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Longest wait for the end of a tool's output after its own end.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

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

    /// Longest time of one run. A check or a change of a large filesystem takes many minutes.
    const fn time_limit(self) -> Duration {
        match self {
            Self::Losetup | Self::Blkid | Self::XfsGrowfs => Duration::from_secs(120),
            Self::MkfsExt4 | Self::MkfsXfs | Self::E2fsck | Self::Resize2fs => Duration::from_secs(3600),
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
        if policy.uses_devices() {
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

    /// Runs a tool and waits until it ends. Fails if the tool was not located, cannot be started, exceeds its
    /// time limit or has too much output, but not because of its exit code or a signal.
    pub(super) fn run<A: AsRef<OsStr>>(&self, tool: Tool, arguments: &[A]) -> Result<ToolOutput> {
        let name = tool.name();
        let tool_error = |problem: String| MounterError::Failed(format!("{name}: {problem}"));
        let path = self.0.get(&tool).ok_or_else(|| tool_error("not located at start".to_owned()))?;
        let mut command = Command::new(path);
        // mkfs.* and fsck.* start other programs.
        command.args(arguments).env_clear().env("PATH", TOOL_DIRECTORIES.join(":")).env("LC_ALL", "C");
        let output =
            run_limited(&mut command, tool.time_limit()).map_err(|error| tool_error(error.to_string()))?;
        Ok(ToolOutput {
            exit_code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: end_of_stderr(&output.stderr),
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

/// Returns the end of a tool's standard error, on one line.
pub(super) fn end_of_stderr(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let length = line.chars().count();
    line.chars().skip(length.saturating_sub(MAX_STDERR_CHARS)).collect()
}

/// The end of a process, and the beginning of its output.
struct LimitedOutput {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs a command without input in a process group of its own. Kills the group after `limit`.
///
/// # Errors
/// If it cannot be started, runs longer, or its standard output has more than [`MAX_OUTPUT_BYTES`].
fn run_limited(command: &mut Command, limit: Duration) -> io::Result<LimitedOutput> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = RunningTool(Some(command.process_group(0).spawn()?));
    let (stdout, stderr) = child.take_streams();
    let (stdout, stderr) = (read_limited(stdout)?, read_limited(stderr)?);
    let Some(status) = child.wait(limit)? else {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("still running after {limit:?}: killed"),
        ));
    };
    // A program that the tool has started may keep the pipes open.
    let output = |receiver: mpsc::Receiver<Vec<u8>>| {
        let missing = |_| io::Error::other("its output did not end with it");
        receiver.recv_timeout(OUTPUT_TIMEOUT).map_err(missing)
    };
    let (stdout, stderr) = (output(stdout)?, output(stderr)?);
    if u64::try_from(stdout.len()).is_ok_and(|bytes| bytes > MAX_OUTPUT_BYTES) {
        let message = format!("its output has more than {MAX_OUTPUT_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(LimitedOutput { status, stdout, stderr })
}

/// A tool that is killed with its process group on drop, unless it has ended before.
struct RunningTool(Option<Child>);

impl RunningTool {
    fn take_streams(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        self.0.as_mut().map_or((None, None), |child| (child.stdout.take(), child.stderr.take()))
    }

    /// Waits until the tool ends; `None` after `limit`.
    fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.0 else { return Ok(None) };
        if !wait_for_end(child, limit)? {
            return Ok(None);
        }
        let status = child.wait()?;
        self.0 = None;
        Ok(Some(status))
    }
}

impl Drop for RunningTool {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        // A process that waits for a device ends when the device responds.
        let _ = thread::Builder::new().spawn(move || child.wait());
    }
}

/// Waits until a process has ended, and returns true; false after `limit`.
fn wait_for_end(child: &Child, limit: Duration) -> io::Result<bool> {
    let id = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(id, PidfdFlags::empty())?;
    let started = Instant::now();
    loop {
        let left = Timespec::try_from(limit.saturating_sub(started.elapsed())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Reads a stream to its end in a thread, and sends its first bytes: at most one more than
/// [`MAX_OUTPUT_BYTES`].
fn read_limited(stream: Option<impl Read + Send + 'static>) -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut bytes = Vec::new();
        let read = stream.by_ref().take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes);
        // The process must not wait for a full pipe.
        let _ = read.and_then(|_| io::copy(&mut stream, &mut io::sink()));
        let _ = sender.send(bytes);
    })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_runs_too_long_is_killed() {
        let started =
            thread::spawn(|| run_limited(Command::new("sleep").arg("3600"), Duration::from_millis(50)));
        let error = started.join().unwrap().map(|output| output.status).unwrap_err();
        assert_eq!(error.to_string(), "still running after 50ms: killed");
        let mut command = Command::new("sh");
        let error = run_limited(command.args(["-c", "sleep 3600 & sleep 3600"]), Duration::from_millis(50));
        assert!(error.is_err(), "a program that the tool has started does not keep the call");
    }

    #[test]
    fn the_output_of_a_tool_is_limited() {
        let run =
            |script: &str| run_limited(Command::new("sh").args(["-c", script]), Duration::from_secs(60));
        let output = run("echo out; head -c 3000000 /dev/zero >&2; exit 3").unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"out\n".as_slice()));
        assert_eq!(output.stderr.len(), usize::try_from(MAX_OUTPUT_BYTES).unwrap() + 1);
        let error = run("head -c 3000000 /dev/zero").map(|output| output.status).unwrap_err();
        assert_eq!(error.to_string(), "its output has more than 1048576 bytes");
    }

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
