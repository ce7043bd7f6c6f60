//! Faults of kube-apiserver, of etcd, of the connections to the API, and of `cofferdam` and its clock, on a
//! real control plane. Each happens during a load of at least 1,000 claims. Afterwards every claim is Bound
//! to a volume of its own, and the storage has no other volume. A restore of etcd is the exception: it
//! interrupts its load and removes claims, and the storage has to keep their volumes.

mod clock;
mod crashes;
mod distance;
mod fixture;
mod restore;

use std::time::{Duration, Instant};

use anyhow::Result;
use http::StatusCode;

use crate::{
    claims::{Claims, ContinuousClaimLoad},
    proxy::{Proxy, ProxyMode},
    run::SuiteRun,
    wait::until,
};
use fixture::{CONCURRENT_CLAIMS, DRIVER, FaultFixture, TIMEOUT, create_continuously, wait_recovery};

const CLAIMS: usize = 1_000;
/// Minimum number of Bound claims when a fault of this module starts, and at the first jump of the clock.
const BOUND_BEFORE_FAULT: usize = 150;
/// Duration of etcd's pause.
const ETCD_PAUSE: Duration = Duration::from_secs(20);
/// Number of times at which the proxy closes all connections.
const DISCONNECTS: usize = 20;
/// The minimum number of Bound claims at a disconnect is [`BOUND_BEFORE_FAULT`] for the first, and increases
/// by this number for each further one.
const BOUND_PER_DISCONNECT: usize = 25;
/// Minimum number of the proxy's error responses during one fault.
const MIN_FAILED_RESPONSES: usize = 60;

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut fixture = FaultFixture::new(run).await?;
    kill_api(&mut fixture).await?;
    pause_etcd(&mut fixture).await?;
    close_connections(&mut fixture).await?;
    fail_requests(&mut fixture).await?;
    distance::fail_at_a_distance(&mut fixture).await?;
    clock::shift_clock(&mut fixture).await?;
    crashes::kill_repeatedly(&mut fixture).await?;
    restore::restore_old_snapshot(&mut fixture).await?;
    fixture.stop().await
}

async fn kill_api(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let claims = Claims::new(fixture.plane.client(), "api-killed", DRIVER).await?;
    let run = fixture.run;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
    let fault = async {
        claims.wait_bound(BOUND_BEFORE_FAULT, TIMEOUT).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        fixture.plane.api.kill().await?;
        // The recovery starts here: claims may be Bound before the API server is ready.
        fixture.plane.spawn_api()?;
        let count = load.finish();
        let recovery =
            wait_recovery(run, &claims, "kube-apiserver killed and started", count, Instant::now());
        tokio::try_join!(recovery, fixture.plane.wait_api_ready())?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault)?;
    fixture.check_and_clean_up(&claims, count).await
}

async fn pause_etcd(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let claims = Claims::new(fixture.plane.client(), "etcd-stopped", DRIVER).await?;
    let run = fixture.run;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
    let fault = async {
        claims.wait_bound(BOUND_BEFORE_FAULT, TIMEOUT).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        fixture.plane.etcd.pause().await?;
        tokio::time::sleep(ETCD_PAUSE).await;
        fixture.plane.etcd.resume()?;
        let count = load.finish();
        wait_recovery(run, &claims, "etcd stopped for 20 s", count, Instant::now()).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault)?;
    fixture.check_and_clean_up(&claims, count).await
}

async fn close_connections(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let claims = Claims::new(fixture.plane.client(), "connections-cut", DRIVER).await?;
    let proxy = &fixture.proxy;
    let run = fixture.run;
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
    let fault = async {
        for cut in 0..DISCONNECTS {
            claims.wait_bound(BOUND_BEFORE_FAULT + cut * BOUND_PER_DISCONNECT, TIMEOUT).await?;
            claims.wait_unfinished(TIMEOUT).await?;
            close_all_connections(proxy).await?;
        }
        let count = load.finish();
        wait_recovery(run, &claims, "all connections closed 20 times", count, Instant::now()).await?;
        anyhow::Ok(count)
    };
    let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault)?;
    fixture.check_and_clean_up(&claims, count).await
}

/// Closes all connections of `cofferdam`, and waits until it has some if there is none.
async fn close_all_connections(proxy: &Proxy) -> Result<()> {
    let before = proxy.closed_connections();
    until("connections were cut", TIMEOUT, async || {
        proxy.close_connections();
        anyhow::ensure!(proxy.closed_connections() > before, "no connection was cut");
        Ok(())
    })
    .await
}

/// Sets a mode that fails requests until [`MIN_FAILED_RESPONSES`] have failed.
async fn inject_error_responses(proxy: &Proxy, mode: ProxyMode) -> Result<()> {
    let before = proxy.failed_responses();
    proxy.set_mode(mode);
    until("the proxy failed enough responses", TIMEOUT, async || {
        anyhow::ensure!(
            proxy.failed_responses() >= before + MIN_FAILED_RESPONSES,
            "{} of {MIN_FAILED_RESPONSES} responses failed",
            proxy.failed_responses() - before
        );
        Ok(())
    })
    .await?;
    proxy.set_mode(ProxyMode::Forward);
    Ok(())
}

async fn fail_requests(fixture: &mut FaultFixture<'_>) -> Result<()> {
    for (name, fault, weather) in [
        ("too-many", "429 to every request", ProxyMode::Reject(StatusCode::TOO_MANY_REQUESTS)),
        ("broken", "500 to every request", ProxyMode::Reject(StatusCode::INTERNAL_SERVER_ERROR)),
        ("answers-lost", "500 to every write that the API took", ProxyMode::ErrorAfterWrite),
    ] {
        let claims = Claims::new(fixture.plane.client(), name, DRIVER).await?;
        let proxy = &fixture.proxy;
        let run = fixture.run;
        let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_CLAIMS);
        let fault_run = async {
            claims.wait_bound(BOUND_BEFORE_FAULT, TIMEOUT).await?;
            claims.wait_unfinished(TIMEOUT).await?;
            inject_error_responses(proxy, weather).await?;
            let count = load.finish();
            wait_recovery(run, &claims, fault, count, Instant::now()).await?;
            anyhow::Ok(count)
        };
        let (_, count) = tokio::try_join!(create_continuously(&claims, &load), fault_run)?;
        fixture.check_and_clean_up(&claims, count).await?;
    }
    Ok(())
}
