//! Three replicas of Cofferdam's provisioner compete for a Lease with the default durations. Each fault ends
//! or stops the leader while at least 20 driver calls are in flight. The driver's own log shows when another
//! replica calls the driver, and that two replicas never call it for one volume at the same time, except
//! after the end of a process whose calls still run.

mod call_log;

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use rustix::process::Signal;

use super::slot::PROVISIONER;
use crate::{
    account::Account,
    claims::Claims,
    control_plane::{BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    journal, namespaces,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
    wait::until,
};
use call_log::{Call, CallLog};

const DRIVER: &str = "leases.conformance.cofferdam.dev";
const NAMESPACE: &str = "leases";
const TIMEOUT: Duration = Duration::from_secs(120);
const REPLICAS: usize = 3;
/// Duration of each driver call.
const LATENCY: &str = "--latency=200ms";
/// Minimum number of driver calls in flight at a fault.
const MIN_IN_FLIGHT: usize = 20;
/// Number of claims that are created before each fault.
const CLAIMS_PER_FAULT: usize = 300;
/// Number of rounds without the variable `ROUNDS`.
const ROUNDS: usize = 2;
/// Time for which a process goes on after SIGCONT before the round ends, in which it must not act.
const AFTER_RESUME: Duration = Duration::from_secs(5);

/// How the leader ends or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT after another replica leads.
    Pause,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Terminate, Self::Kill, Self::Pause];

    const fn signal(self) -> Signal {
        match self {
            Self::Terminate => Signal::TERM,
            Self::Kill => Signal::KILL,
            Self::Pause => Signal::STOP,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Kill => "SIGKILL",
            Self::Pause => "SIGSTOP",
        }
    }
}

/// A fault that happened.
struct HandledFault {
    fault: Fault,
    /// Time from the fault to the next call of another replica.
    gap: Duration,
    /// Calls that the paused process began after SIGCONT.
    late_calls: usize,
}

/// A replica, with a socket of the driver of its own: the driver's log names it.
struct Replica {
    socket: String,
    process: ManagedProcess,
}

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let rounds = match env::var("ROUNDS") {
        Ok(text) => text.parse().with_context(|| format!("ROUNDS={text:?}: expected a number"))?,
        Err(_) => ROUNDS,
    };
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client();
    let log = CallLog::new(run.directory().join("calls.jsonl"));
    let sockets: Vec<PathBuf> =
        (0..REPLICAS).map(|number| run.scratch().join(format!("replica-{number}.sock"))).collect();
    let flags: Vec<String> = sockets
        .iter()
        .map(|socket| format!("--further-socket={}", socket.display()))
        .chain([LATENCY.to_owned(), "--any-node".to_owned(), log.flag()])
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut driver = CsiDriverProcess::start(run, DRIVER, &flags).await?;
    let claims = Claims::new(client, NAMESPACE, DRIVER).await?;
    let mut replicas = Vec::new();
    for (number, socket) in sockets.iter().enumerate() {
        let process = start(run, &plane, number, socket).await?;
        replicas.push(Replica { socket: socket.display().to_string(), process });
    }

    let mut handled = Vec::new();
    let mut count = 0;
    for round in 0..rounds {
        for fault in Fault::ALL {
            let numbers = count..count + CLAIMS_PER_FAULT;
            count = numbers.end;
            let (found, ()) = tokio::try_join!(hand_over(&mut replicas, &log, fault), claims.create(numbers))
                .with_context(|| format!("round {round}, {}", fault.name()))?;
            handled.push(found);
            claims.wait_bound(count, TIMEOUT).await?;
            for replica in &mut replicas {
                if replica.process.id().is_none() {
                    replica.process.restart()?;
                }
                replica.process.ensure_running()?;
            }
        }
    }
    claims.ensure_consistent(count, &driver.volumes().await?).await?;
    claims.delete(0..count).await?;
    until("nothing is left", TIMEOUT, async || {
        claims.wait_remaining(0, TIMEOUT).await?;
        journal::ensure_intents(client, 0).await?;
        let stored = driver.volumes().await?;
        ensure!(stored.is_empty(), "the driver has {stored:?}");
        Ok(())
    })
    .await?;

    let calls = log.read()?;
    call_log::ensure_no_overlap(&calls)?;
    for fault in Fault::ALL {
        run.add_note(&summary(fault, &handled))?;
    }
    for Replica { mut process, .. } in replicas {
        process.stop().await?;
    }
    driver.process.stop().await?;
    plane.stop().await
}

