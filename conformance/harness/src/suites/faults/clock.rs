//! The clock of our program jumps, as it does where somebody sets it: libfaketime (Debian's `faketime`) shifts what it reads. What
//! measures spans of time, CLOCK_MONOTONIC, does not jump on a machine either.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, api::ListParams};

use super::{
    CLAIMS, FIRST,
    stage::{DRIVER, LONG, Ours, Stage, create, recovers},
};
use crate::claims::Claims;

const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];
/// What the clock shows after each jump, and how many claims are Bound by then.
const JUMPS: [(&str, usize); 3] = [("+3d", FIRST), ("-3d", 350), ("+0", 550)];
const HOUR: i64 = 3_600;

pub(super) async fn jumps(stage: &mut Stage<'_>) -> Result<()> {
    let library = LIBRARIES.into_iter().find(|library| Path::new(library).exists());
    let library = library
        .context("no libfaketime: expected Debian's package `faketime`, as `make peers` installs it")?;
    let clock = stage.run.scratch().join("clock");
    fs::write(&clock, "+0")?;
    let variables = [
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", clock.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    stage.ours.process.stop().await?;
    stage.ours = Ours::start(stage.run, stage.proxy.kubeconfig(), &stage.driver, &variables).await?;

    let claims = Claims::new(stage.plane.client(), "clock-jumps", DRIVER).await?;
    let run = stage.run;
    let fault = async {
        for (to, at) in JUMPS {
            claims.bound(at, LONG).await?;
            claims.in_the_middle().await?;
            fs::write(&clock, to)?;
        }
        recovers(run, &claims, "the clock 3 days ahead, 3 days back, and right", CLAIMS, Instant::now()).await
    };
    tokio::try_join!(create(&claims, 0..CLAIMS), fault)?;
    jumped(stage).await?;
    stage.sound(&claims, CLAIMS).await?;

    stage.ours.process.stop().await?;
    stage.ours = Ours::start(stage.run, stage.proxy.kubeconfig(), &stage.driver, &[]).await?;
    Ok(())
}

/// The jumps were seen: the program's events say times that were not.
async fn jumped(stage: &Stage<'_>) -> Result<()> {
    let events: Api<Event> = Api::namespaced(stage.plane.client().clone(), "clock-jumps");
    let now = Timestamp::now().as_second();
    let times: Vec<i64> = events
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .filter_map(|event| Some(event.last_timestamp.as_ref()?.0.as_second() - now))
        .collect();
    let ahead = times.iter().filter(|time| **time > HOUR).count();
    let behind = times.iter().filter(|time| **time < -HOUR).count();
    ensure!(ahead > 0 && behind > 0, "{ahead} events are ahead and {behind} behind: expected some of both");
    Ok(())
}
