//! Two replicas of each sidecar and two of Cofferdam under its name compete for the sidecar's Lease, while
//! claims with class Secrets are provisioned, attached, expanded and deleted. The leader is killed or stopped
//! again and again, mostly together with the other replica of its implementation, so that the other
//! implementation has to take the Lease.
//!
//! Each replica has a service account and, as a pod, a host name of its own. The audit log shows that a
//! replica writes only while it holds the Lease. A planted Secret value must not be found outside of its
//! Secret.

mod terms;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::ListParams};

use super::{
    simulated_node,
    slot::{PROVISIONER, SLOTS, Slot},
    users::{TIMEOUT, Users, VolumeUse},
};
use crate::{
    account::Account,
    audit,
    claims::{Claims, ContinuousClaimLoad},
    class_secret::{self, ClassSecret},
    control_plane::{BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    journal, namespaces,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
    wait::until,
};
use terms::Replica;

const DRIVER: &str = "mixed.conformance.cofferdam.dev";
const NAMESPACE: &str = "mixed";
const NODE: &str = "node-1";
/// Minimum number of claims.
const CLAIMS: usize = 24;
/// Concurrent users of claims.
const CONCURRENT_USERS: usize = 6;
/// Number of volumes that are used between two handovers.
const CLAIMS_PER_HANDOVER: usize = CONCURRENT_USERS + 1;
const REPLICAS: usize = 2;
/// Durations for which a dead leader keeps the Lease for some seconds only.
const LEADER_ELECTION: [&str; 4] = [
    "--leader-election",
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
];

/// The end of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGKILL of all replicas of the leader's implementation.
    KillImplementation,
    /// SIGTERM to all replicas of the leader's implementation.
    StopImplementation,
    /// SIGKILL of the leader. Any other replica may take the Lease.
    KillLeader,
}

/// The handovers of each Lease. Each implementation leads at least twice.
const HANDOVERS: [End; 5] = [
    End::KillImplementation,
    End::StopImplementation,
    End::KillLeader,
    End::KillImplementation,
    End::StopImplementation,
];

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        has_audited_bodies: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client();
    let secret = ClassSecret::random(NAMESPACE)?;
    let mut flags = secret.driver_flags(&class_secret::CONTROLLER_METHODS);
    flags.push("--any-node".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut driver = CsiDriverProcess::start(run, DRIVER, &flags).await?;
    simulated_node::register(client, NODE, DRIVER, NODE, &BTreeMap::new()).await?;
    let parameters = ClassSecret::class_parameters();
    let claims = Claims::with_parameters(client, NAMESPACE, DRIVER, parameters).await?;
    secret.write(client).await?;

    let mut replicas = Replicas::start(run, &plane, &driver).await?;
    let volume_use = VolumeUse { is_mounted: false, is_attached: true, is_expanded: true, is_delayed: false };
    let users = Users::new(client, NAMESPACE, NODE, DRIVER, claims, volume_use);
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_USERS);
    let handovers = async {
        for end in HANDOVERS {
            users.wait_more_finished(CLAIMS_PER_HANDOVER).await?;
            for slot in SLOTS {
                replicas.hand_over(client, slot, end).await.with_context(|| format!("{end:?}"))?;
            }
        }
        users.wait_more_finished(CLAIMS_PER_HANDOVER).await?;
        load.finish();
        Ok(())
    };
    let (count, ()) = tokio::try_join!(users.run_all(&load), handovers)?;
    run.add_note(&format!("{count} claims, {} handovers of each of three Leases", HANDOVERS.len()))?;
    until("nothing is left", TIMEOUT, async || {
        users.claims.wait_remaining(0, TIMEOUT).await?;
        let attachments = users.attachments().list(&ListParams::default()).await?.items.len();
        ensure!(attachments == 0, "{attachments} VolumeAttachments");
        journal::ensure_intents(client, 0).await?;
        let stored = driver.volumes().await?;
        ensure!(stored.is_empty(), "the driver has {stored:?}");
        Ok(())
    })
    .await?;
    let processes = replicas.all.iter().map(|(_, process)| process);
    let hits = secret.search(client, run.directory(), processes).await?;
    run.add_note(&hits)?;
    let replicas = replicas.stop().await?;
    check_terms(run, &replicas)?;
    driver.process.stop().await?;
    plane.stop().await?;
    secret.ensure_not_in_files(run.directory())
}

/// The processes of all replicas.
struct Replicas {
    all: Vec<(Replica, ManagedProcess)>,
}

