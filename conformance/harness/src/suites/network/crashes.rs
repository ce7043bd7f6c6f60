//! The role `node` is killed during a call of kubelet, before one of the call's effects: strace kills it when it
//! enters a system call. A program that the role runs, such as mkfs, is killed likewise. kubelet then repeats the call, or
//! removes the volume.
//!
//! A first life of the volume records the effects of each call, which are the crash points.

use std::{env, num::NonZeroUsize};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::{
    crash_points::{CrashPoint, KubeletCall, choose, crash_points, killed_before, recorded_syscalls},
    node::{MachineNode, NetworkVolume},
};
use crate::{print_status, run::SuiteRun};

/// Crashes of the role `node` with each kind without the variable `ROUNDS`.
const ROUNDS: usize = 3;
const STRACE_LOG: &str = "/run/strace.log";

/// The volume of a kind whose calls the role does not survive.
pub(in crate::suites) struct CrashTest<'a, C> {
    pub(in crate::suites) node: &'a MachineNode<'a>,
    pub(in crate::suites) volume: &'a NetworkVolume,
    /// Checks after each life of the volume that the node has no connection to its storage, and then makes the
    /// storage as it was before the volume's first life.
    pub(in crate::suites) reset: C,
}

impl<C: AsyncFn() -> Result<()>> CrashTest<'_, C> {
    /// Records the crash points, and kills the role at some of them: the variable `ROUNDS`, a number or `all`, or
    /// [`ROUNDS`]. Checks after each life of the volume that nothing of it is left on the node.
    ///
    /// # Errors
    /// If a call fails although the role runs, something is left, or a point is not reached.
    pub(in crate::suites) async fn run(&self, run: &SuiteRun, rng: &mut Rng) -> Result<()> {
        let points = self.record().await.context("record the crash points")?;
        let rounds = rounds()?;
        let chosen = choose(&points, rounds, rng);
        ensure!(
            chosen.len() == rounds.min(points.len()),
            "{} crash points of {}: expected {rounds}",
            chosen.len(),
            points.len()
        );
        let kind = self.volume.kind();
        for (round, point) in chosen.iter().enumerate() {
            let repeats = rng.bool();
            let then = if repeats { "the call is repeated" } else { "the volume is removed" };
            print_status(format_args!(
                "  {kind}: crash {} of {}: {point}, then {then}",
                round + 1,
                chosen.len()
            ));
            self.crash(point, repeats).await.with_context(|| format!("{kind}: {point}, then {then}"))?;
        }
        let counts = KubeletCall::ALL.map(|call| {
            let count = |points: &[CrashPoint]| points.iter().filter(|point| point.call == call).count();
            format!("{call:?} {} of {}", count(&chosen), count(&points))
        });
        run.add_note(&format!("{kind}: {} crashes at different points: {}", chosen.len(), counts.join(", ")))
    }

    /// Runs through one life, and returns the crash points of its calls. Checks that the checks after each life
    /// notice a volume that is in use.
    async fn record(&self) -> Result<Vec<CrashPoint>> {
        let Self { node, volume, reset } = self;
        let mut points = Vec::new();
        node.make_directories(volume).await?;
        let trace_all = format!("-e trace={}", recorded_syscalls());
        for call in KubeletCall::ALL {
            let (result, trace) = with_strace(node, &trace_all, call.make(node, volume)).await?;
            result.with_context(|| format!("{call:?}"))?;
            let of_call = crash_points(call, &trace);
            ensure!(!of_call.is_empty(), "{call:?} has no effect in the trace {trace}");
            points.extend(of_call);
            if call != KubeletCall::Unstage {
                ensure!(node.ensure_nothing_left(&volume.name).await.is_err(), "{call:?} left nothing");
                ensure!(reset().await.is_err(), "after {call:?}, there is no connection");
            }
        }
        node.ensure_nothing_left(&volume.name).await?;
        reset().await?;
        Ok(points)
    }

    /// Runs through one life with a crash.
    async fn crash(&self, point: &CrashPoint, repeats: bool) -> Result<()> {
        let Self { node, volume, reset } = self;
        node.make_directories(volume).await?;
        for call in KubeletCall::ALL {
            if call == point.call {
                let result = self.kill(point).await?;
                if !repeats {
                    break;
                }
                if result.is_ok() {
                    continue;
                }
            }
            call.make(node, volume).await.with_context(|| format!("{call:?}"))?;
        }
        node.detach(volume).await?;
        node.ensure_nothing_left(&volume.name).await?;
        reset().await
    }

    /// Makes a call during which the role, or a program that it runs, is killed, and starts the role again if it was
    /// killed. Returns the result of the call.
    async fn kill(&self, point: &CrashPoint) -> Result<Result<(), tonic::Status>> {
        let Self { node, volume, .. } = self;
        let syscall = &point.syscall;
        let path = syscall.path.as_ref().map_or_else(String::new, |path| format!("-P '{path}'"));
        let inject = format!(
            "-e trace={name} -e inject={name}:signal=KILL:when={} {path}",
            syscall.number,
            name = syscall.name
        );
        let (result, trace) = with_strace(node, &inject, point.call.make(node, volume)).await?;
        let killed = killed_before(&trace);
        ensure!(
            killed.as_ref() == Some(syscall),
            "killed before {killed:?}, and the call has the result {result:?}: expected {syscall}; the trace is\n{trace}"
        );
        if node.machine.shell("pidof cofferdam || true").await?.is_empty() {
            node.restart().await?;
        }
        Ok(result)
    }
}

/// Waits for a call while strace traces the role with these arguments. Returns the result of the call, and the
/// trace.
async fn with_strace<T>(
    node: &MachineNode<'_>,
    arguments: &str,
    call: impl Future<Output = T>,
) -> Result<(T, String)> {
    let attach = format!(
        "pid=$(pidof cofferdam); rm -f {STRACE_LOG}
         strace -f -y -qq -s 16 -p $pid -o {STRACE_LOG} {arguments} </dev/null >/dev/null 2>&1 &
         while grep -q '^TracerPid:.0$' /proc/$pid/task/*/status; do usleep 20000; done"
    );
    node.machine.shell(&attach).await.context("attach strace")?;
    let result = call.await;
    // strace ends with the role. If it were to end while the role dies, it would wait for the first thread, which the
    // kernel keeps until strace has reaped the others.
    let end =
        if node.is_running().await.is_ok() { "kill $(pidof strace) 2>/dev/null || true" } else { "true" };
    let detach = format!(
        "{end}
         while pidof strace >/dev/null; do usleep 20000; done
         cat {STRACE_LOG}"
    );
    Ok((result, node.machine.shell(&detach).await?))
}

/// Crashes with each kind: the variable `ROUNDS`, or a default.
///
/// # Errors
/// If the variable is neither a number nor `all`.
fn rounds() -> Result<usize> {
    match env::var("ROUNDS").as_deref() {
        Ok("all") => Ok(usize::MAX),
        Ok(text) => {
            let rounds: NonZeroUsize = text
                .parse()
                .with_context(|| format!("ROUNDS={text:?}: expected a number above 0, or all"))?;
            Ok(rounds.get())
        }
        Err(_) => Ok(ROUNDS),
    }
}
