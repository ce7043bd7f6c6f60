//! The roles `provisioner`, `pv-controller` and `protection` provision, bind and delete claims and their
//! volumes on kube-apiserver, without upstream controllers. At the end they start beside claims of a tenant
//! that are as large as the API server accepts.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{
    account::Account,
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, ControlPlaneOptions},
    process::ManagedProcess,
    run::SuiteRun,
    wait::until,
};

const CLAIMS: usize = 50;
const TIMEOUT: Duration = Duration::from_secs(240);
const DRIVER: &str = "memory.conformance.cofferdam.dev";
const LARGE_CLAIMS: usize = 300;
/// Number of labels of a large claim. Each has some 256 bytes, once as a label and once in
/// `metadata.managedFields`: 1 MiB together. etcd accepts 1.5 MiB.
const LABELS: usize = 2_000;
/// Maximum memory of a process that starts beside the large claims. Together they have 300 MiB.
const MAX_MEMORY_BYTES: u64 = 192 << 20;
/// Concurrent requests for large claims.
const CONCURRENT_REQUESTS: usize = 8;

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    // The role `protection` removes the finalizers of claims and volumes, because no upstream controller
    // runs.
    let plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
    let driver = MemoryDriver::new(run, DRIVER)?;
    let account = Account::new(run, &plane, &["provisioner", "pv-controller", "protection"]).await?;
    let mut cofferdam = cofferdam::start(run, &account, &driver).await?;

    let claims = Claims::new(plane.client(), "provision", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.wait_bound(CLAIMS, TIMEOUT).await?;
    cofferdam.stop().await?;
    claims.ensure_consistent(CLAIMS, &driver.volumes(run).await?).await?;

    cofferdam.restart()?;
    claims.delete(0..CLAIMS).await?;
    claims.wait_remaining(0, TIMEOUT).await?;
    cofferdam.stop().await?;
    let remaining = driver.volumes(run).await?;
    ensure!(remaining.is_empty(), "{} volumes are left at the storage: {remaining:?}", remaining.len());
    start_beside_large_claims(run, plane.client(), &claims, &mut cofferdam).await?;
    drop(claims);
    plane.stop().await
}

/// Starts the process while a namespace has large claims that wait for a missing class. It becomes ready,
/// binds another claim, and its memory stays below a limit.
async fn start_beside_large_claims(
    run: &SuiteRun,
    client: &Client,
    claims: &Claims,
    cofferdam: &mut ManagedProcess,
) -> Result<()> {
    const NAMESPACE: &str = "large";
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let large: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    // A label's prefix has at most 253 bytes.
    let prefix = ["p".repeat(62).as_str(); 4].join(".");
    let labels: BTreeMap<String, String> =
        (0..LABELS).map(|number| (format!("{prefix}/{number}"), String::new())).collect();
    let large_claim = |number: usize| {
        serde_json::from_value(json!({
            "metadata": { "name": format!("large-{number}"), "labels": labels },
            "spec": {
                "storageClassName": "missing",
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
    };
    stream::iter(0..LARGE_CLAIMS)
        .map(async |number| {
            large.create(&PostParams::default(), &large_claim(number)?).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(CONCURRENT_REQUESTS)
        .try_collect::<()>()
        .await?;

    cofferdam.restart()?;
    claims.create(0..1).await?;
    claims.wait_bound(1, TIMEOUT).await?;
    claims.delete(0..1).await?;
    until("the claim is deleted", TIMEOUT, async || {
        let left = claims.count().await?;
        ensure!(left == 0, "{left} claims");
        Ok(())
    })
    .await?;
    let memory = peak_memory(cofferdam.id().context("the process does not run")?)?;
    run.add_note(&format!(
        "start beside {LARGE_CLAIMS} claims of 1 MiB: at most {} MiB of memory",
        memory >> 20
    ))?;
    ensure!(memory <= MAX_MEMORY_BYTES, "{memory} bytes of memory: expected at most {MAX_MEMORY_BYTES}");
    cofferdam.stop().await?;
    large.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

/// Maximum resident memory of a process so far, in bytes.
fn peak_memory(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib = line.trim().strip_suffix(" kB").context("VmHWM without a unit")?;
    Ok(kib.parse::<u64>()? << 10)
}
