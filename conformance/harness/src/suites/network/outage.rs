//! A server that is away for a minute, because its link is cut, while pods write to its volumes; and one that
//! restarts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use tonic::Code;

use super::{
    node::{MachineNode, NetworkVolume},
    writer::Writer,
};
use crate::{machine::Machine, run::SuiteRun, wait::until};

/// Time for which a server is away.
const OUTAGE: Duration = Duration::from_secs(60);
/// Time limit of the first write after the server's return.
const RETURN_TIMEOUT: Duration = Duration::from_secs(120);

/// Volumes of one kind and of one server.
pub(super) struct ServerVolumes {
    /// The kind.
    pub(super) kind: &'static str,
    /// A volume of a pod that writes.
    pub(super) written: NetworkVolume,
    /// A script that mounts other storage of the same server at `/run/by-hand-KIND`, as an administrator does.
    pub(super) mount_by_hand: String,
    /// A script that undoes it.
    pub(super) unmount_by_hand: String,
}

/// What else happens while a server is away.
pub(super) struct Meanwhile {
    /// A volume that is removed.
    pub(super) removed: NetworkVolume,
    /// A volume of the server that is staged, and texts of the error.
    pub(super) new: (NetworkVolume, [&'static str; 2]),
    /// A volume of another server.
    pub(super) neighbour: NetworkVolume,
}

/// Pods that write to the volumes of a server. The writers of each volume are a pod, and a process in a mount
/// that was made by hand.
struct Pods<'a> {
    node: &'a MachineNode<'a>,
    pods: Vec<(&'a ServerVolumes, [Writer<'a>; 2])>,
}

impl<'a> Pods<'a> {
    async fn start(node: &'a MachineNode<'a>, volumes: &'a [ServerVolumes]) -> Result<Self> {
        let pods = volumes.iter().map(async |volume| {
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
        Ok(Self { node, pods: try_join_all(pods).await? })
    }

    /// Waits until all write after `event`, stops them, and checks that each volume has what its pod has
    /// written. Adds a note for each kind.
    async fn finish(self, run: &SuiteRun, event: &str, uptime: f64) -> Result<()> {
        let Self { node, pods } = self;
        let finished = pods.into_iter().map(async |(volume, [pod, by_hand])| {
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

/// Takes `server` away for a minute. Its volumes are `volumes`; the calls of `meanwhile` happen while it is
/// away, and then those of `others`.
pub(super) async fn take_away(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    server: &Machine,
    volumes: &[ServerVolumes],
    meanwhile: &[Meanwhile],
    others: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let pods = Pods::start(node, volumes).await?;
    for volume in meanwhile {
        node.attach(&volume.removed).await?;
    }
    let before = use_neighbours(node, meanwhile).await?;
    server.set_link(false).await?;
    let began = Instant::now();
    let flow = async {
        let during = use_neighbours(node, meanwhile).await.context("while a server is away")?;
        run.add_note(&format!(
            "while a server is away, volumes of another one are staged and published within {during:.2?}, before \
             within {before:.2?}"
        ))?;
        try_join_all(meanwhile.iter().map(async |volume| {
            let (new, texts) = &volume.new;
            node.ensure_rejected(new, Code::Internal, texts).await.context("while its server is away")
        }))
        .await?;
        others().await?;
        tokio::time::sleep(OUTAGE.saturating_sub(began.elapsed())).await;
        let returned = node.uptime().await?;
        server.set_link(true).await?;
        anyhow::Ok(returned)
    };
    let removals = try_join_all(meanwhile.iter().map(|volume| detach_patiently(node, &volume.removed)));
    let (returned, _) = tokio::try_join!(flow, removals)?;
    pods.finish(run, &format!("its server was away for {:.0?}", began.elapsed()), returned).await
}

/// The longest time for which staging and publishing a neighbour's volume takes. Also checks its condition and
/// the health of the role.
async fn use_neighbours(node: &MachineNode<'_>, meanwhile: &[Meanwhile]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for Meanwhile { neighbour, .. } in meanwhile.iter().cycle().take(2 * meanwhile.len()) {
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

/// `server` loses its power while pods write to its volumes, and starts again.
pub(super) async fn restart(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    server: &mut Machine,
    volumes: &[ServerVolumes],
    start: impl AsyncFnOnce(&Machine) -> Result<()>,
) -> Result<()> {
    let pods = Pods::start(node, volumes).await?;
    server.lose_power().await?;
    let lost = Instant::now();
    server.power_on().await?;
    start(server).await?;
    let returned = node.uptime().await?;
    pods.finish(run, &format!("its server restarted within {:.0?}", lost.elapsed()), returned).await
}
