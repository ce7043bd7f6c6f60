//! The API server is 20 ms away, its connections are closed, its responses fail, and the network hangs, one
//! after the other during one load.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::StatusCode;

use super::{
    BOUND_BEFORE_FAULT, CLAIMS, close_all_connections,
    fixture::{
        CONCURRENT_CLAIMS, CofferdamProcess, DRIVER, FaultFixture, TIMEOUT, create_continuously,
        wait_recovery,
    },
    inject_error_responses,
};
use crate::{
    claims::{Claims, ContinuousClaimLoad},
    network_link::NetworkLink,
    proxy::ProxyMode,
};

const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Number of times at which the proxy closes all connections.
const DISCONNECTS: usize = 5;
/// Number of further claims that become Bound before each fault.
const BOUND_PER_FAULT: usize = 50;
/// Duration for which nothing is forwarded. It is longer than the 30 s after which `cofferdam` gives up a
/// request: the link delivers requests that their sender has given up.
const HANG: Duration = Duration::from_secs(45);
/// Time after the cut in which responses that have passed the link can still have an effect.
const LATE_EFFECTS: Duration = Duration::from_secs(2);

pub(super) async fn fail_at_a_distance(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let run = fixture.run;
    // `cofferdam` connects to the link, which connects to the proxy.
    let link = NetworkLink::start(fixture.proxy.kubeconfig()).await?;
    link.set_round_trip(ROUND_TRIP);
    fixture.cofferdam.process.stop().await?;
    fixture.cofferdam = CofferdamProcess::start(run, link.kubeconfig(), &fixture.driver, &[]).await?;

    let claims = Claims::new(fixture.plane.client(), "distant", DRIVER).await?;
    let proxy = &fixture.proxy;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
    let fault = async {
        claims.wait_bound(BOUND_BEFORE_FAULT, TIMEOUT).await?;
        for _ in 0..DISCONNECTS {
            wait_for_work(&claims).await?;
            close_all_connections(proxy).await?;
        }
        for mode in [
            ProxyMode::Reject(StatusCode::TOO_MANY_REQUESTS),
            ProxyMode::Reject(StatusCode::INTERNAL_SERVER_ERROR),
            ProxyMode::ErrorAfterWrite,
        ] {
            wait_for_work(&claims).await?;
            inject_error_responses(proxy, mode).await?;
        }
        wait_for_work(&claims).await?;
        link.cut();
        tokio::time::sleep(LATE_EFFECTS).await;
        let bound = claims.count_bound().await?;
        tokio::time::sleep(HANG - LATE_EFFECTS).await;
        let count = load.finish();
        let bound_later = claims.count_bound().await?;
        ensure!(bound_later == bound, "{bound_later} claims are Bound, {bound} were when the link was cut");
        ensure!(count > bound, "all {count} claims are Bound: expected claims that wait for the link");
        link.restore();
        let fault = "20 ms away, with closed connections, 429, 500, lost responses and 45 s of silence";
        wait_recovery(run, &claims, fault, count, Instant::now()).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault)?;
    fixture.check_and_clean_up(&claims, count).await?;

    fixture.cofferdam.process.stop().await?;
    fixture.cofferdam =
        CofferdamProcess::start(run, fixture.proxy.kubeconfig(), &fixture.driver, &[]).await?;
    Ok(())
}

/// Waits until some more claims have become Bound, and others are not Bound yet.
async fn wait_for_work(claims: &Claims) -> Result<()> {
    let bound = claims.count_bound().await?;
    claims.wait_bound(bound + BOUND_PER_FAULT, TIMEOUT).await?;
    claims.wait_unfinished(TIMEOUT).await
}
