//! Replicas of Cofferdam, each with the roles `provisioner` and `attacher`, compete for their Leases with the
//! default durations. Each fault happens to the leader, or to etcd, while at least 20 driver calls are in
//! flight. The driver's own log shows when another replica calls the driver, and that no call begins for a
//! volume while another one is in flight, except one whose process was killed or stopped.
//!
//! The same faults happen to replicas of csi-provisioner in `UPSTREAM_ROUNDS` rounds. Their results are
//! printed and not checked.

mod call_log;
mod faults;
mod load;
mod replica;

use std::{collections::BTreeMap, env, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, api::ListParams};

use super::{
    simulated_node,
    slot::{ATTACHER, PROVISIONER, Slot},
};
use crate::{
    audit::AuditTail,
    claims::Claims,
    control_plane::{BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    journal,
    run::SuiteRun,
    wait::until,
};
use call_log::CallLog;
use faults::{Fault, Faults, HandledFault, TIMEOUT};
use load::Load;
use replica::{DRIVER, Replica};

const NAMESPACE: &str = "leases";
const NODE: &str = "node-1";
/// Duration of each driver call.
const LATENCY: &str = "--latency=200ms";
/// Number of rounds of Cofferdam without the variable `ROUNDS`.
const ROUNDS: usize = 2;
/// Minimum number of claims. One of five is attached.
const MIN_CLAIMS: usize = 1_000;
/// Time without a fault in which the writes of the Leases are counted.
const QUIET: Duration = Duration::from_secs(12);
/// Maximum number of writes of each Lease per second without a fault.
const WRITES_PER_SECOND: f64 = 0.2;

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let parts = [
        (Implementation::Cofferdam, number_of_rounds("ROUNDS", ROUNDS)?),
        (Implementation::Upstream, number_of_rounds("UPSTREAM_ROUNDS", 0)?),
    ];
    for (implementation, rounds) in parts.into_iter().filter(|(_, rounds)| *rounds > 0) {
        let name = implementation.as_str();
        let part = run.subdirectory(&name.to_lowercase())?;
        let add_note = |note: &str| run.add_note(&format!("{name}: {note}"));
        compete(&part, implementation, rounds, &add_note).await.context(name)?;
    }
    Ok(())
}

/// The number of rounds in an environment variable.
fn number_of_rounds(variable: &str, default: usize) -> Result<usize> {
    match env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text:?}: expected a number")),
        Err(_) => Ok(default),
    }
}

const fn replica_count(implementation: Implementation) -> usize {
    match implementation {
        Implementation::Cofferdam => 3,
        Implementation::Upstream => 2,
    }
}

/// Lets the replicas of an implementation compete, and adds notes.
async fn compete(
    run: &SuiteRun,
    implementation: Implementation,
    rounds: usize,
    add_note: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let is_cofferdam = implementation == Implementation::Cofferdam;
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client();
    let log = CallLog::new(run.directory().join("calls.jsonl"));
    let sockets: Vec<String> = (0..replica_count(implementation))
        .map(|number| run.scratch().join(format!("replica-{number}.sock")).display().to_string())
        .collect();
    let flags: Vec<String> = sockets
        .iter()
        .map(|socket| format!("--further-socket={socket}"))
        .chain([LATENCY.to_owned(), "--any-node".to_owned(), log.flag()])
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut driver = CsiDriverProcess::start(run, DRIVER, &flags).await?;
    simulated_node::register(client, NODE, DRIVER, NODE, &BTreeMap::new()).await?;
    let claims = Claims::new(client, NAMESPACE, DRIVER).await?;
    let load = Load::new(client, claims.clone(), NAMESPACE, DRIVER, is_cofferdam.then_some(NODE), MIN_CLAIMS);
    let mut replicas = Vec::new();
    for (number, socket) in sockets.into_iter().enumerate() {
        replicas.push(Replica::start(run, &plane, implementation, number, socket).await?);
    }

    let faults =
        Faults { implementation, plane: &plane, replicas: &replicas, log: &log, audit: run.log("audit") };
    let played = async {
        let mut handled = Vec::new();
        for round in 0..rounds {
            faults.play_round(&mut handled).await.with_context(|| format!("round {round}"))?;
        }
        load.stop();
        // The load causes no writes of a Lease.
        let writes = count_lease_writes(run, implementation).await?;
        Ok((handled, writes))
    };
    let work = async {
        let (played, ()) = tokio::try_join!(played, load.run())?;
        until("nothing is left", TIMEOUT, async || ensure_nothing_left(&plane, &claims, &driver).await)
            .await
            .or_else(|error| if is_cofferdam { Err(error) } else { Ok(()) })?;
        anyhow::Ok(played)
    };
    let (handled, writes) = tokio::select! {
        finished = work => finished?,
        ended = replica::supervise(&replicas) => {
            ended?;
            bail!("the processes are no longer checked");
        }
    };

    let overlaps = log.overlaps(&load.names())?;
    for note in Fault::ALL.iter().filter_map(|fault| summary(*fault, &handled)).chain(writes) {
        add_note(&note)?;
    }
    let restarts: usize = replicas.iter().map(|replica| replica.restarts.get()).sum();
    let stored = driver.volumes().await?.len();
    add_note(&format!(
        "{rounds} rounds, {} claims, {} attachments; {restarts} processes ended by themselves, {} calls began \
         for a volume during another replica's, {stored} volumes are left; calls: {:?}",
        load.created(),
        load.attached(),
        overlaps.len(),
        log.counts(),
    ))?;
    if let Some(overlap) = overlaps.first().filter(|_| is_cofferdam) {
        bail!("{} calls overlap, first {:?} and {:?}", overlaps.len(), overlap.earlier, overlap.later);
    }
    future::try_join_all(replicas.into_iter().map(Replica::stop)).await?;
    driver.process.stop().await?;
    plane.stop().await
}

