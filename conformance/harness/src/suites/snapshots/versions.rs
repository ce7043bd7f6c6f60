//! Cofferdam's snapshot-controller and csi-snapshotter start beside CustomResourceDefinitions that serve only
//! v1beta1, as those of external-snapshotter 3. They log which kinds the API server does not serve, check
//! again once a minute, and take the pending snapshot when v1 is served.

use std::{fs, time::Instant};

use anyhow::{Context as _, Result, ensure};

use super::{SnapshotControllers, TIMEOUT};
use crate::{
    audit,
    implementation::Implementation,
    run::SuiteRun,
    snapshot_crds::{self, Served},
    snapshots::Snapshots,
    wait::until,
};

const SNAPSHOT: &str = "created-before-the-kinds-were-removed";
const CLAIM: &str = "claim-0";
/// The kinds that both programs log.
const LOGGED_KINDS: [&str; 3] = ["VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"];
const LOGGED: &str = "the API server does not serve the kind in version snapshot.storage.k8s.io/v1";
/// Seconds between two checks whether a kind is served.
const CHECK_INTERVAL: u64 = 60;

/// Expects that no program runs.
pub(super) async fn run(
    run: &SuiteRun,
    snapshots: &Snapshots,
    controllers: &mut SnapshotControllers<'_>,
    client: &kube::Client,
) -> Result<()> {
    snapshots.create_named(SNAPSHOT, CLAIM).await?;
    snapshot_crds::serve(client, Served::V1beta1).await?;
    let rejected_before = rejected_requests(run)?;
    let started = Instant::now();
    controllers.start(Implementation::Cofferdam).await?;
    for process in &controllers.processes {
        until(&format!("{} logs the kinds that are not served", process.name()), TIMEOUT, async || {
            let log = fs::read_to_string(process.log())?;
            for kind in LOGGED_KINDS {
                let quoted = format!("{kind:?}");
                let is_logged = log.lines().any(|line| line.contains(LOGGED) && line.contains(&quoted));
                ensure!(is_logged, "no line about {kind}");
            }
            Ok(())
        })
        .await?;
    }
    snapshot_crds::serve(client, Served::V1).await?;
    snapshots.wait_ready(1, TIMEOUT).await?;

    let rejected = rejected_requests(run)? - rejected_before;
    let checks = usize::try_from(started.elapsed().as_secs() / CHECK_INTERVAL)? + 1;
    let most = controllers.processes.len() * LOGGED_KINDS.len() * checks;
    ensure!(rejected > 0, "the audit log has no rejected request");
    ensure!(rejected <= most, "{rejected} requests for kinds that are not served: expected at most {most}");
    snapshots.delete_named(SNAPSHOT).await?;
    snapshots.wait_remaining(0, TIMEOUT).await?;
    controllers.stop().await?;
    run.add_note(&format!(
        "definitions that serve only v1beta1: {rejected} rejected requests in {checks} checks of {} kinds, then the \
         snapshot was taken",
        LOGGED_KINDS.len()
    ))
}

/// Number of requests of Cofferdam's accounts for kinds of snapshots that the API server rejected.
fn rejected_requests(run: &SuiteRun) -> Result<usize> {
    let requests = audit::read(&run.log("audit")).context("audit log")?;
    let is_of_snapshots = |uri: &str| uri.starts_with("/apis/snapshot.storage.k8s.io/v1/");
    Ok(requests.iter().filter(|request| is_of_snapshots(&request.uri) && !request.is_successful()).count())
}