impl Replicas {
    async fn start(run: &SuiteRun, plane: &ControlPlane, driver: &CsiDriverProcess) -> Result<Self> {
        let mut all = Vec::new();
        for slot in SLOTS {
            for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
                for number in 0..REPLICAS {
                    let replica = Replica::new(slot, implementation, number);
                    let process = start(run, plane, driver, &replica).await?;
                    all.push((replica, process));
                }
            }
        }
        Ok(Self { all })
    }

    /// Ends the leader as `end` says, waits for another one, and starts the ended replicas again.
    async fn hand_over(&mut self, client: &Client, slot: Slot, end: End) -> Result<()> {
        let leader = self.wait_leader(client, slot, |_| true).await?;
        let is_ended = |replica: &Replica| match end {
            End::KillLeader => *replica == leader,
            End::KillImplementation | End::StopImplementation => {
                replica.slot == slot && replica.implementation == leader.implementation
            }
        };
        let ended: Vec<&mut ManagedProcess> = self
            .all
            .iter_mut()
            .filter(|(replica, _)| is_ended(replica))
            .map(|(_, process)| process)
            .collect();
        let ends = ended.into_iter().map(async |process| match end {
            End::KillImplementation | End::KillLeader => process.kill().await,
            End::StopImplementation => process.stop().await,
        });
        futures::future::try_join_all(ends).await?;
        self.wait_leader(client, slot, |replica| !is_ended(replica)).await?;
        for (_, process) in self.all.iter_mut().filter(|(replica, _)| is_ended(replica)) {
            process.restart()?;
        }
        Ok(())
    }

    /// Waits for a leader that `is_expected`, and returns it.
    async fn wait_leader(
        &self,
        client: &Client,
        slot: Slot,
        is_expected: impl Fn(&Replica) -> bool,
    ) -> Result<Replica> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespaces::COFFERDAM);
        until(&format!("a leader of {}", slot.name), TIMEOUT, async || {
            let holder = leases.get(&slot.lease(DRIVER)).await?.spec.and_then(|spec| spec.holder_identity);
            let holder = holder.unwrap_or_default();
            let leader =
                self.all.iter().map(|(replica, _)| replica).find(|replica| {
                    replica.slot == slot && replica.is_identity(&holder) && is_expected(replica)
                });
            leader.cloned().with_context(|| format!("the holder is {holder:?}"))
        })
        .await
    }

    /// Stops all replicas, and returns them.
    async fn stop(mut self) -> Result<Vec<Replica>> {
        for (_, process) in &mut self.all {
            process.stop().await?;
        }
        Ok(self.all.into_iter().map(|(replica, _)| replica).collect())
    }
}

/// Starts a replica, which waits for the Lease or leads.
async fn start(
    run: &SuiteRun,
    plane: &ControlPlane,
    driver: &CsiDriverProcess,
    replica: &Replica,
) -> Result<ManagedProcess> {
    let account = match replica.implementation {
        Implementation::Upstream => Account::administrator(run, plane, &replica.name).await?,
        Implementation::Cofferdam => {
            let flags = ["--secret-namespaces", NAMESPACE];
            Account::with_name(run, plane, &replica.name, &[replica.slot.role], &flags).await?
        }
    };
    let namespace = format!("--leader-election-namespace={}", namespaces::COFFERDAM);
    let mut arguments: Vec<&str> = LEADER_ELECTION.to_vec();
    arguments.extend([namespace.as_str(), "--timeout=10s"]);
    if replica.slot == PROVISIONER {
        // The driver has a topology, and the simulated node has none.
        arguments.push("--immediate-topology=false");
    }
    let spec = match replica.implementation {
        Implementation::Upstream => sidecar::upstream_command(run, replica.slot.name)?,
        Implementation::Cofferdam => {
            sidecar::cofferdam_command(run, replica.slot.name)?.env("COFFERDAM_SECRET_NAMESPACES", NAMESPACE)
        }
    };
    let spec = spec.name(&replica.name).host_name(&replica.host_name);
    sidecar::start_program(run, spec, account.kubeconfig(), Some(driver.socket()), &arguments).await
}

/// Checks with the audit log that each replica wrote only while it held the Lease, and that each
/// implementation led at least twice.
fn check_terms(run: &SuiteRun, replicas: &[Replica]) -> Result<()> {
    let requests = audit::read(&run.log("audit"))?;
    for slot in SLOTS {
        let replicas: Vec<&Replica> = replicas.iter().filter(|replica| replica.slot == slot).collect();
        let lease = slot.lease(DRIVER);
        let summary =
            terms::check(&requests, &lease, &replicas).with_context(|| format!("the Lease {lease}"))?;
        run.add_note(&format!("{}: {summary}", slot.name))?;
    }
    Ok(())
}
