//! The process with the roles `node`, `registrar` and `liveness` is killed during a CSI call of kubelet. The
//! process that is started in its place completes the call when kubelet repeats it.
//!
//! strace kills the process when it enters a chosen system call. A text in the trace shows that this was
//! during the CSI call.

use std::{fs, os::unix::process::ExitStatusExt as _};

use anyhow::{Context as _, Result, ensure};

use super::fixture::{
    ContainerVolume, DIRECTORY, IMAGE, MEMORY, MOUNT_PATH, PodFixture, RUN_UNTIL_TERMINATED, TIMEOUT,
    TestNamespace, VolumeClass,
};
use crate::{
    backend::NodeRoles,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};

/// The number of the signal SIGKILL.
const SIGKILL: i32 = 9;

/// The system call, during a CSI call of kubelet, at which strace kills the process of the node roles.
struct CrashPoint {
    /// The interrupted call of kubelet: `stage`, `publish`, `unpublish` or `unstage`.
    csi_call: &'static str,
    /// The system call at which strace kills the process.
    syscall: &'static str,
    /// The invocation of `syscall` that is interrupted. strace counts from 1 in each thread, and only
    /// invocations after it was attached.
    nth: u32,
    /// Text that the trace contains: in the line of the system call, or in an earlier one.
    trace: &'static str,
}

/// Crash points of a pod's start and of its deletion.
struct CrashTest {
    class: VolumeClass,
    start: CrashPoint,
    end: CrashPoint,
}

const MEMORY_CRASHES: [CrashTest; 2] = [
    CrashTest {
        class: MEMORY,
        start: CrashPoint { csi_call: "stage", syscall: "move_mount", nth: 1, trace: "globalmount>" },
        end: CrashPoint { csi_call: "unpublish", syscall: "umount2", nth: 1, trace: "/mount\"" },
    },
    CrashTest {
        class: MEMORY,
        start: CrashPoint { csi_call: "publish", syscall: "mkdirat", nth: 1, trace: "\"mount\"" },
        end: CrashPoint { csi_call: "unstage", syscall: "unlink", nth: 1, trace: ".json\"" },
    },
];

const POOL_CRASHES: [CrashTest; 3] = [
    CrashTest {
        class: IMAGE,
        start: CrashPoint { csi_call: "stage", syscall: "wait4", nth: 6, trace: "\"/usr/sbin/mkfs.ext4\"" },
        end: CrashPoint {
            csi_call: "unpublish",
            syscall: "unlinkat",
            nth: 1,
            trace: "\"mount\", AT_REMOVEDIR",
        },
    },
    CrashTest {
        class: IMAGE,
        start: CrashPoint { csi_call: "publish", syscall: "open_tree", nth: 1, trace: "globalmount>" },
        end: CrashPoint { csi_call: "unstage", syscall: "wait4", nth: 2, trace: "\"--detach\"" },
    },
    CrashTest {
        class: DIRECTORY,
        start: CrashPoint { csi_call: "stage", syscall: "open_tree", nth: 1, trace: "/pool/volumes/" },
        end: CrashPoint { csi_call: "unpublish", syscall: "umount2", nth: 1, trace: "/mount\"" },
    },
];

pub(super) async fn crash_during_calls(fixture: &mut PodFixture<'_>) -> Result<()> {
    let run = fixture.run;
    let namespace = fixture.create_namespace("deaths").await?;
    let mut handles = Vec::new();
    for (backend, rows, roles) in [
        ("memory", MEMORY_CRASHES.as_slice(), &mut fixture.memory),
        ("pool", POOL_CRASHES.as_slice(), &mut fixture.pool),
    ] {
        let namespace = namespace.clone();
        handles.push(async move {
            for (number, row) in rows.iter().enumerate() {
                let name = format!("{backend}-{number}");
                let (start, end) = (row.start.csi_call, row.end.csi_call);
                run_crash_test(run, &namespace, roles, &name, row)
                    .await
                    .with_context(|| format!("{name}, a death in {start} and one in {end}"))?;
            }
            anyhow::Ok(())
        });
    }
    futures::future::try_join_all(handles).await?;
    namespace.delete_claims().await
}

