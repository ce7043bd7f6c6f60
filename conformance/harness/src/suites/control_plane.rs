//! Tests the control plane that other suites use: it starts, enforces RBAC, restores etcd from a copy, keeps
//! its data when kube-apiserver is killed or etcd is paused, and stops.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    account::Account,
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions, client},
    run::SuiteRun,
    wait::until,
};

/// The controller that finalizes namespaces.
const CONTROLLERS: &str = "namespace-controller";
const TIMEOUT: Duration = Duration::from_secs(180);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    // The namespace controller removes the namespace.
    let options = ControlPlaneOptions {
        controllers: Some("namespace-controller".to_owned()),
        has_scheduler: true,
        ..ControlPlaneOptions::default()
    };
    let mut plane = ControlPlane::start(run, options).await?;
    let namespaces: Api<Namespace> = Api::all(plane.client().clone());
    let version = plane.client().apiserver_version().await?;
    ensure!(
        version.git_version.starts_with("v1."),
        "version {}: expected one of Kubernetes",
        version.git_version
    );

    namespaces
        .create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": "one" } }))?)
        .await?;
    check_rbac(run, &mut plane).await?;
    wait_namespace_deletion(&namespaces).await?;
    check_etcd_restore(run, &mut plane).await?;
    wait_namespace_deletion(&namespaces).await?;

    plane.api.kill().await?;
    ensure!(namespaces.get("one").await.is_err(), "the API answers after it was killed");
    plane.restart_api().await?;
    namespaces.get("one").await?;

    plane.etcd.pause().await?;
    let answer = tokio::time::timeout(Duration::from_secs(2), namespaces.get("one")).await;
    plane.etcd.resume()?;
    ensure!(!matches!(answer, Ok(Ok(_))), "the API reads from an etcd that stands still");
    until("the API answers again", TIMEOUT, async || Ok(namespaces.get("one").await?)).await?;

    namespaces.delete("one", &DeleteParams::default()).await?;
    until("the namespace is gone", TIMEOUT, async || {
        ensure!(namespaces.get_opt("one").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    drop(namespaces);
    plane.stop().await
}

/// Creates and deletes a namespace, and waits until it is removed: kube-controller-manager works then. During
/// its start, kube-controller-manager exits if the API server does not respond or has no RBAC rules yet.
async fn wait_namespace_deletion(namespaces: &Api<Namespace>) -> Result<()> {
    const NAMESPACE: &str = "passing";
    let object = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    namespaces.create(&PostParams::default(), &object).await?;
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    until("a namespace that was deleted is gone", TIMEOUT, async || {
        ensure!(namespaces.get_opt(NAMESPACE).await?.is_none(), "it is there");
        Ok(())
    })
    .await
}

/// Checks that kube-apiserver rejects requests that no RBAC rule allows, and that the audit log shows a
/// rejected request of a service account of Cofferdam.
async fn check_rbac(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let scheduler = client(&plane.kubeconfig(ApiUser::Scheduler)?).await?;
    let forbidden = Api::<Namespace>::all(scheduler).delete("one", &DeleteParams::default()).await;
    ensure!(
        matches!(&forbidden, Err(kube::Error::Api(status)) if status.is_forbidden()),
        "the scheduler deletes a namespace: {forbidden:?}"
    );
    // A rejected request of an account is detected.
    let account = Account::new(run, plane, &["protection"]).await?;
    let namespaces = Api::<Namespace>::all(client(account.kubeconfig()).await?);
    ensure!(namespaces.get("kube-system").await.is_ok(), "an account may not do what its rules say");
    ensure!(namespaces.get("one").await.is_err(), "an account may do more than its rules say");
    let forbidden = plane.take_forbidden()?;
    ensure!(
        matches!(&*forbidden, [only] if only.ends_with(":protection: get /api/v1/namespaces/one")),
        "expected one refusal: {forbidden:?}"
    );
    Ok(())
}

/// Checks that a restore of etcd from a copy removes the writes after the copy and keeps those before it.
/// Restarts etcd, the API server and kube-controller-manager.
async fn check_etcd_restore(run: &SuiteRun, plane: &mut ControlPlane) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().clone(), "one");
    let map = |name: &str| serde_json::from_value::<ConfigMap>(json!({ "metadata": { "name": name } }));
    maps.create(&PostParams::default(), &map("before")?).await?;
    plane.snapshot_etcd(run, "snapshot").await?;
    maps.create(&PostParams::default(), &map("after")?).await?;
    plane.api.kill().await?;
    plane.etcd.stop().await?;
    plane.restore_etcd(run, "snapshot").await?;
    plane.restart_etcd().await?;
    plane.restart_api().await?;
    // Upstream controllers do not detect a restore: an operator restarts them.
    if let Some(controller_manager) = plane.controller_manager.as_mut() {
        controller_manager.kill().await?;
    }
    plane.start_controller_manager(run, CONTROLLERS).await?;
    ensure!(maps.get_opt("before").await?.is_some(), "what was written before the copy is gone");
    ensure!(maps.get_opt("after").await?.is_none(), "what was written after the copy is there");
    Ok(())
}
