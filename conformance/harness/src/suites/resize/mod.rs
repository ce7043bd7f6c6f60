//! Cofferdam's resizer completes expansions and modifications that csi-resizer started or failed to make, and
//! the other way round.

mod classes;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::Client;

use crate::{
    account::Account,
    claims::{ClaimExpansion, Claims},
    cofferdam,
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
    wait::until,
};

const DRIVER: &str = "resize.conformance.cofferdam.dev";
const CLAIMS: usize = 200;
/// Minimum number of expanded claims at each replacement of the resizer. The expansion of further claims is
/// pending then.
const SWAP_AFTER: [usize; 2] = [40, 120];
/// Latency of the driver during a replacement, above the timeouts of both resizers.
const HANG_LATENCY: Duration = Duration::from_secs(3600);
/// Minimum number of calls that are pending at a replacement: the concurrency of each resizer.
const CONCURRENT_CALLS: u64 = 10;
const TIMEOUT: Duration = Duration::from_secs(240);
/// Size of the claims at their creation.
const INITIAL_SIZE: &str = "1Gi";
/// The smaller of the requested sizes.
const SMALLER_SIZE: &str = "2Gi";
/// The larger of the requested sizes.
const LARGER_SIZE: &str = "3Gi";
/// More failures than calls are made: every call fails.
const UNLIMITED_FAILURES: u32 = 1_000_000;
const EXPAND_METHOD: &str = "ControllerExpandVolume";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    Cofferdam,
    Upstream,
}

impl Implementation {
    const fn other(self) -> Self {
        match self {
            Self::Cofferdam => Self::Upstream,
            Self::Upstream => Self::Cofferdam,
        }
    }
}

/// An expansion to [`LARGER_SIZE`] that the first resizer cannot complete, because the driver returns an
/// error. The user then requests [`SMALLER_SIZE`], and the second resizer, of the other implementation, has
/// to complete the expansion.
struct ResizeCase {
    name: &'static str,
    first: Implementation,
    /// gRPC code of the driver's errors for the first resizer.
    code: &'static str,
    /// Value of `status.allocatedResourceStatuses` that the first resizer leaves.
    expected_state: &'static str,
    /// Capacity of the claim and of its volume once the second resizer is done.
    final_size: &'static str,
}

/// After `OUT_OF_RANGE` the driver has not expanded the volume, so the smaller request applies. After
/// `UNAVAILABLE` a resizer cannot know whether the driver has expanded the volume, so the expansion to the
/// first requested size has to be completed.
const RESIZE_CASES: [ResizeCase; 4] = [
    ResizeCase {
        name: "ours-refused",
        first: Implementation::Cofferdam,
        code: "OUT_OF_RANGE",
        expected_state: "ControllerResizeInfeasible",
        final_size: SMALLER_SIZE,
    },
    ResizeCase {
        name: "theirs-refused",
        first: Implementation::Upstream,
        code: "OUT_OF_RANGE",
        expected_state: "ControllerResizeInfeasible",
        final_size: SMALLER_SIZE,
    },
    ResizeCase {
        name: "ours-open",
        first: Implementation::Cofferdam,
        code: "UNAVAILABLE",
        expected_state: "ControllerResizeInProgress",
        final_size: LARGER_SIZE,
    },
    ResizeCase {
        name: "theirs-open",
        first: Implementation::Upstream,
        code: "UNAVAILABLE",
        expected_state: "ControllerResizeInProgress",
        final_size: LARGER_SIZE,
    },
];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let plane = ControlPlane::start(
        run,
        ControlPlaneOptions { is_unlimited: true, ..ControlPlaneOptions::default() },
    )
    .await?;
    let mut driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let other_roles = Account::new(run, &plane, &["provisioner", "pv-controller", "protection"]).await?;
    let mut other_roles = cofferdam::start_with_csi_driver(run, &other_roles, driver.socket()).await?;
    let slot = ResizerSlot::new(run, &plane, &driver).await?;
    for case in RESIZE_CASES {
        case.run(plane.client(), &driver, &slot).await.with_context(|| case.name)?;
    }
    expand_many(run, plane.client(), &driver, &slot).await?;
    classes::modify_claims(run, plane.client(), &driver, &slot).await?;
    other_roles.stop().await?;
    driver.process.stop().await?;
    plane.stop().await
}

impl ResizeCase {
    async fn run(&self, client: &Client, driver: &CsiDriverProcess, slot: &ResizerSlot<'_>) -> Result<()> {
        let claims = Claims::new(client, self.name, DRIVER).await?;
        claims.create(0..1).await?;
        claims.wait_bound(1, TIMEOUT).await?;
        let before = call_count(driver, EXPAND_METHOD).await?;
        driver.inject_failures(EXPAND_METHOD, self.code, UNLIMITED_FAILURES).await?;
        let mut first = slot.start(self.first).await?;
        claims.expand(0..1, LARGER_SIZE).await?;
        until("the first has failed", TIMEOUT, async || {
            let (calls, growth) = (call_count(driver, EXPAND_METHOD).await?, claim_expansion(&claims).await?);
            ensure!(
                calls > before && growth.state == self.expected_state,
                "{} calls, {growth:?}",
                calls - before
            );
            Ok(())
        })
        .await?;
        first.kill().await?;
        let status = claim_expansion(&claims).await?;
        ensure!(
            status.capacity == INITIAL_SIZE && status.allocated == LARGER_SIZE,
            "the first leaves {status:?}"
        );

        driver.inject_failures(EXPAND_METHOD, self.code, 0).await?;
        claims.expand(0..1, SMALLER_SIZE).await?;
        let mut second = slot.start(self.first.other()).await?;
        until(&format!("the claim has {}", self.final_size), TIMEOUT, async || {
            let growth = claim_expansion(&claims).await?;
            let is_finished = growth.capacity == self.final_size && growth.state.is_empty();
            ensure!(is_finished, "it has {growth:?}");
            Ok(())
        })
        .await?;
        let sizes: BTreeMap<String, u64> = driver.sizes().await?;
        let sizes: Vec<u64> = sizes.into_values().collect();
        ensure!(
            sizes == [size_in_bytes(self.final_size)?],
            "the driver has made {sizes:?}: expected {}",
            self.final_size
        );
        second.stop().await?;
        claims.delete(0..1).await?;
        claims.wait_remaining(0, TIMEOUT).await
    }
}

