//! The faults of a round.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use rustix::process::Signal;

use super::{
    call_log::{Call, CallLog},
    replica::{DRIVER, Replica},
};
use crate::{
    audit::{AuditEvent, AuditTail},
    control_plane::ControlPlane,
    implementation::Implementation,
    namespaces,
    suites::sidecars::slot::PROVISIONER,
    wait::until,
};

/// Time limit of each wait.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum number of driver calls of the leader in flight at a fault.
const MIN_IN_FLIGHT: usize = 20;
/// Duration of a SIGSTOP. Other faults happen meanwhile, which may take longer.
const STOP: Duration = Duration::from_secs(60);
/// Time after SIGCONT in which the calls and writes of the process are counted.
const AFTER_CONTINUE: Duration = Duration::from_secs(5);
/// Time in which a former leader without a network must not call the driver.
const AFTER_CUT: Duration = Duration::from_secs(3);
/// Maximum number of calls and writes after SIGCONT: the threads of `cofferdam run`'s runtime.
const RUNTIME_THREADS: usize = 2;
/// Duration of etcd's pause.
const ETCD_PAUSE: Duration = Duration::from_secs(20);
/// The default duration of a Lease.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Timeout of each request that checks if the API server works.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Resources that a replica writes without a Lease.
const WRITTEN_WITHOUT_LEASE: [&str; 4] =
    ["leases", "events", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGTERM of the leader.
    Terminate,
    /// SIGKILL of the leader.
    Kill,
    /// SIGSTOP of the leader, and SIGCONT.
    Stop,
    /// The leader's network to the API forwards nothing until another replica leads.
    Cut,
    /// SIGSTOP of etcd, and SIGCONT.
    Etcd,
    /// The leader's clock is set three days ahead, and back.
    Clock,
}

impl Fault {
    pub(super) const ALL: [Self; 6] =
        [Self::Terminate, Self::Kill, Self::Stop, Self::Cut, Self::Etcd, Self::Clock];

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM of the leader",
            Self::Kill => "SIGKILL of the leader",
            Self::Stop => "SIGSTOP of the leader for 60 s",
            Self::Cut => "network of the leader cut",
            Self::Etcd => "etcd stopped for 20 s",
            Self::Clock => "clock of the leader 3 days ahead, and back",
        }
    }

    /// Meaning of [`HandledFault::gap`].
    pub(super) const fn measured(self) -> &'static str {
        match self {
            Self::Terminate | Self::Kill | Self::Stop | Self::Cut => "the next call of another replica",
            Self::Etcd => "the next call, from the first successful read of etcd,",
            Self::Clock => "the next call, from the correction,",
        }
    }
}

/// A fault that happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandledFault {
    pub(super) fault: Fault,
    /// Time to the next call, see [`Fault::measured`].
    pub(super) gap: Duration,
    /// Calls and writes that the stopped process began after SIGCONT.
    pub(super) late_calls: usize,
    pub(super) late_writes: usize,
    /// True if another replica holds the Lease after a change of the clock.
    pub(super) has_new_leader: bool,
}

impl HandledFault {
    const fn new(fault: Fault, gap: Duration) -> Self {
        Self { fault, gap, late_calls: 0, late_writes: 0, has_new_leader: false }
    }
}

/// A process that is stopped.
struct StoppedReplica<'a> {
    replica: &'a Replica,
    since: tokio::time::Instant,
    handled: HandledFault,
}

/// A former leader whose network is cut.
struct CutReplica<'a> {
    replica: &'a Replica,
    at: Timestamp,
    /// The first call of the next leader.
    next: Call,
}

pub(super) struct Faults<'a> {
    pub(super) implementation: Implementation,
    pub(super) plane: &'a ControlPlane,
    pub(super) replicas: &'a [Replica],
    pub(super) log: &'a CallLog,
    /// The audit log.
    pub(super) audit: PathBuf,
}

