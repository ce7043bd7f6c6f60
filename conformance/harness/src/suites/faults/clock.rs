//! The wall clock of `cofferdam` jumps.

use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, api::ListParams};

use super::{
    BOUND_BEFORE_FAULT, CLAIMS,
    fixture::{
        CONCURRENT_CLAIMS, CofferdamProcess, DRIVER, FaultFixture, TIMEOUT, create_continuously,
        wait_recovery,
    },
};
use crate::{
    claims::{Claims, ContinuousClaimLoad},
    fake_clock::FakeClock,
};

/// Offsets from the real time in libfaketime's format, and the minimum number of Bound claims at each jump.
/// The last jump returns to the real time.
const CLOCK_JUMPS: [(&str, usize); 3] = [("+3d", BOUND_BEFORE_FAULT), ("-3d", 350), ("+0", 550)];
const HOUR: i64 = 3_600;

pub(super) async fn shift_clock(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let clock = FakeClock::new(fixture.run, "clock")?;
    fixture.cofferdam.process.stop().await?;
    fixture.cofferdam =
        CofferdamProcess::start(fixture.run, fixture.proxy.kubeconfig(), &fixture.driver, &clock.variables())
            .await?;

    let claims = Claims::new(fixture.plane.client(), "clock-jumps", DRIVER).await?;
    let run = fixture.run;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
    let fault = async {
        for (to, at) in CLOCK_JUMPS {
            claims.wait_bound(at, TIMEOUT).await?;
            claims.wait_unfinished(TIMEOUT).await?;
            clock.set(to)?;
        }
        let count = load.finish();
        wait_recovery(run, &claims, "clock 3 days ahead, 3 days back, and correct", count, Instant::now())
            .await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault)?;
    check_event_times(fixture).await?;
    fixture.check_and_clean_up(&claims, count).await?;

    fixture.cofferdam.process.stop().await?;
    fixture.cofferdam =
        CofferdamProcess::start(fixture.run, fixture.proxy.kubeconfig(), &fixture.driver, &[]).await?;
    Ok(())
}

/// Checks that `cofferdam` saw the jumps: some of its events have times more than an hour ahead of the real
/// time, and some more than an hour behind.
async fn check_event_times(fixture: &FaultFixture<'_>) -> Result<()> {
    let events: Api<Event> = Api::namespaced(fixture.plane.client().clone(), "clock-jumps");
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
