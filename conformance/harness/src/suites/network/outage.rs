//! A server that does not respond for a minute, while pods write to its volumes; and one that restarts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use tonic::Code;

use super::{
    node::{MachineNode, NetworkVolume},
    writer::Writer,
};
use crate::{run::SuiteRun, wait::until};

/// Time for which a server does not respond.
const OUTAGE: Duration = Duration::from_secs(60);
/// Time limit of the first write after the server's return.
const RETURN_TIMEOUT: Duration = Duration::from_secs(120);

/// Volumes of one kind and of one server.
pub(in crate::suites) struct ServerVolumes {
    /// The kind.
    pub(in crate::suites) kind: &'static str,
    /// A volume of a pod that writes.
    pub(in crate::suites) written: NetworkVolume,
    /// A script that mounts other storage of the same server at `/run/by-hand-KIND`, as an administrator does.
    pub(in crate::suites) mount_by_hand: String,
    /// A script that undoes it.
    pub(in crate::suites) unmount_by_hand: String,
}

/// Volumes that are staged, published or removed during an outage.
pub(in crate::suites) struct OutageVolumes {
    /// A volume of the server, which is removed.
    pub(in crate::suites) removed: NetworkVolume,
    /// A volume of the server that is staged, and texts of the error.
    pub(in crate::suites) unreachable: (NetworkVolume, Vec<String>),
    /// A volume of other storage.
    pub(in crate::suites) neighbour: NetworkVolume,
}

/// Workloads that write to the volumes of a server. The writers of each volume are a pod, and a process in a mount
/// that was made by hand.
struct Workloads<'a> {
    node: &'a MachineNode<'a>,
    writers: Vec<(&'a ServerVolumes, [Writer<'a>; 2])>,
}

impl<'a> Workloads<'a> {
    async fn start(node: &'a MachineNode<'a>, volumes: &'a [ServerVolumes]) -> Result<Self> {
        let writers = volumes.iter().map(async |volume| {
            node.attach(&volume.written).await?;
            node.machine.shell(&volume.mount_by_hand).await.context("mount by hand")?;
            let kind = volume.kind;
            let by_hand = format!("/run/by-hand-{kind}");
            anyhow::Ok((
                volume,
                [
                    Writer::start(node.machine, kind, &volume.written.target_path()).await?,
                    Writer::start(node.machine, &format!("by-hand-{kind}"), &by_hand).await?,
                ],
            ))
        });
        Ok(Self { node, writers: try_join_all(writers).await? })
    }

    /// Waits until all write after `event`, stops them, and checks that each volume has what its pod has
    /// written. Adds a note for each kind.
    async fn finish(self, run: &SuiteRun, event: &str, uptime: f64) -> Result<()> {
        let Self { node, writers } = self;
        let finished = writers.into_iter().map(async |(volume, [pod, by_hand])| {
            let ServerVolumes { kind, written, unmount_by_hand, .. } = volume;
            let (after, after_by_hand) = tokio::try_join!(
                pod.wait_confirmed_after(uptime, RETURN_TIMEOUT),
                by_hand.wait_confirmed_after(uptime, RETURN_TIMEOUT)
            )?;
            by_hand.stop().await?;
            let confirmed = pod.stop().await?;
            node.machine.shell(unmount_by_hand).await.context("unmount by hand")?;
            // Mounted anew, the node has nothing of the file in memory.
            node.detach(written).await?;
            node.attach(written).await?;
            let text = node.machine.shell(&format!("cat {}/log-{kind}", written.target_path())).await?;
            let lost = confirmed.iter().find(|number| !text.lines().any(|line| line == *number));
            ensure!(lost.is_none(), "{kind}: {lost:?} is lost: {} were confirmed", confirmed.len());
            node.detach(written).await?;
            node.ensure_nothing_left(&written.name).await?;
            run.add_note(&format!(
                "{kind}: {event}: a pod writes {after:.1} s later, a process in a mount by hand {after_by_hand:.1} s \
                 later; {} confirmed writes, none lost",
                confirmed.len()
            ))
        });
        try_join_all(finished).await.map(drop)
    }
}

/// Interrupts a server for a minute: `set_available` ends and restores its responses. Its volumes are `volumes`. During
/// the outage, those of `during` are used, and then `others` runs.
pub(in crate::suites) async fn interrupt(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    set_available: impl AsyncFn(bool) -> Result<()>,
    volumes: &[ServerVolumes],
    during: &[OutageVolumes],
    others: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let workloads = Workloads::start(node, volumes).await?;
    for volume in during {
        node.attach(&volume.removed).await?;
    }
    let before = use_neighbours(node, during).await?;
    set_available(false).await?;
    let began = Instant::now();
    let flow = async {
        let longest = use_neighbours(node, during).await.context("during an outage of another server")?;
        run.add_note(&format!(
            "during an outage, volumes of other storage are staged and published within {longest:.2?}, before within \
             {before:.2?}"
        ))?;
        try_join_all(during.iter().map(async |volume| {
            let (unreachable, texts) = &volume.unreachable;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let rejected = node.ensure_rejected(unreachable, Code::Internal, &texts);
            rejected.await.context("during an outage of its server")
        }))
        .await?;
        others().await?;
        tokio::time::sleep(OUTAGE.saturating_sub(began.elapsed())).await;
        let returned = node.uptime().await?;
        set_available(true).await?;
        anyhow::Ok(returned)
    };
    let removals = try_join_all(during.iter().map(|volume| detach_patiently(node, &volume.removed)));
    let (returned, _) = tokio::try_join!(flow, removals)?;
    workloads.finish(run, &format!("outage of its server for {:.0?}", began.elapsed()), returned).await
}

/// The longest time for which staging and publishing a neighbour's volume takes. Also checks its condition and
/// the health of the role.
async fn use_neighbours(node: &MachineNode<'_>, volumes: &[OutageVolumes]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for OutageVolumes { neighbour, .. } in volumes.iter().cycle().take(2 * volumes.len()) {
        let started = Instant::now();
        node.attach(neighbour).await?;
        longest = longest.max(started.elapsed());
        ensure!(!node.is_abnormal(neighbour).await?, "{} is abnormal", neighbour.name);
        node.check_health().await?;
        node.detach(neighbour).await?;
        node.ensure_nothing_left(&neighbour.name).await?;
    }
    Ok(longest)
}

/// Unpublishes and unstages a volume as kubelet does: it repeats calls that fail or have no response in time.
async fn detach_patiently(node: &MachineNode<'_>, volume: &NetworkVolume) -> Result<()> {
    until(&format!("{} is detached", volume.name), OUTAGE * 5, async || node.detach(volume).await).await?;
    node.ensure_nothing_left(&volume.name).await
}

/// A server dies and starts again, by `restart_server`, while pods write to its volumes.
pub(in crate::suites) async fn restart(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    volumes: &[ServerVolumes],
    restart_server: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let workloads = Workloads::start(node, volumes).await?;
    let died = Instant::now();
    restart_server().await?;
    let returned = node.uptime().await?;
    workloads.finish(run, &format!("its server restarted within {:.0?}", died.elapsed()), returned).await
}
