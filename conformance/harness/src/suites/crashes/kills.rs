//! Repeated kills of a process of Cofferdam while users come and go.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use kube::Client;

use crate::{
    control_plane,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    seeded_rng::seeded_rng,
    sidecar::plain_client,
    wait::until,
};

pub(super) const KILLS: usize = 50;
/// Number of users that start before each kill.
pub(super) const USERS_PER_KILL: usize = 3;
/// Number of users of all waves.
pub(super) const USERS: usize = KILLS * USERS_PER_KILL;
/// Every other kill happens once all users together have made a random number of steps since the previous
/// kill, at most this number. The [`USERS_PER_KILL`] users of a wave make at least 12 steps.
const MAX_STEPS_BEFORE_KILL: usize = 8;
/// Minimum number of kills that hit a working process: a user has made a step since the previous kill, and
/// some users are not finished. About 25 kills do.
const MIN_KILLS_DURING_WORK: usize = 15;
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of each wait: for the steps before a kill, and from the readiness of the last process until all
/// users are finished.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Progress of the users, shared by their workload and [`kill_repeatedly`].
#[derive(Debug, Default)]
pub(super) struct SharedProgress {
    /// Number of users that have to be started by now.
    pub(super) expected_users: Cell<usize>,
    /// Number of steps made by all users, and number of users that are finished.
    pub(super) steps_and_finished: Cell<(usize, usize)>,
}

/// The killed process.
pub(super) struct KilledProcess {
    pub(super) process: ManagedProcess,
    client: Client,
}

impl KilledProcess {
    /// Starts the process, whose HTTP endpoint is at `port` of 127.0.0.1, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready.
    pub(super) async fn start(run: &SuiteRun, spec: CommandSpec, port: u16) -> Result<Self> {
        let mut process = Self { process: ManagedProcess::start(run, spec)?, client: plain_client(port)? };
        process.wait_ready().await?;
        Ok(process)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let client = &self.client;
        self.process
            .wait_ready(READY_TIMEOUT, async || control_plane::probe_path(client, "/readyz").await)
            .await
    }

    async fn is_ready(&self) -> bool {
        control_plane::probe_path(&self.client, "/readyz").await.is_ok()
    }
}

/// Starts [`KILLS`] waves of users, and kills the process after the start of each. Then waits until all users
/// are finished. `users` describes them in the notes.
///
/// # Errors
/// If fewer than [`MIN_KILLS_DURING_WORK`] kills hit a working process, or the users do not finish.
pub(super) async fn kill_repeatedly(
    run: &SuiteRun,
    cofferdam: &mut KilledProcess,
    progress: &SharedProgress,
    users: &str,
) -> Result<()> {
    let mut rng = seeded_rng()?;
    // Duration of a start: every other process is killed around the end of its start, the others after some
    // steps of the users.
    let started = Instant::now();
    cofferdam.process.stop().await?;
    cofferdam.process.restart()?;
    cofferdam.wait_ready().await?;
    let start = started.elapsed();
    let (mut ready, mut in_work, mut steps_before) = (0, 0, 0);
    for kill in 1..=KILLS {
        progress.expected_users.set(kill * USERS_PER_KILL);
        if kill % 2 == 0 {
            let steps = steps_before + rng.usize(1..=MAX_STEPS_BEFORE_KILL);
            until("the users make progress", TIMEOUT, async || {
                let steps_made = progress.steps_and_finished.get().0;
                ensure!(steps_made >= steps, "{steps_made} of {steps} steps");
                Ok(())
            })
            .await?;
        } else {
            let lifetime = start.mul_f64(0.3 + rng.f64() * 1.4);
            tokio::time::sleep(lifetime).await;
        }
        ready += usize::from(cofferdam.is_ready().await);
        let (steps_made, gone) = progress.steps_and_finished.get();
        in_work += usize::from(steps_made > steps_before && gone < kill * USERS_PER_KILL);
        cofferdam.process.kill().await?;
        steps_before = progress.steps_and_finished.get().0;
        cofferdam.process.restart()?;
    }
    let ended = Instant::now();
    let gone = progress.steps_and_finished.get().1;
    run.add_note(&format!("{KILLS} times kill -9: {ready} processes were ready, {in_work} were working"))?;
    ensure!(
        in_work >= MIN_KILLS_DURING_WORK,
        "{in_work} of {KILLS} processes were killed during work: expected at least {MIN_KILLS_DURING_WORK}"
    );
    cofferdam.wait_ready().await?;
    until("all users are finished", TIMEOUT, async || {
        let (steps_made, gone) = progress.steps_and_finished.get();
        ensure!(gone == USERS, "{gone} of {USERS} are, after {steps_made} steps");
        Ok(())
    })
    .await?;
    run.add_note(&format!(
        "{USERS} {users}: {gone} finished at the last kill, all {:.1} s later",
        ended.elapsed().as_secs_f64()
    ))
}
