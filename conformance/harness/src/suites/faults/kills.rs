//! Our program is killed with -9, again and again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{
    CLAIMS,
    stage::{DRIVER, Stage, create, recovers},
};
use crate::{chance::chance, claims::Claims};

const KILLS: usize = 50;
/// Of them, how many have to hit a process in the middle of work, for the others to count.
const IN_WORK: usize = 10;

pub(super) async fn fifty(stage: &mut Stage<'_>) -> Result<()> {
    let mut chance = chance()?;
    let claims = Claims::new(stage.plane.client(), "killed", DRIVER).await?;
    // How long a start takes here and now: some are to die before they are ready, some at work.
    let started = Instant::now();
    stage.ours.process.stop().await?;
    stage.ours.process.again()?;
    stage.ours.ready().await?;
    let start = started.elapsed();

    let share = CLAIMS / KILLS;
    let (mut ready, mut in_work, mut bound) = (0, 0, 0);
    for kill in 0..KILLS {
        create(&claims, kill * share..(kill + 1) * share).await?;
        let life = start.mul_f64(chance.f64() * 2.0) + Duration::from_millis(chance.u64(0..200));
        tokio::time::sleep(life).await;
        ready += usize::from(stage.ours.is_ready().await);
        stage.ours.process.kill().await?;
        let now = claims.count_bound().await?;
        in_work += usize::from(now > bound && now < (kill + 1) * share);
        bound = now;
        stage.ours.process.again()?;
    }
    stage.run.tell(&format!(
        "{KILLS} times kill -9: {ready} of the processes were ready, {in_work} died with a part of the claims done"
    ))?;
    ensure!(in_work >= IN_WORK, "{in_work} of {KILLS} processes died at work: expected at least {IN_WORK}");
    let ended = Instant::now();
    stage.ours.ready().await?;
    recovers(stage.run, &claims, "our program killed with -9, 50 times", CLAIMS, ended).await?;
    stage.sound(&claims, CLAIMS).await
}
