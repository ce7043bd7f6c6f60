//! Claims change their VolumeAttributesClass while the resizers replace each other.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::json;

use super::{
    DRIVER, HANG_LATENCY, Implementation, ResizerSlot, TIMEOUT, UNLIMITED_FAILURES, call_count,
    wait_hanging_calls,
};
use crate::{
    claims::{ClaimModification, Claims},
    driver::CsiDriverProcess,
    run::SuiteRun,
    wait::until,
};

const CLAIMS: usize = 60;
/// Minimum number of modified claims at each replacement. The modification of further claims is pending then.
const SWAP_AFTER: [usize; 2] = [15, 45];
const MODIFY_METHOD: &str = "ControllerModifyVolume";
/// Names of the classes. Each sets the driver's parameter `tier` to its own name.
const VOLUME_ATTRIBUTES_CLASSES: [&str; 2] = ["bronze", "gold"];

pub(super) async fn modify_claims(
    run: &SuiteRun,
    client: &Client,
    driver: &CsiDriverProcess,
    slot: &ResizerSlot<'_>,
) -> Result<()> {
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let classes: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    for class in VOLUME_ATTRIBUTES_CLASSES {
        let object = serde_json::from_value(json!({
            "metadata": { "name": class }, "driverName": DRIVER, "parameters": { "tier": class },
        }))?;
        classes.create(&PostParams::default(), &object).await?;
    }
    for (name, first) in [
        ("class-ours-refused", Implementation::Cofferdam),
        ("class-theirs-refused", Implementation::Upstream),
    ] {
        modify_after_rejection(client, driver, slot, name, first).await.with_context(|| name)?;
    }
    modify_many(run, client, driver, slot).await
}

/// The driver rejects the class that the first resizer tries to apply. The user then sets another class,
/// which the second resizer, of the other implementation, applies.
async fn modify_after_rejection(
    client: &Client,
    driver: &CsiDriverProcess,
    slot: &ResizerSlot<'_>,
    name: &str,
    first: Implementation,
) -> Result<()> {
    let [bronze, gold] = VOLUME_ATTRIBUTES_CLASSES;
    let claims = Claims::new(client, name, DRIVER).await?;
    claims.create(0..1).await?;
    claims.wait_bound(1, TIMEOUT).await?;
    driver.inject_failures(MODIFY_METHOD, "INVALID_ARGUMENT", UNLIMITED_FAILURES).await?;
    let mut resizer = slot.start(first).await?;
    claims.modify(0..1, bronze).await?;
    until("the first has failed", TIMEOUT, async || {
        let now = claims.modifications().await?.pop().context("no claim")?;
        ensure!(now.state == "Infeasible" && now.target == bronze, "{now:?}");
        Ok(())
    })
    .await?;
    resizer.kill().await?;
    driver.inject_failures(MODIFY_METHOD, "INVALID_ARGUMENT", 0).await?;
    claims.modify(0..1, gold).await?;
    let mut resizer = slot.start(first.other()).await?;
    wait_modified(&claims, gold, 1).await?;
    resizer.stop().await?;
    check_volumes(&claims, driver, gold, 1).await?;
    claims.delete(0..1).await?;
    claims.wait_remaining(0, TIMEOUT).await
}

/// Modifies many claims with Cofferdam's, the upstream and again Cofferdam's resizer.
async fn modify_many(
    run: &SuiteRun,
    client: &Client,
    driver: &CsiDriverProcess,
    slot: &ResizerSlot<'_>,
) -> Result<()> {
    let [bronze, _] = VOLUME_ATTRIBUTES_CLASSES;
    let claims = Claims::new(client, "many-classes", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.wait_bound(CLAIMS, TIMEOUT).await?;
    let mut resizer = slot.start(Implementation::Cofferdam).await?;
    let mut requested = 0;
    for (modified, next) in SWAP_AFTER.into_iter().zip([Implementation::Upstream, Implementation::Cofferdam])
    {
        claims.modify(requested..modified, bronze).await?;
        wait_modified(&claims, bronze, modified).await?;
        let calls_before = call_count(driver, MODIFY_METHOD).await?;
        driver.set_latency(HANG_LATENCY).await?;
        requested = 2 * modified - requested;
        claims.modify(modified..requested, bronze).await?;
        wait_hanging_calls(driver, MODIFY_METHOD, calls_before).await?;
        resizer.kill().await?;
        driver.set_latency(Duration::ZERO).await?;
        resizer = slot.start(next).await?;
    }
    claims.modify(requested..CLAIMS, bronze).await?;
    wait_modified(&claims, bronze, CLAIMS).await?;
    resizer.stop().await?;
    check_volumes(&claims, driver, bronze, CLAIMS).await?;
    run.add_note(&format!("{CLAIMS} claims modified by Cofferdam, upstream, and Cofferdam"))?;
    claims.delete(0..CLAIMS).await?;
    claims.wait_remaining(0, TIMEOUT).await
}

/// Waits until at least this number of claims has the class and no pending modification.
async fn wait_modified(claims: &Claims, class: &str, least: usize) -> Result<()> {
    until(&format!("{least} claims have the class {class}"), TIMEOUT, async || {
        let all = claims.modifications().await?;
        let modified = all.iter().filter(|now| now.current == class && now.state.is_empty()).count();
        let unfinished: Vec<&ClaimModification> =
            all.iter().filter(|now| !now.state.is_empty()).take(3).collect();
        ensure!(modified >= least, "{modified} of {} have, open are {unfinished:?}", all.len());
        Ok(())
    })
    .await
}

/// Checks that there are `count` volumes, and that all have the class: in the API the name of the class, at
/// the driver the parameter `tier`.
async fn check_volumes(claims: &Claims, driver: &CsiDriverProcess, class: &str, count: usize) -> Result<()> {
    let of_volumes = claims.volume_attributes_classes().await?;
    ensure!(of_volumes == vec![class.to_owned(); count], "the volumes have {of_volumes:?}");
    let tiers: Vec<String> = driver.tiers().await?.into_values().collect();
    ensure!(tiers == vec![class.to_owned(); count], "the driver has {tiers:?}");
    Ok(())
}