/// Starts a replica, which waits for the Lease or leads.
async fn start(
    run: &SuiteRun,
    plane: &ControlPlane,
    number: usize,
    socket: &std::path::Path,
) -> Result<ManagedProcess> {
    let name = format!("replica-{number}");
    let account = Account::with_name(run, plane, &name, &[PROVISIONER.role], &[]).await?;
    let namespace = format!("--leader-election-namespace={}", namespaces::COFFERDAM);
    let arguments = ["--leader-election", namespace.as_str(), "--timeout=30s", "--immediate-topology=false"];
    let spec = sidecar::cofferdam_command(run, PROVISIONER.name)?.name(&name).host_name(&name);
    sidecar::start_program(run, spec, account.kubeconfig(), socket, &arguments).await
}

/// Waits until calls are in flight, lets the fault happen to their replica, and waits until another one calls
/// the driver.
async fn hand_over(replicas: &mut [Replica], log: &CallLog, fault: Fault) -> Result<HandledFault> {
    let socket = until("calls are in flight", TIMEOUT, async || {
        let in_flight = log.in_flight()?;
        let (socket, count) = in_flight.into_iter().max_by_key(|(_, count)| *count).context("none")?;
        ensure!(count >= MIN_IN_FLIGHT, "{count}");
        Ok(socket)
    })
    .await?;
    let leader = replicas
        .iter_mut()
        .find(|replica| replica.socket == socket)
        .with_context(|| format!("{socket} is not the socket of a replica"))?;
    let at = Timestamp::now();
    leader.process.signal(fault.signal())?;
    if fault == Fault::Kill {
        leader.process.wait_exit(TIMEOUT).await?;
        log.record_end_of_process(&socket, at);
    }
    let is_next = |call: &&Call| call.socket != socket && call.started > at;
    let next = until("another replica calls the driver", TIMEOUT, async || {
        log.read()?.into_iter().find(|call| is_next(&call)).context("none")
    })
    .await?;
    let gap = next.started.duration_since(at).try_into()?;
    let mut late_calls = 0;
    match fault {
        Fault::Terminate => drop(leader.process.wait_exit(TIMEOUT).await?),
        Fault::Kill => {}
        Fault::Pause => {
            log.record_end_of_process(&socket, at);
            let resumed = Timestamp::now();
            leader.process.resume()?;
            tokio::time::sleep(AFTER_RESUME).await;
            let calls = log.read()?;
            late_calls = calls.iter().filter(|call| call.socket == socket && call.started > resumed).count();
            let threads = std::thread::available_parallelism()?.get();
            ensure!(late_calls <= threads, "{late_calls} calls after SIGCONT: expected at most {threads}");
            leader.process.ensure_running()?;
        }
    }
    if fault == Fault::Terminate {
        let calls = log.read()?;
        let late = calls.iter().find(|call| call.socket == socket && call.started > next.started);
        ensure!(late.is_none(), "the former leader began {late:?} after {next:?}");
    }
    Ok(HandledFault { fault, gap, late_calls })
}

/// Percentiles of the gaps after a fault.
fn summary(fault: Fault, handled: &[HandledFault]) -> String {
    let of_fault = || handled.iter().filter(|handled| handled.fault == fault);
    let mut gaps: Vec<Duration> = of_fault().map(|handled| handled.gap).collect();
    gaps.sort_unstable();
    let seconds = |gap: Option<&Duration>| gap.map_or(0.0, Duration::as_secs_f64);
    let late: usize = of_fault().map(|handled| handled.late_calls).sum();
    let late = if fault == Fault::Pause { format!(", {late} calls after SIGCONT") } else { String::new() };
    format!(
        "{} of the leader, {} times: the next call of another replica after {:.2} s (median), at most {:.2} s{late}",
        fault.name(),
        gaps.len(),
        seconds(gaps.get(gaps.len() / 2)),
        seconds(gaps.last()),
    )
}