impl Faults<'_> {
    /// Lets every fault happen once. The faults of other replicas happen while one of three is stopped. What
    /// is observed after a fault is observed during the next one.
    pub(super) async fn play_round(&self, handled: &mut Vec<HandledFault>) -> Result<()> {
        // One of three may still start its watches after the SIGCONT of the round before.
        if handled.is_empty() || self.replicas.len() == 2 {
            self.wait_ready(|_| true).await?;
        }
        let stopped = self.stop_leader().await.context("SIGSTOP")?;
        let is_stopped = stopped.replica;
        self.wait_ready(|replica| replica.socket != is_stopped.socket).await?;
        let stopped = if self.replicas.len() > 2 {
            Some(stopped)
        } else {
            handled.push(self.continue_replica(stopped).await.context("SIGCONT")?);
            self.wait_ready(|_| true).await?;
            None
        };
        handled.push(self.terminate_leader().await.context("SIGTERM")?);
        // The ended process starts again while the Lease of a killed or unreachable leader expires.
        handled.push(self.kill_leader().await.context("SIGKILL")?);
        let cut = self.cut_leader().await.context("network")?;
        let network = async { self.restore_network(cut).await.context("network") };
        let etcd = async { self.pause_etcd().await.context("etcd") };
        let (network, etcd) = tokio::try_join!(network, etcd)?;
        handled.extend([network, etcd]);
        self.wait_ready(|replica| stopped.is_none() || replica.socket != is_stopped.socket).await?;
        let clock = async {
            match self.implementation {
                Implementation::Cofferdam => self.shift_clock().await.map(Some).context("clock"),
                // csi-provisioner does not read the clock through libc.
                Implementation::Upstream => Ok(None),
            }
        };
        // The leader keeps its Lease while its clock changes, so the continued process only waits.
        let continued = async {
            match stopped {
                Some(stopped) => self.continue_replica(stopped).await.map(Some).context("SIGCONT"),
                None => Ok(None),
            }
        };
        let (clock, continued) = tokio::try_join!(clock, continued)?;
        handled.extend(clock.into_iter().chain(continued));
        Ok(())
    }

    async fn wait_ready(&self, is_waited_for: impl Fn(&Replica) -> bool) -> Result<()> {
        for replica in self.replicas.iter().filter(|replica| is_waited_for(replica)) {
            replica.wait_ready().await?;
        }
        Ok(())
    }

    /// Waits until enough calls of one replica are in flight, and returns it.
    async fn busy_leader(&self) -> Result<&Replica> {
        let socket = until("calls are in flight", TIMEOUT, async || {
            let in_flight = self.log.in_flight()?;
            let (socket, count) = in_flight.into_iter().max_by_key(|(_, count)| *count).context("none")?;
            ensure!(count >= MIN_IN_FLIGHT, "{count} of {socket}: expected {MIN_IN_FLIGHT}");
            Ok(socket)
        })
        .await?;
        let found = self.replicas.iter().find(|replica| replica.socket == socket);
        found.with_context(|| format!("{socket} is not the socket of a replica"))
    }

    /// Waits for a call of a replica other than `leader` after `at`.
    async fn wait_other(&self, leader: &Replica, at: Timestamp) -> Result<Call> {
        until("another replica calls the driver", TIMEOUT, async || {
            self.log.first(at, |call| call.socket != leader.socket)
        })
        .await
    }

    /// Checks that a former leader began no call after `next`, the first call of the next leader.
    fn ensure_no_later_call(&self, former: &Replica, next: &Call) -> Result<()> {
        if let Ok(late) = self.log.first(next.started, |call| call.socket == former.socket) {
            ensure!(
                self.implementation == Implementation::Upstream,
                "the former leader began {late:?} after {next:?}"
            );
        }
        Ok(())
    }

    async fn terminate_leader(&self) -> Result<HandledFault> {
        let leader = self.busy_leader().await?;
        let at = Timestamp::now();
        leader.end(Signal::TERM)?;
        let next = self.wait_other(leader, at).await?;
        let status = leader.restart(TIMEOUT).await?;
        ensure!(
            status.success() || self.implementation == Implementation::Upstream,
            "{} ended with {status} after SIGTERM",
            leader.name
        );
        self.ensure_no_later_call(leader, &next)?;
        Ok(HandledFault::new(Fault::Terminate, elapsed(at, next.started)?))
    }

    async fn kill_leader(&self) -> Result<HandledFault> {
        let leader = self.busy_leader().await?;
        let at = Timestamp::now();
        leader.end(Signal::KILL)?;
        self.log.record_end_of_process(&leader.socket, at);
        let next = self.wait_other(leader, at).await?;
        let _killed = leader.restart(TIMEOUT).await?;
        Ok(HandledFault::new(Fault::Kill, elapsed(at, next.started)?))
    }

    /// Cuts the leader's network, and waits for another leader.
    async fn cut_leader(&self) -> Result<CutReplica<'_>> {
        let replica = self.busy_leader().await?;
        let at = Timestamp::now();
        replica.link.cut();
        let next = self.wait_other(replica, at).await?;
        Ok(CutReplica { replica, at, next })
    }

    /// Checks that a replica without a network does not call the driver, and restores its network.
    async fn restore_network(&self, cut: CutReplica<'_>) -> Result<HandledFault> {
        tokio::time::sleep(AFTER_CUT).await;
        self.ensure_no_later_call(cut.replica, &cut.next)?;
        cut.replica.link.restore();
        Ok(HandledFault::new(Fault::Cut, elapsed(cut.at, cut.next.started)?))
    }

    async fn pause_etcd(&self) -> Result<HandledFault> {
        self.busy_leader().await?;
        let at = Timestamp::now();
        self.plane.etcd.pause().await?;
        tokio::time::sleep(ETCD_PAUSE).await;
        let resumed = Timestamp::now();
        self.plane.etcd.resume()?;
        // The Lease was renewed before etcd stopped, or not at all.
        let ended = at.checked_add(SignedDuration::try_from(LEASE_DURATION)?)?;
        if let Ok(call) = self.log.first(ended, |call| call.started < resumed) {
            ensure!(
                self.implementation == Implementation::Upstream,
                "{call:?} began after the end of the Lease at {ended}, and before etcd continued at {resumed}"
            );
        }
        let (leases, lease) = (self.leases(), PROVISIONER.lease(DRIVER));
        until("the API server reads etcd", TIMEOUT, async || {
            tokio::time::timeout(PROBE_TIMEOUT, leases.get(&lease)).await??;
            Ok(())
        })
        .await?;
        let back = Timestamp::now();
        let next =
            until("a replica calls the driver", TIMEOUT, async || self.log.first(resumed, |_| true)).await?;
        // A call may begin before the harness has its response.
        let gap = if next.started < back { Duration::ZERO } else { elapsed(back, next.started)? };
        Ok(HandledFault::new(Fault::Etcd, gap))
    }

    async fn shift_clock(&self) -> Result<HandledFault> {
        // On a busy machine the leader may lose the Lease before it renews it with the changed clock.
        let leader = until("a leader renews the Lease three days ahead", TIMEOUT, async || {
            let leader = self.busy_leader().await?;
            leader.clock.set("+3d")?;
            let is_ahead = |ahead| ahead > SignedDuration::from_hours(1);
            let holder = self
                .wait_renewal("ahead, or another replica leads", |ahead, holder| {
                    is_ahead(ahead) || !leader.is_identity(holder)
                })
                .await?;
            if !leader.is_identity(&holder) {
                leader.clock.set("+0")?;
                bail!("{holder} leads after {}", leader.name);
            }
            Ok(leader)
        })
        .await?;
        leader.clock.set("+0")?;
        let corrected = Timestamp::now();
        let next = until("a replica calls the driver", TIMEOUT, async || self.log.first(corrected, |_| true));
        let next = next.await?;
        let is_correct = |ahead: SignedDuration, _: &str| ahead.abs() < SignedDuration::from_hours(1);
        let holder = self.wait_renewal("correct", is_correct).await?;
        let gap = elapsed(corrected, next.started)?;
        let has_new_leader = !leader.is_identity(&holder);
        Ok(HandledFault { has_new_leader, ..HandledFault::new(Fault::Clock, gap) })
    }

    /// Waits until `renewTime` of the Lease is as far ahead of the real time as expected. Returns the holder.
    async fn wait_renewal(
        &self,
        expected: &str,
        is_expected: impl Fn(SignedDuration, &str) -> bool,
    ) -> Result<String> {
        let leases = self.leases();
        until(&format!("renewTime is {expected}"), TIMEOUT, async || {
            let lease =
                leases.get(&PROVISIONER.lease(DRIVER)).await?.spec.context("a Lease without a spec")?;
            let renewed = lease.renew_time.context("a Lease without renewTime")?.0;
            let ahead = SignedDuration::from_secs(renewed.as_second() - Timestamp::now().as_second());
            let holder = lease.holder_identity.unwrap_or_default();
            ensure!(
                is_expected(ahead, &holder),
                "it is {ahead} ahead of the real time, the holder is {holder:?}"
            );
            Ok(holder)
        })
        .await
    }

    /// Stops the leader, and waits for another one.
    async fn stop_leader(&self) -> Result<StoppedReplica<'_>> {
        let replica = self.busy_leader().await?;
        let (since, at) = (tokio::time::Instant::now(), Timestamp::now());
        replica.signal(Signal::STOP)?;
        self.log.record_end_of_process(&replica.socket, at);
        let next = self.wait_other(replica, at).await?;
        let handled = HandledFault::new(Fault::Stop, elapsed(at, next.started)?);
        Ok(StoppedReplica { replica, since, handled })
    }

    /// Continues a stopped process at the end of its time, and counts what it does without the Lease.
    async fn continue_replica(&self, stopped: StoppedReplica<'_>) -> Result<HandledFault> {
        let StoppedReplica { replica, since, handled } = stopped;
        tokio::time::sleep_until(since + STOP).await;
        let mut audit = AuditTail::new(self.audit.clone())?;
        let continued = Timestamp::now();
        replica.signal(Signal::CONT)?;
        tokio::time::sleep(AFTER_CONTINUE).await;
        let events: Vec<AuditEvent> = audit
            .read()?
            .into_iter()
            .filter(|event| event.user.username == replica.user() && event.received > Some(continued))
            .filter(AuditEvent::is_write)
            .collect();
        // It may lead again if another fault has ended the other terms.
        let leads_again = events
            .iter()
            .filter(|event| event.resource() == "leases" && event.is_successful())
            .filter(|event| event.holder().is_some_and(|holder| replica.is_identity(holder)))
            .filter_map(|event| event.completed)
            .min();
        let end = leads_again.unwrap_or_else(Timestamp::now);
        let late_calls = self.log.record_late(&replica.socket, continued, end)?;
        let late: Vec<&AuditEvent> = events
            .iter()
            .filter(|event| !WRITTEN_WITHOUT_LEASE.contains(&event.resource()) && event.received < Some(end))
            .collect();
        ensure!(
            late_calls + late.len() <= RUNTIME_THREADS || self.implementation == Implementation::Upstream,
            "{late_calls} calls and the writes {late:?} after SIGCONT: expected at most {RUNTIME_THREADS}"
        );
        Ok(HandledFault { late_calls, late_writes: late.len(), ..handled })
    }

    fn leases(&self) -> Api<Lease> {
        let client: Client = self.plane.client().clone();
        Api::namespaced(client, namespaces::COFFERDAM)
    }
}

fn elapsed(from: Timestamp, to: Timestamp) -> Result<Duration> {
    Ok(to.duration_since(from).try_into()?)
}
