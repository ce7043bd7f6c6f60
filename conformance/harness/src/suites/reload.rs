//! The file of a component is replaced ten times while claims are created one by one. Each time, the process
//! compiles the new file and takes it over; no call fails. The gaps between the writes that follow the driver
//! calls are compared with those of a run without replacements.

use std::{cell::Cell, time::Duration};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

use crate::{
    account::Account,
    audit::{self, AuditEvent},
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    line_tail::LineTail,
    process::ManagedProcess,
    run::SuiteRun,
    wait::until,
};

const DRIVER: &str = "reload.conformance.cofferdam.dev";
const RELOADS: usize = 10;
/// Minimum number of claims of each run.
const CLAIMS: usize = 500;
/// Time between two claims. The process looks for changed files every 10 s, so ten replacements take as long
/// as 500 claims.
const CLAIM_INTERVAL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(120);
/// The line that `cofferdam run` logs when a component is in use.
const TAKEN_OVER: &str = "the changed configuration and files are in use";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let driver = MemoryDriver::in_memory(run, DRIVER)?;
    let account = Account::new(run, &plane, &["provisioner"]).await?;
    let mut cofferdam = cofferdam::start(run, &account, &driver).await?;

    for (name, reloads) in [("without-reloads", 0), ("with-reloads", RELOADS)] {
        let claims = Claims::new(plane.client(), name, DRIVER).await?;
        let count = create_during_reloads(&claims, &driver, &cofferdam, reloads).await?;
        claims.wait_bound(count, TIMEOUT).await?;
        ensure_no_warnings(&plane, name).await?;
        let gaps = Gaps::between_new_volumes(run, count)?;
        run.add_note(&format!("{reloads} reloads, {count} claims: {gaps}"))?;
        claims.delete(0..count).await?;
        claims.wait_remaining(0, TIMEOUT).await?;
    }
    ensure_no_failed_calls(&cofferdam).await?;
    cofferdam.stop().await?;
    plane.stop().await
}

/// Creates claims one by one, at least [`CLAIMS`] and until the component was replaced and taken over this
/// number of times. Returns the number of claims.
async fn create_during_reloads(
    claims: &Claims,
    driver: &MemoryDriver,
    cofferdam: &ManagedProcess,
    reloads: usize,
) -> Result<usize> {
    let is_reloaded = Cell::new(false);
    let create = async {
        let mut count = 0;
        while count < CLAIMS || !is_reloaded.get() {
            claims.create(count..count + 1).await?;
            count += 1;
            tokio::time::sleep(CLAIM_INTERVAL).await;
        }
        anyhow::Ok(count)
    };
    let reload = async {
        let mut log = LineTail::from_end(cofferdam.log().to_owned())?;
        for number in 0..reloads {
            driver.replace_component(number)?;
            until(&format!("component {number} is in use"), TIMEOUT, async || {
                let text = log.read()?;
                ensure!(text.contains(TAKEN_OVER), "the log has no line {TAKEN_OVER:?}");
                Ok(())
            })
            .await?;
        }
        is_reloaded.set(true);
        Ok(())
    };
    let (count, ()) = tokio::try_join!(create, reload)?;
    Ok(count)
}

async fn ensure_no_warnings(plane: &ControlPlane, namespace: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(plane.client().clone(), namespace);
    let warnings = events.list(&ListParams::default().fields("type=Warning")).await?.items;
    let first = warnings.first().and_then(|event| event.message.clone());
    ensure!(warnings.is_empty(), "{} warnings, first {first:?}", warnings.len());
    Ok(())
}

/// Checks by the metrics that driver calls were made, and that none failed.
async fn ensure_no_failed_calls(cofferdam: &ManagedProcess) -> Result<()> {
    const METRIC: &str = "csi_sidecar_operations_seconds_count{";
    let page = cofferdam.metrics_page().await?;
    let calls: Vec<&str> = page.lines().filter(|line| line.starts_with(METRIC)).collect();
    ensure!(calls.iter().any(|line| line.contains("CreateVolume")), "no calls in {calls:?}");
    let failed: Vec<_> = calls.iter().filter(|line| !line.contains("grpc_status_code=\"OK\"")).collect();
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

/// Times between two writes, sorted.
struct Gaps(Vec<Duration>);

impl Gaps {
    /// The gaps between the last `count` creations of a PersistentVolume, each of which follows a driver
    /// call.
    fn between_new_volumes(run: &SuiteRun, count: usize) -> Result<Self> {
        let is_new_volume = |event: &AuditEvent| {
            event.verb == "create" && event.resource() == "persistentvolumes" && event.is_successful()
        };
        let mut times: Vec<Timestamp> = audit::read(&run.log("audit"))?
            .into_iter()
            .filter(is_new_volume)
            .filter_map(|event| event.received)
            .collect();
        times.sort_unstable();
        let first = times.len().checked_sub(count).context("a claim without a volume in the audit log")?;
        let times = times.split_off(first);
        let mut gaps: Vec<Duration> = times
            .iter()
            .zip(times.iter().skip(1))
            .map(|(earlier, later)| Ok(later.duration_since(*earlier).try_into()?))
            .collect::<Result<_>>()?;
        gaps.sort_unstable();
        Ok(Self(gaps))
    }

    fn percentile(&self, percent: usize) -> Duration {
        let index = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(index).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Gaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let milliseconds = |percent| self.percentile(percent).as_millis();
        write!(
            f,
            "gaps between two new volumes: {} ms (median), {} ms (p99), at most {} ms",
            milliseconds(50),
            milliseconds(99),
            milliseconds(100)
        )
    }
}
