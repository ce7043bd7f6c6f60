//! The role `node` dies during a call of kubelet, before one of the call's effects: strace kills it when it
//! enters a system call. A program that the role runs, such as mkfs, dies likewise. kubelet then repeats the call, or
//! removes the volume.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tonic::Status;

use super::node::{MachineNode, NetworkVolume};

/// The system calls with effects outside of the process.
const EFFECTS: &str = "fsopen,fsconfig,fsmount,move_mount,open_tree,mount_setattr,umount2,mkdirat,unlinkat,renameat,\
                       renameat2,rename,unlink,fsync,mkdir,rmdir,ioctl,pwrite64";
/// The highest number of a system call at which the role dies. No call of kubelet has more effects, except by
/// its programs.
const MAX_EFFECTS: u32 = 12;

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

    async fn make(self, node: &MachineNode<'_>, volume: &NetworkVolume) -> Result<(), Status> {
        match self {
            Self::Stage => node.stage(volume).await,
            Self::Publish => node.publish(volume).await,
            Self::Unpublish => node.unpublish(volume).await,
            Self::Unstage => node.unstage(volume).await,
        }
    }
}

/// Plays lives of a volume until the role, or a program that it runs, has died `count` times. Checks after each life that nothing of the
/// volume is left on the node, also by `check`. Returns where the role died.
///
/// # Errors
/// If a call fails although the role runs, or something is left.
pub(in crate::suites) async fn play(
    node: &MachineNode<'_>,
    volume: &NetworkVolume,
    count: usize,
    rng: &mut Rng,
    check: impl AsyncFn() -> Result<()>,
) -> Result<Vec<String>> {
    let mut deaths = Vec::new();
    while deaths.len() < count {
        let fatal = rng.choice(KubeletCall::ALL).context("no call")?;
        let number = rng.u32(1..=MAX_EFFECTS);
        let repeats = rng.bool();
        let then = if repeats { "repeated" } else { "removed" };
        let place = format!("{fatal:?} {number}, then {then}");
        let died = play_life(node, volume, fatal, number, repeats).await.with_context(|| place.clone())?;
        check().await.with_context(|| place.clone())?;
        if let Some(died) = died {
            deaths.push(format!("{died} at {place}"));
        }
    }
    Ok(deaths)
}

/// Plays one life. Returns what died: the role, or a program that it runs; `None` if the call has fewer effects.
async fn play_life(
    node: &MachineNode<'_>,
    volume: &NetworkVolume,
    fatal: KubeletCall,
    number: u32,
    repeats: bool,
) -> Result<Option<&'static str>> {
    let mut died = None;
    node.make_directories(volume).await?;
    for call in KubeletCall::ALL {
        if call == fatal {
            let result = with_strace(node, number, call.make(node, volume)).await?;
            if node.machine.shell("pidof cofferdam || true").await?.is_empty() {
                died = Some("the role");
                node.restart().await?;
            } else if result.is_err() {
                died = Some("its program");
            } else {
                continue;
            }
            if !repeats {
                break;
            }
        }
        call.make(node, volume).await.with_context(|| format!("{call:?}"))?;
    }
    node.detach(volume).await?;
    node.ensure_nothing_left(&volume.name).await?;
    Ok(died)
}

/// Waits for a call while strace kills the role at its system call of this number, if the call has that many.
async fn with_strace<T>(node: &MachineNode<'_>, number: u32, call: impl Future<Output = T>) -> Result<T> {
    let attach = format!(
        "pid=$(pidof cofferdam); rm -f /run/strace.log
         strace -f -qq -p $pid -o /run/strace.log -e trace={EFFECTS} -e inject={EFFECTS}:signal=KILL:when={number} \
         </dev/null >/dev/null 2>&1 &
         while grep -q '^TracerPid:.0$' /proc/$pid/task/*/status; do usleep 20000; done"
    );
    node.machine.shell(&attach).await.context("attach strace")?;
    let result = call.await;
    node.machine
        .shell("kill $(pidof strace) 2>/dev/null || true; while pidof strace; do usleep 20000; done")
        .await?;
    Ok(result)
}
