//! Test setup of the fault suite: a control plane, the fault-injecting proxy, `cofferdam` as a client of the
//! proxy, and the memory driver with its state in a file.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::Client;

use crate::{
    account::Account,
    claims::{Claims, ContinuousClaimLoad},
    cofferdam::{self, MemoryDriver},
    control_plane::{self, ControlPlane, ControlPlaneOptions},
    namespaces,
    process::{self, ManagedProcess},
    proxy::Proxy,
    run::SuiteRun,
    sidecar::plain_client,
    wait::until,
};

const ROLES: [&str; 3] = ["provisioner", "pv-controller", "protection"];
pub(super) const DRIVER: &str = "faults.conformance.cofferdam.dev";
/// Time limit of a wait for claims, before or after a fault: until they are created, Bound or removed.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum concurrent creates of claims. Few, because retries must not keep the API server from recovering.
pub(super) const CONCURRENT_CLAIMS: usize = 10;

/// Label of DeleteVolume calls in the metrics.
const DELETE_VOLUME_LABEL: &str = "method_name=\"/csi.v1.Controller/DeleteVolume\"";

/// `cofferdam` with provisioner, pv-controller and protection.
pub(super) struct CofferdamProcess {
    pub(super) process: ManagedProcess,
    client: Client,
}

impl CofferdamProcess {
    pub(super) async fn start(
        run: &SuiteRun,
        kubeconfig: &Path,
        driver: &MemoryDriver,
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let port = run.free_port()?;
        let mut spec = cofferdam::command_for(run, kubeconfig, &ROLES, driver, port)
            .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
            // The orphan scan must not hide leaks from the suite.
            .arg("--orphan-scan-interval=off");
        for (name, value) in variables {
            spec = spec.env(name, value);
        }
        let mut process = Self { process: ManagedProcess::start(run, spec)?, client: plain_client(port)? };
        process.wait_ready().await?;
        Ok(process)
    }

    pub(super) async fn wait_ready(&mut self) -> Result<()> {
        let client = &self.client;
        self.process
            .wait_ready(READY_TIMEOUT, async || control_plane::probe_path(client, "/readyz").await)
            .await
    }

    pub(super) async fn is_ready(&self) -> bool {
        control_plane::probe_path(&self.client, "/readyz").await.is_ok()
    }

    async fn metrics(&self) -> Result<String> {
        process::metrics_page(&self.client).await
    }

    /// Lines of the metrics that count or time this process's DeleteVolume calls; empty if it made none.
    pub(super) async fn delete_calls(&self) -> Result<Vec<String>> {
        let text = self.metrics().await?;
        Ok(text.lines().filter(|line| line.contains(DELETE_VOLUME_LABEL)).map(str::to_owned).collect())
    }

    /// The value of a metric without labels.
    pub(super) async fn metric(&self, name: &str) -> Result<String> {
        let text = self.metrics().await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(str::to_owned).with_context(|| format!("no metric {name}"))
    }
}

pub(super) struct FaultFixture<'a> {
    pub(super) run: &'a SuiteRun,
    pub(super) plane: ControlPlane,
    pub(super) proxy: Proxy,
    pub(super) driver: MemoryDriver,
    pub(super) cofferdam: CofferdamProcess,
}

impl<'a> FaultFixture<'a> {
    pub(super) async fn new(run: &'a SuiteRun) -> Result<Self> {
        let plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
        let driver = MemoryDriver::new(run, DRIVER)?;
        let account = Account::new(run, &plane, &ROLES).await?;
        let proxy = Proxy::start(&plane, account.kubeconfig()).await?;
        let cofferdam = CofferdamProcess::start(run, proxy.kubeconfig(), &driver, &[]).await?;
        Ok(Self { run, plane, proxy, driver, cofferdam })
    }

    /// Volumes of the storage: names by handle. Stops `cofferdam` before the call of the driver, and restarts
    /// it afterwards.
    pub(super) async fn stored_volumes(&mut self) -> Result<BTreeMap<String, String>> {
        self.cofferdam.process.stop().await?;
        let stored = self.driver.volumes(self.run).await?;
        self.cofferdam.process.restart()?;
        self.cofferdam.wait_ready().await?;
        Ok(stored)
    }

    /// Checks after a fault that every claim is Bound to a volume of its own and the storage contains no
    /// other. Then deletes all claims, and checks that nothing is left.
    pub(super) async fn check_and_clean_up(&mut self, claims: &Claims, count: usize) -> Result<()> {
        let stored = self.stored_volumes().await?;
        claims.ensure_consistent(count, &stored).await?;
        claims.delete(0..count).await?;
        claims.wait_remaining(0, TIMEOUT).await?;
        let remaining = self.stored_volumes().await?;
        ensure!(remaining.is_empty(), "{} volumes are left at the storage: {remaining:?}", remaining.len());
        Ok(())
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.cofferdam.process.stop().await?;
        drop(self.proxy);
        self.plane.stop().await
    }
}

/// Creates claims continuously until `load` is finished, and repeats every failed request for at most
/// [`TIMEOUT`]. The requests do not pass the proxy.
pub(super) async fn create_continuously(claims: &Claims, load: &ContinuousClaimLoad) -> Result<()> {
    create_all(claims, load.numbers()).await
}

/// Creates claims, and repeats every failed request for at most [`TIMEOUT`]. The requests do not pass the
/// proxy.
pub(super) async fn create_with_retries(claims: &Claims, numbers: std::ops::Range<usize>) -> Result<()> {
    create_all(claims, stream::iter(numbers)).await
}

async fn create_all(claims: &Claims, numbers: impl Stream<Item = usize>) -> Result<()> {
    numbers
        .map(|number| async move {
            until(&format!("claim {number} is made"), TIMEOUT, async || {
                match claims.create(number..number + 1).await {
                    Err(error) if is_already_exists(&error) => Ok(()),
                    created => created,
                }
            })
            .await
        })
        .buffer_unordered(CONCURRENT_CLAIMS)
        .try_collect()
        .await
}

fn is_already_exists(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.is_already_exists())
}

/// Waits until all claims are Bound. Adds a note with the times from the end of the fault until the next
/// claim was Bound, and until all were.
pub(super) async fn wait_recovery(
    run: &SuiteRun,
    claims: &Claims,
    fault: &str,
    count: usize,
    ended: Instant,
) -> Result<()> {
    let before = until("the claims can be counted", TIMEOUT, async || claims.count_bound().await).await?;
    claims.wait_bound((before + 1).min(count), TIMEOUT).await.context("after the fault nothing went on")?;
    let first_bound = ended.elapsed();
    claims.wait_bound(count, TIMEOUT).await?;
    run.add_note(&format!(
        "{fault}: {before} of {count} claims were Bound at its end, the next after {:.1} s, all after \
         {:.1} s",
        first_bound.as_secs_f64(),
        ended.elapsed().as_secs_f64(),
    ))
}
