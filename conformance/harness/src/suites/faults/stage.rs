//! What every fault happens on: a control plane, the proxy before it, our program behind the proxy, and a storage that outlives it.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::Client;

use crate::{
    account::{self, Account},
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{self, ControlPlane, Options},
    process::Process,
    proxy::Proxy,
    run::Run,
    sidecar::plain,
    wait::until,
};

const ROLES: [&str; 3] = ["provisioner", "pv-controller", "protection"];
pub(super) const DRIVER: &str = "faults.conformance.cofferdam.dev";
/// How long claims may take until they are Bound, or gone, once nothing goes wrong any more.
pub(super) const LONG: Duration = Duration::from_secs(300);
const READY: Duration = Duration::from_secs(120);
/// Claims that a user makes at once: who does not give up must not be what keeps the API from coming back.
const AT_ONCE: usize = 10;

/// A call of the driver in the metrics.
const DELETES: &str = "method_name=\"/csi.v1.Controller/DeleteVolume\"";

/// Our program, with all roles.
pub(super) struct Ours {
    pub(super) process: Process,
    client: Client,
}

impl Ours {
    pub(super) async fn start(
        run: &Run,
        kubeconfig: &Path,
        driver: &MemoryDriver,
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let port = run.port()?;
        let mut spec = cofferdam::spec(run, kubeconfig, &ROLES, driver, port)
            .arg(format_args!("--namespace={}", account::NAMESPACE))
            // No scan may find what a fault has left before we do.
            .arg("--orphan-scan-interval=off");
        for (name, value) in variables {
            spec = spec.env(name, value);
        }
        let mut ours = Self { process: Process::start(run, spec)?, client: plain(port)? };
        ours.ready().await?;
        Ok(ours)
    }

    pub(super) async fn ready(&mut self) -> Result<()> {
        let client = &self.client;
        self.process.ready(READY, async || control_plane::get(client, "/readyz").await).await
    }

    pub(super) async fn is_ready(&self) -> bool {
        control_plane::get(&self.client, "/readyz").await.is_ok()
    }

    async fn metrics(&self) -> Result<String> {
        Ok(self.client.request_text(Request::get("/metrics").body(Vec::new())?).await?)
    }

    /// How often this process has asked the driver to delete a volume, by how that ended.
    pub(super) async fn deletions(&self) -> Result<Vec<String>> {
        let text = self.metrics().await?;
        Ok(text.lines().filter(|line| line.contains(DELETES)).map(str::to_owned).collect())
    }

    /// A metric without labels.
    pub(super) async fn metric(&self, name: &str) -> Result<String> {
        let text = self.metrics().await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(str::to_owned).with_context(|| format!("no metric {name}"))
    }
}

pub(super) struct Stage<'a> {
    pub(super) run: &'a Run,
    pub(super) plane: ControlPlane,
    pub(super) proxy: Proxy,
    pub(super) driver: MemoryDriver,
    pub(super) ours: Ours,
}

impl<'a> Stage<'a> {
    pub(super) async fn new(run: &'a Run) -> Result<Self> {
        let plane = ControlPlane::start(run, Options::default()).await?;
        let driver = MemoryDriver::new(run, DRIVER)?;
        let account = Account::new(run, &plane, &ROLES).await?;
        let proxy = Proxy::start(&plane, account.kubeconfig()).await?;
        let ours = Ours::start(run, proxy.kubeconfig(), &driver, &[]).await?;
        Ok(Self { run, plane, proxy, driver, ours })
    }

    /// What the storage holds; our program stands still for that long.
    pub(super) async fn stored(&mut self) -> Result<BTreeMap<String, String>> {
        self.ours.process.stop().await?;
        let stored = self.driver.volumes(self.run).await?;
        self.ours.process.again()?;
        self.ours.ready().await?;
        Ok(stored)
    }

    /// After a fault: every claim is Bound to a volume of its own, and the storage holds these and no other. Then all is deleted, and
    /// nothing is left.
    pub(super) async fn sound(&mut self, claims: &Claims, count: usize) -> Result<()> {
        let stored = self.stored().await?;
        claims.sound(count, &stored).await?;
        claims.delete(0..count).await?;
        claims.left(0, LONG).await?;
        let left = self.stored().await?;
        ensure!(left.is_empty(), "{} volumes are left at the storage: {left:?}", left.len());
        Ok(())
    }

    pub(super) async fn end(mut self) -> Result<()> {
        self.ours.process.stop().await?;
        drop(self.proxy);
        self.plane.stop().await
    }
}

/// Makes claims as a user does who does not give up: what fails is done again, what is there already was done before.
pub(super) async fn create(claims: &Claims, numbers: std::ops::Range<usize>) -> Result<()> {
    stream::iter(numbers)
        .map(|number| async move {
            until(&format!("claim {number} is made"), LONG, async || {
                match claims.create(number..number + 1).await {
                    Err(error) if is_there(&error) => Ok(()),
                    made => made,
                }
            })
            .await
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

fn is_there(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.is_already_exists())
}

/// Waits, after the end of a fault, until work goes on, and until all of it is done; prints how long both took.
pub(super) async fn recovers(
    run: &Run,
    claims: &Claims,
    fault: &str,
    count: usize,
    ended: Instant,
) -> Result<()> {
    let before = until("the claims can be counted", LONG, async || claims.count_bound().await).await?;
    claims.bound((before + 1).min(count), LONG).await.context("after the fault nothing went on")?;
    let first = ended.elapsed();
    claims.bound(count, LONG).await?;
    run.tell(&format!(
        "{fault}: {before} of {count} claims were Bound at its end, the next one after {:.1} s, all after {:.1} s",
        first.as_secs_f64(),
        ended.elapsed().as_secs_f64(),
    ))
}