async fn run_crash_test(
    run: &SuiteRun,
    namespace: &TestNamespace,
    roles: &mut NodeRoles,
    name: &str,
    test: &CrashTest,
) -> Result<()> {
    let of = ContainerVolume::claim(name);
    namespace.create_claim(name, test.class).await?;
    let strace = attach_strace(run, roles, &format!("{name}-{}", test.start.csi_call), &test.start).await?;
    namespace
        .create_pod(name, &of, &format!("echo {name} > {MOUNT_PATH}/f; sync; {RUN_UNTIL_TERMINATED}"))
        .await?;
    wait_crash(roles, strace, &test.start).await?;
    roles.restart().await?;
    namespace.wait_script_done(name).await?;
    let handle = namespace
        .wait_bound(name)
        .await?
        .spec
        .and_then(|spec| spec.csi)
        .context("no CSI volume")?
        .volume_handle;

    let strace = attach_strace(run, roles, &format!("{name}-{}", test.end.csi_call), &test.end).await?;
    let crash = async {
        wait_crash(roles, strace, &test.end).await?;
        roles.restart().await
    };
    futures::try_join!(namespace.delete_pod(name), crash)?;
    until("the volume is unstaged", TIMEOUT, async || {
        let known = roles.volume_records()?;
        ensure!(!known.iter().any(|record| record.contains(&handle)), "it is on the node");
        Ok(())
    })
    .await?;
    let output = namespace
        .run_pod(
            &format!("{name}-next"),
            &of,
            &format!("cd {MOUNT_PATH}; if test -e f; then cat f; else echo nothing; fi"),
        )
        .await?;
    let expected = if test.class == MEMORY { "nothing" } else { name };
    ensure!(output == expected, "the next pod reads {output:?}: expected {expected:?}");
    Ok(())
}

/// Attaches strace to the process of the node roles, and waits until it is attached. strace kills the process
/// at the crash point, usually after this function has returned.
async fn attach_strace(
    run: &SuiteRun,
    roles: &NodeRoles,
    name: &str,
    death: &CrashPoint,
) -> Result<ManagedProcess> {
    let id = roles.process.id().context("the process does not run")?;
    let CrashPoint { syscall: at, nth, .. } = death;
    let spec = CommandSpec::new(format!("strace-{name}"), "/usr/bin/strace")
        .args(["-f", "-y", "-s", "200", "-e"])
        .arg(format_args!("trace={at},execve"))
        .arg("-e")
        .arg(format_args!("inject={at}:signal=KILL:when={nth}"))
        .arg(format_args!("--attach={id}"));
    let mut strace = ManagedProcess::start(run, spec)?;
    let log = strace.log().to_owned();
    strace
        .wait_ready(TIMEOUT, async || {
            ensure!(fs::read_to_string(&log)?.contains(" attached"), "it is not attached");
            Ok(())
        })
        .await?;
    Ok(strace)
}

/// Waits until the process of the node roles is killed and strace has ended. Checks that the trace contains
/// the crash point's text.
async fn wait_crash(roles: &mut NodeRoles, mut strace: ManagedProcess, death: &CrashPoint) -> Result<()> {
    let status =
        roles.process.wait_exit(TIMEOUT).await.with_context(|| format!("no death at {}", death.syscall))?;
    ensure!(status.signal() == Some(SIGKILL), "the process ended with {status}: expected a kill");
    strace.wait_exit(TIMEOUT).await?;
    let trace = fs::read_to_string(strace.log())?;
    let (at, expected_trace) = (death.syscall, death.trace);
    ensure!(
        trace.contains("killed by SIGKILL") && trace.contains(expected_trace),
        "it died elsewhere than at {at} with {expected_trace}: {}",
        strace.log().display()
    );
    Ok(())
}
