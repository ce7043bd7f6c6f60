//! The role `node` is killed during a call of kubelet, before one of the call's effects: strace kills it when it
//! enters a system call. A program that the role runs, such as mkfs, is killed likewise. kubelet then repeats the call, or
//! removes the volume.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tonic::Status;

use super::node::{MachineNode, NetworkVolume};

/// The highest number of a system call of one name before which the role is killed.
const MAX_NUMBER: u32 = 2;
/// The lives of a volume for each crash. Some crash points are not reached: not every call makes every system call.
const LIVES_PER_CRASH: usize = 12;
/// Files to which a write has an effect. strace compares the path of the open file.
const EFFECTIVE_FILES: &str = "-P /dev/nvme-fabrics -P /sys/bus/rbd/add_single_major -P /sys/bus/rbd/remove_single_major \
     -P /sys/devices/virtual/nvme-fabrics/ctl/nvme0/delete_controller \
     -P /sys/devices/virtual/nvme-fabrics/ctl/nvme1/delete_controller \
     -P /sys/devices/virtual/nvme-fabrics/ctl/nvme2/delete_controller";

/// A call of kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KubeletCall {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

impl KubeletCall {
    /// In the order of a volume's life.
    const ALL: [Self; 4] = [Self::Stage, Self::Publish, Self::Unpublish, Self::Unstage];

    /// The system calls with effects outside of the process. A write is one to [`EFFECTIVE_FILES`].
    const fn effects(self) -> &'static [&'static str] {
        match self {
            Self::Stage => &[
                "add_key",
                "fsconfig",
                "fsmount",
                "fsopen",
                "fsync",
                "move_mount",
                "pwrite64",
                "rename",
                "write",
            ],
            Self::Publish => &["fsync", "mkdirat", "mount_setattr", "move_mount", "open_tree", "rename"],
            Self::Unpublish => &["fsync", "rename", "umount2", "unlinkat"],
            Self::Unstage => &["fsync", "umount2", "unlink", "unlinkat", "write"],
        }
    }

    async fn make(self, node: &MachineNode<'_>, volume: &NetworkVolume) -> Result<(), Status> {
        match self {
            Self::Stage => node.stage(volume).await,
            Self::Publish => node.publish(volume).await,
            Self::Unpublish => node.unpublish(volume).await,
            Self::Unstage => node.unstage(volume).await,
        }
    }
}

/// A point of a call at which the role is killed.
#[derive(Clone, Copy, Debug)]
struct CrashPoint {
    call: KubeletCall,
    /// The system call, and its number among those of the same name and thread.
    syscall: &'static str,
    number: u32,
}

/// Runs through lives of a volume until the role, or a program that it runs, was killed `count` times. Checks after each
/// life that nothing of the volume is left on the node, also by `check`. Returns where the role was killed.
///
/// # Errors
/// If a call fails although the role runs, something is left, or too few crash points are reached.
pub(in crate::suites) async fn crash_during_calls(
    node: &MachineNode<'_>,
    volume: &NetworkVolume,
    count: usize,
    rng: &mut Rng,
    check: impl AsyncFn() -> Result<()>,
) -> Result<Vec<String>> {
    let mut crashes = Vec::new();
    for _ in 0..count * LIVES_PER_CRASH {
        if crashes.len() >= count {
            break;
        }
        let call = rng.choice(KubeletCall::ALL).context("no call")?;
        let syscall = rng.choice(call.effects()).copied().context("no system call")?;
        let point = CrashPoint { call, syscall, number: rng.u32(1..=MAX_NUMBER) };
        let repeats = rng.bool();
        let then = if repeats { "repeated" } else { "removed" };
        let place = format!("{call:?} before {syscall} {}, then {then}", point.number);
        let killed = run_lifecycle(node, volume, point, repeats).await.with_context(|| place.clone())?;
        check().await.with_context(|| place.clone())?;
        if let Some(killed) = killed {
            crashes.push(format!("{killed} in {place}"));
        }
    }
    ensure!(
        crashes.len() >= count,
        "{} crashes in {} lives: expected {count}",
        crashes.len(),
        count * LIVES_PER_CRASH
    );
    Ok(crashes)
}

/// Runs through one life. Returns what was killed: the role, or a program that it runs; `None` if the call does not reach
/// the crash point.
async fn run_lifecycle(
    node: &MachineNode<'_>,
    volume: &NetworkVolume,
    point: CrashPoint,
    repeats: bool,
) -> Result<Option<&'static str>> {
    let mut killed = None;
    node.make_directories(volume).await?;
    for call in KubeletCall::ALL {
        if call == point.call {
            let (result, trace) = with_strace(node, point, call.make(node, volume)).await?;
            if node.machine.shell("pidof cofferdam || true").await?.is_empty() {
                killed = Some("the role");
                node.restart().await?;
            } else if result.is_ok() {
                continue;
            } else {
                ensure!(
                    trace.contains("killed by SIGKILL"),
                    "nothing was killed, and the call failed: {result:?}"
                );
                killed = Some("its program");
            }
            if !repeats {
                break;
            }
        }
        call.make(node, volume).await.with_context(|| format!("{call:?}"))?;
    }
    node.detach(volume).await?;
    node.ensure_nothing_left(&volume.name).await?;
    Ok(killed)
}

/// Waits for a call while strace kills the role at the crash point, if the call reaches it. Returns the result of the
/// call, and the trace.
async fn with_strace<T>(
    node: &MachineNode<'_>,
    point: CrashPoint,
    call: impl Future<Output = T>,
) -> Result<(T, String)> {
    let CrashPoint { syscall, number, .. } = point;
    let paths = if syscall == "write" { EFFECTIVE_FILES } else { "" };
    let attach = format!(
        "pid=$(pidof cofferdam); rm -f /run/strace.log
         strace -f -qq -p $pid -o /run/strace.log -e trace={syscall} -e inject={syscall}:signal=KILL:when={number} {paths} \
         </dev/null >/dev/null 2>&1 &
         while grep -q '^TracerPid:.0$' /proc/$pid/task/*/status; do usleep 20000; done"
    );
    node.machine.shell(&attach).await.context("attach strace")?;
    let result = call.await;
    let trace = node
        .machine
        .shell("kill $(pidof strace) 2>/dev/null || true; while pidof strace >/dev/null; do usleep 20000; done; cat /run/strace.log")
        .await?;
    Ok((result, trace))
}