/// Checks that neither objects nor volumes nor intents of the load are left.
async fn ensure_nothing_left(plane: &ControlPlane, claims: &Claims, driver: &CsiDriverProcess) -> Result<()> {
    claims.wait_remaining(0, TIMEOUT).await?;
    let attachments = Api::<VolumeAttachment>::all(plane.client().clone());
    let attachments = attachments.list(&ListParams::default()).await?.items.len();
    ensure!(attachments == 0, "{attachments} VolumeAttachments");
    journal::ensure_intents(plane.client(), 0).await?;
    let stored = driver.volumes().await?;
    ensure!(stored.is_empty(), "the driver has {stored:?}");
    Ok(())
}

/// Counts the writes of each Lease without a fault. Returns notes.
async fn count_lease_writes(run: &SuiteRun, implementation: Implementation) -> Result<Vec<String>> {
    let slots: &[Slot] = match implementation {
        Implementation::Cofferdam => &[PROVISIONER, ATTACHER],
        Implementation::Upstream => &[PROVISIONER],
    };
    let mut tail = AuditTail::new(run.log("audit"))?;
    tokio::time::sleep(QUIET).await;
    let events = tail.read()?;
    let mut notes = Vec::new();
    for slot in slots {
        let lease = slot.lease(DRIVER);
        let writes = events.iter().filter(|event| event.is_write() && event.is_of("leases", &lease)).count();
        // Writes at both ends of the time belong to it.
        let most = WRITES_PER_SECOND * QUIET.as_secs_f64() + 1.0;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let number = writes as f64;
        ensure!(
            writes > 0 && number <= most || implementation == Implementation::Upstream,
            "{writes} writes of the Lease {lease} in {QUIET:?} without a fault: expected 1 to {most}"
        );
        notes.push(format!("{writes} writes of the Lease {lease} in {} s without a fault", QUIET.as_secs()));
    }
    Ok(notes)
}

/// Percentiles of the times after a fault.
fn summary(fault: Fault, handled: &[HandledFault]) -> Option<String> {
    let of_fault = || handled.iter().filter(|handled| handled.fault == fault);
    let mut gaps: Vec<Duration> = of_fault().map(|handled| handled.gap).collect();
    gaps.sort_unstable();
    let (median, longest) = (gaps.get(gaps.len() / 2)?, gaps.last()?);
    let mut text = format!(
        "{}, {} times: {} after {:.2} s (median), at most {:.2} s",
        fault.description(),
        gaps.len(),
        fault.measured(),
        median.as_secs_f64(),
        longest.as_secs_f64(),
    );
    match fault {
        Fault::Stop => {
            let calls = of_fault().map(|handled| handled.late_calls).max().unwrap_or_default();
            let writes = of_fault().map(|handled| handled.late_writes).max().unwrap_or_default();
            text += &format!("; at most {calls} calls and {writes} writes after SIGCONT");
        }
        Fault::Clock => {
            let changes = of_fault().filter(|handled| handled.has_new_leader).count();
            text += &format!("; {changes} times another replica led afterwards");
        }
        Fault::Terminate | Fault::Kill | Fault::Cut | Fault::Etcd => {}
    }
    Some(text)
}