/// Expands many claims with Cofferdam's, the upstream and again Cofferdam's resizer.
async fn expand_many(
    run: &SuiteRun,
    client: &Client,
    driver: &CsiDriverProcess,
    slot: &ResizerSlot<'_>,
) -> Result<()> {
    let claims = Claims::new(client, "many", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.wait_bound(CLAIMS, TIMEOUT).await?;
    let before = call_count(driver, EXPAND_METHOD).await?;
    let mut resizer = slot.start(Implementation::Cofferdam).await?;
    let mut requested = 0;
    for (expanded, next) in SWAP_AFTER.into_iter().zip([Implementation::Upstream, Implementation::Cofferdam])
    {
        claims.expand(requested..expanded, SMALLER_SIZE).await?;
        claims.wait_capacity(SMALLER_SIZE, expanded, TIMEOUT).await?;
        let calls_before = call_count(driver, EXPAND_METHOD).await?;
        driver.set_latency(HANG_LATENCY).await?;
        requested = 2 * expanded - requested;
        claims.expand(expanded..requested, SMALLER_SIZE).await?;
        wait_hanging_calls(driver, EXPAND_METHOD, calls_before).await?;
        resizer.kill().await?;
        driver.set_latency(Duration::ZERO).await?;
        resizer = slot.start(next).await?;
    }
    claims.expand(requested..CLAIMS, SMALLER_SIZE).await?;
    claims.wait_capacity(SMALLER_SIZE, CLAIMS, TIMEOUT).await?;
    resizer.stop().await?;
    let calls = call_count(driver, EXPAND_METHOD).await? - before;
    run.add_note(&format!(
        "{CLAIMS} claims expanded by Cofferdam, upstream, and Cofferdam: {calls} calls of the driver"
    ))?;
    let unfinished: Vec<ClaimExpansion> =
        claims.expansions().await?.into_iter().filter(|growth| !growth.state.is_empty()).collect();
    ensure!(unfinished.is_empty(), "pending expansions: {unfinished:?}");
    let expected = size_in_bytes(SMALLER_SIZE)?;
    let other = driver.sizes().await?.into_values().find(|size| *size != expected);
    ensure!(other.is_none(), "a volume has {other:?} bytes: expected {expected}");
    claims.ensure_consistent(CLAIMS, &driver.volumes().await?).await?;
    claims.delete(0..CLAIMS).await?;
    claims.wait_remaining(0, TIMEOUT).await
}

/// Starts either resizer.
struct ResizerSlot<'a> {
    run: &'a SuiteRun,
    account: Account,
    kubeconfig: std::path::PathBuf,
    socket: std::path::PathBuf,
}

impl<'a> ResizerSlot<'a> {
    async fn new(run: &'a SuiteRun, plane: &ControlPlane, driver: &CsiDriverProcess) -> Result<Self> {
        let account = Account::new(run, plane, &["resizer"]).await?;
        let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
        Ok(Self { run, account, kubeconfig, socket: driver.socket().to_owned() })
    }

    async fn start(&self, implementation: Implementation) -> Result<ManagedProcess> {
        match implementation {
            Implementation::Cofferdam => {
                cofferdam::start_with_csi_driver(self.run, &self.account, &self.socket).await
            }
            Implementation::Upstream => {
                sidecar::start(self.run, "csi-resizer", &self.kubeconfig, &self.socket, &[]).await
            }
        }
    }
}

async fn claim_expansion(claims: &Claims) -> Result<ClaimExpansion> {
    claims.expansions().await?.pop().context("no claim")
}

/// Number of calls of a method since the start of the driver, also of those that are pending or have failed.
async fn call_count(driver: &CsiDriverProcess, method: &str) -> Result<u64> {
    Ok(driver.call_counts().await?.get(method).copied().unwrap_or_default())
}

/// Waits until at least [`CONCURRENT_CALLS`] calls are pending. `ended` is the number of calls before them.
async fn wait_hanging_calls(driver: &CsiDriverProcess, method: &str, ended: u64) -> Result<()> {
    until(&format!("{CONCURRENT_CALLS} calls of {method} hang"), TIMEOUT, async || {
        let open = call_count(driver, method).await? - ended;
        ensure!(open >= CONCURRENT_CALLS, "{open} calls hang");
        Ok(())
    })
    .await
}

/// Converts a size in GiB to bytes.
fn size_in_bytes(size: &str) -> Result<u64> {
    let number = size.strip_suffix("Gi").with_context(|| format!("{size}: expected GiB"))?;
    Ok(number.parse::<u64>()? << 30)
}
