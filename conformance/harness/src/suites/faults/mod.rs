//! What goes wrong around our program on a real cluster, in the middle of 1,000 claims: afterwards every claim is Bound, to one
//! volume of its own, and nothing is left over.

mod clock;
mod kills;
mod restore;
mod stage;

use std::time::{Duration, Instant};

use anyhow::Result;
use http::StatusCode;

use crate::{claims::Claims, proxy::Weather, run::Run, wait::until};
use stage::{DRIVER, LONG, Stage, create, recovers};

const CLAIMS: usize = 1_000;
/// How many claims are Bound when a fault begins.
const FIRST: usize = 150;
/// How long etcd stands still.
const STANDSTILL: Duration = Duration::from_secs(20);
/// Cuts of all connections, and how many claims become Bound between two of them.
const CUTS: usize = 20;
const BETWEEN: usize = 25;
/// Answers that are none before the weather becomes fair again.
const SPOILT: usize = 60;

pub(super) async fn run(run: &Run) -> Result<()> {
    let mut stage = Stage::new(run).await?;
    api_killed(&mut stage).await?;
    etcd_stopped(&mut stage).await?;
    connections_cut(&mut stage).await?;
    refused(&mut stage).await?;
    clock::jumps(&mut stage).await?;
    kills::fifty(&mut stage).await?;
    restore::half_a_minute(&mut stage).await?;
    stage.end().await
}

async fn api_killed(stage: &mut Stage<'_>) -> Result<()> {
    let claims = Claims::new(stage.plane.client(), "api-killed", DRIVER).await?;
    let run = stage.run;
    let fault = async {
        claims.bound(FIRST, LONG).await?;
        claims.in_the_middle().await?;
        stage.plane.api.kill().await?;
        // From here on, although it takes its time until it answers: work goes on before it calls itself ready.
        stage.plane.api_again()?;
        let recovers = recovers(run, &claims, "kube-apiserver killed and started", CLAIMS, Instant::now());
        tokio::try_join!(recovers, stage.plane.api_ready()).map(|_| ())
    };
    tokio::try_join!(create(&claims, 0..CLAIMS), fault)?;
    stage.sound(&claims, CLAIMS).await
}

async fn etcd_stopped(stage: &mut Stage<'_>) -> Result<()> {
    let claims = Claims::new(stage.plane.client(), "etcd-stopped", DRIVER).await?;
    let run = stage.run;
    let fault = async {
        claims.bound(FIRST, LONG).await?;
        claims.in_the_middle().await?;
        stage.plane.etcd.pause()?;
        tokio::time::sleep(STANDSTILL).await;
        stage.plane.etcd.resume()?;
        recovers(run, &claims, "etcd stopped for 20 s", CLAIMS, Instant::now()).await
    };
    tokio::try_join!(create(&claims, 0..CLAIMS), fault)?;
    stage.sound(&claims, CLAIMS).await
}

async fn connections_cut(stage: &mut Stage<'_>) -> Result<()> {
    let claims = Claims::new(stage.plane.client(), "connections-cut", DRIVER).await?;
    let proxy = &stage.proxy;
    let run = stage.run;
    let fault = async {
        for cut in 0..CUTS {
            claims.bound(FIRST + cut * BETWEEN, LONG).await?;
            claims.in_the_middle().await?;
            let before = proxy.ended();
            // Our program may be between two connections.
            until("connections were cut", LONG, async || {
                proxy.cut();
                anyhow::ensure!(proxy.ended() > before, "no connection was cut");
                Ok(())
            })
            .await?;
        }
        recovers(run, &claims, "20 times all connections cut", CLAIMS, Instant::now()).await
    };
    tokio::try_join!(create(&claims, 0..CLAIMS), fault)?;
    stage.sound(&claims, CLAIMS).await
}

async fn refused(stage: &mut Stage<'_>) -> Result<()> {
    for (name, fault, weather) in [
        ("too-many", "429 to every request", Weather::Refused(StatusCode::TOO_MANY_REQUESTS)),
        ("broken", "500 to every request", Weather::Refused(StatusCode::INTERNAL_SERVER_ERROR)),
        ("answers-lost", "500 to every write that the API took", Weather::AnswerLost),
    ] {
        let claims = Claims::new(stage.plane.client(), name, DRIVER).await?;
        let proxy = &stage.proxy;
        let run = stage.run;
        let happens = async {
            claims.bound(FIRST, LONG).await?;
            claims.in_the_middle().await?;
            let before = proxy.spoilt();
            proxy.becomes(weather);
            until("enough went wrong", LONG, async || {
                anyhow::ensure!(
                    proxy.spoilt() >= before + SPOILT,
                    "{} answers were none",
                    proxy.spoilt() - before
                );
                Ok(())
            })
            .await?;
            proxy.becomes(Weather::Fair);
            recovers(run, &claims, fault, CLAIMS, Instant::now()).await
        };
        tokio::try_join!(create(&claims, 0..CLAIMS), happens)?;
        stage.sound(&claims, CLAIMS).await?;
    }
    Ok(())
}
