//! `cofferdam` is killed repeatedly with SIGKILL, each time shortly after further claims are created.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{
    CLAIMS,
    fixture::{DRIVER, FaultFixture, create_with_retries, wait_recovery},
};
use crate::{claims::Claims, seeded_rng::seeded_rng};

/// Minimum kills.
const KILLS: usize = 50;
/// Maximum kills: more than [`KILLS`] follow until enough have hit a working process.
const MAX_KILLS: usize = 150;
/// Minimum kills that hit a working process: since the previous kill more claims have become Bound, and some
/// are not Bound yet.
const MIN_KILLS_DURING_WORK: usize = 10;

pub(super) async fn kill_repeatedly(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let mut rng = seeded_rng()?;
    let claims = Claims::new(fixture.plane.client(), "killed", DRIVER).await?;
    // Duration of a start: some processes are killed before they are ready, some during work.
    let started = Instant::now();
    fixture.cofferdam.process.stop().await?;
    fixture.cofferdam.process.restart()?;
    fixture.cofferdam.wait_ready().await?;
    let start = started.elapsed();

    let claims_per_kill = CLAIMS / KILLS;
    let (mut ready, mut in_work, mut bound, mut kill) = (0, 0, 0, 0);
    while kill < KILLS || (in_work < MIN_KILLS_DURING_WORK && kill < MAX_KILLS) {
        create_with_retries(&claims, kill * claims_per_kill..(kill + 1) * claims_per_kill).await?;
        let lifetime = start.mul_f64(rng.f64() * 2.0) + Duration::from_millis(rng.u64(0..200));
        tokio::time::sleep(lifetime).await;
        ready += usize::from(fixture.cofferdam.is_ready().await);
        fixture.cofferdam.process.kill().await?;
        let now = claims.count_bound().await?;
        in_work += usize::from(now > bound && now < (kill + 1) * claims_per_kill);
        bound = now;
        kill += 1;
        fixture.cofferdam.process.restart()?;
    }
    fixture.run.add_note(&format!(
        "{kill} times kill -9: {ready} processes were ready, {in_work} had bound a part of the claims"
    ))?;
    ensure!(
        in_work >= MIN_KILLS_DURING_WORK,
        "{in_work} of {kill} processes were killed during work: expected at least {MIN_KILLS_DURING_WORK}"
    );
    let (ended, count) = (Instant::now(), kill * claims_per_kill);
    fixture.cofferdam.wait_ready().await?;
    wait_recovery(fixture.run, &claims, "cofferdam killed with -9", count, ended).await?;
    fixture.check_and_clean_up(&claims, count).await
}
