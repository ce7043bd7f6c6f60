//! The role `node` dies in the middle of a call, by `kill -9`, and its next process goes on.
//!
//! strace kills it as it enters a system call of that call: so it is the middle, and the trace says of what.

use std::{fs, os::unix::process::ExitStatusExt as _};

use anyhow::{Context as _, Result, ensure};

use super::ground::{AT, Class, DIRECTORY, Ground, IMAGE, MEMORY, Room, SOON, STAYS, Use};
use crate::{
    chain::NodeRoles,
    process::{Process, Spec},
    run::Run,
    wait::until,
};

/// SIGKILL.
const KILLED: i32 = 9;

/// Where the process dies.
struct Death {
    /// The call of kubelet's that is cut off.
    call: &'static str,
    /// The system call, and how many of its kind come before it in the same call of kubelet's.
    at: &'static str,
    nth: u32,
    /// What its line in the trace has, or one before it.
    trace: &'static str,
}

/// A pod's start with a death in it, and its end with another.
struct Row {
    class: Class,
    start: Death,
    end: Death,
}

const OF_MEMORY: [Row; 2] = [
    Row {
        class: MEMORY,
        start: Death { call: "stage", at: "move_mount", nth: 1, trace: "globalmount>" },
        end: Death { call: "unpublish", at: "umount2", nth: 1, trace: "/mount\"" },
    },
    Row {
        class: MEMORY,
        start: Death { call: "publish", at: "mkdirat", nth: 1, trace: "\"mount\"" },
        end: Death { call: "unstage", at: "unlink", nth: 1, trace: ".json\"" },
    },
];

const OF_POOL: [Row; 3] = [
    Row {
        class: IMAGE,
        start: Death { call: "stage", at: "wait4", nth: 6, trace: "\"/usr/sbin/mkfs.ext4\"" },
        end: Death { call: "unpublish", at: "unlinkat", nth: 1, trace: "\"mount\", AT_REMOVEDIR" },
    },
    Row {
        class: IMAGE,
        start: Death { call: "publish", at: "open_tree", nth: 1, trace: "globalmount>" },
        end: Death { call: "unstage", at: "wait4", nth: 2, trace: "\"--detach\"" },
    },
    Row {
        class: DIRECTORY,
        start: Death { call: "stage", at: "open_tree", nth: 1, trace: "/pool/volumes/" },
        end: Death { call: "unpublish", at: "umount2", nth: 1, trace: "/mount\"" },
    },
];

pub(super) async fn in_the_middle(ground: &mut Ground<'_>) -> Result<()> {
    let run = ground.run;
    let room = ground.room("deaths").await?;
    let mut handles = Vec::new();
    for (lane, rows, roles) in
        [("memory", OF_MEMORY.as_slice(), &mut ground.memory), ("pool", OF_POOL.as_slice(), &mut ground.pool)]
    {
        let room = room.clone();
        handles.push(async move {
            for (number, row) in rows.iter().enumerate() {
                let name = format!("{lane}-{number}");
                let (start, end) = (row.start.call, row.end.call);
                play(run, &room, roles, &name, row)
                    .await
                    .with_context(|| format!("{name}, a death in {start} and one in {end}"))?;
            }
            anyhow::Ok(())
        });
    }
    futures::future::try_join_all(handles).await?;
    room.empty().await
}

async fn play(run: &Run, room: &Room, roles: &mut NodeRoles, name: &str, row: &Row) -> Result<()> {
    let of = Use::claim(name);
    room.claim(name, row.class).await?;
    let strace = attach(run, roles, &format!("{name}-{}", row.start.call), &row.start).await?;
    room.pod(name, &of, &format!("echo {name} > {AT}/f; sync; {STAYS}")).await?;
    dies(roles, strace, &row.start).await?;
    roles.again().await?;
    room.done(name).await?;
    let handle =
        room.bound(name).await?.spec.and_then(|spec| spec.csi).context("no CSI volume")?.volume_handle;

    let strace = attach(run, roles, &format!("{name}-{}", row.end.call), &row.end).await?;
    let death = async {
        dies(roles, strace, &row.end).await?;
        roles.again().await
    };
    futures::try_join!(room.gone(name), death)?;
    until("the volume is unstaged", SOON, async || {
        let known = roles.records()?;
        ensure!(!known.iter().any(|record| record.contains(&handle)), "it is on the node");
        Ok(())
    })
    .await?;
    let said = room
        .says(
            &format!("{name}-next"),
            &of,
            &format!("cd {AT}; if test -e f; then cat f; else echo nothing; fi"),
        )
        .await?;
    let expected = if row.class == MEMORY { "nothing" } else { name };
    ensure!(said == expected, "the next pod reads {said:?}: expected {expected:?}");
    Ok(())
}

/// Lets strace wait for the system call.
async fn attach(run: &Run, roles: &NodeRoles, name: &str, death: &Death) -> Result<Process> {
    let id = roles.process.id().context("the process does not run")?;
    let Death { at, nth, .. } = death;
    let spec = Spec::new(format!("strace-{name}"), "/usr/bin/strace")
        .args(["-f", "-y", "-s", "200", "-e"])
        .arg(format_args!("trace={at},execve"))
        .arg("-e")
        .arg(format_args!("inject={at}:signal=KILL:when={nth}"))
        .arg(format_args!("--attach={id}"));
    let mut strace = Process::start(run, spec)?;
    let log = strace.log().to_owned();
    strace
        .ready(SOON, async || {
            ensure!(fs::read_to_string(&log)?.contains(" attached"), "it is not attached");
            Ok(())
        })
        .await?;
    Ok(strace)
}

/// Waits for the process' death, and looks that it was where it had to be.
async fn dies(roles: &mut NodeRoles, mut strace: Process, death: &Death) -> Result<()> {
    let status = roles.process.ended(SOON).await.with_context(|| format!("no death at {}", death.at))?;
    ensure!(status.signal() == Some(KILLED), "the process ended with {status}: expected a kill");
    strace.ended(SOON).await?;
    let trace = fs::read_to_string(strace.log())?;
    let (at, words) = (death.at, death.trace);
    ensure!(
        trace.contains("killed by SIGKILL") && trace.contains(words),
        "it died elsewhere than at {at} with {words}: {}",
        strace.log().display()
    );
    Ok(())
}
