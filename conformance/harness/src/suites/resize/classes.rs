//! Claims get another VolumeAttributesClass, and the place of who modifies their volumes changes hands meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::json;

use super::{ALWAYS, DRIVER, HANGS, LONG, Place, Whose, called, hangs};
use crate::{
    claims::{Claims, Modification},
    driver::Driver,
    run::Run,
    wait::until,
};

const CLAIMS: usize = 60;
/// How many have their class when the place changes hands; as many more get it then.
const SWAPS: [usize; 2] = [15, 45];
const MODIFY: &str = "ControllerModifyVolume";
/// The driver knows a tier, whatever that is.
const CLASSES: [&str; 2] = ["bronze", "gold"];

pub(super) async fn change(run: &Run, client: &Client, driver: &Driver, place: &Place<'_>) -> Result<()> {
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let known: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    for class in CLASSES {
        let object = serde_json::from_value(json!({
            "metadata": { "name": class }, "driverName": DRIVER, "parameters": { "tier": class },
        }))?;
        known.create(&PostParams::default(), &object).await?;
    }
    for (name, first) in [("class-ours-refused", Whose::Ours), ("class-theirs-refused", Whose::Theirs)] {
        refused(client, driver, place, name, first).await.with_context(|| name)?;
    }
    many(run, client, driver, place).await
}

/// The first is refused a class; the second goes on with the one that the user names then.
async fn refused(
    client: &Client,
    driver: &Driver,
    place: &Place<'_>,
    name: &str,
    first: Whose,
) -> Result<()> {
    let [bronze, gold] = CLASSES;
    let claims = Claims::new(client, name, DRIVER).await?;
    claims.create(0..1).await?;
    claims.bound(1, LONG).await?;
    driver.fail(MODIFY, "INVALID_ARGUMENT", ALWAYS).await?;
    let mut who = place.take(first).await?;
    claims.modify(0..1, bronze).await?;
    until("the first has failed", LONG, async || {
        let now = claims.modifications().await?.pop().context("no claim")?;
        ensure!(now.state == "Infeasible" && now.wanted == bronze, "{now:?}");
        Ok(())
    })
    .await?;
    who.kill().await?;
    driver.fail(MODIFY, "INVALID_ARGUMENT", 0).await?;
    claims.modify(0..1, gold).await?;
    let mut who = place.take(first.other()).await?;
    done(&claims, gold, 1).await?;
    who.stop().await?;
    sound(&claims, driver, gold, 1).await?;
    claims.delete(0..1).await?;
    claims.left(0, LONG).await
}

/// Many at once, and the place is ours, theirs and ours.
async fn many(run: &Run, client: &Client, driver: &Driver, place: &Place<'_>) -> Result<()> {
    let [bronze, _] = CLASSES;
    let claims = Claims::new(client, "many-classes", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.bound(CLAIMS, LONG).await?;
    let mut who = place.take(Whose::Ours).await?;
    let mut asked = 0;
    for (least, next) in SWAPS.into_iter().zip([Whose::Theirs, Whose::Ours]) {
        claims.modify(asked..least, bronze).await?;
        done(&claims, bronze, least).await?;
        let ended = called(driver, MODIFY).await?;
        driver.latency(HANGS).await?;
        asked = 2 * least - asked;
        claims.modify(least..asked, bronze).await?;
        hangs(driver, MODIFY, ended).await?;
        who.kill().await?;
        driver.latency(Duration::ZERO).await?;
        who = place.take(next).await?;
    }
    claims.modify(asked..CLAIMS, bronze).await?;
    done(&claims, bronze, CLAIMS).await?;
    who.stop().await?;
    sound(&claims, driver, bronze, CLAIMS).await?;
    run.tell(&format!(
        "{CLAIMS} claims got another class of attributes while the resizer was ours, theirs, and ours"
    ))?;
    claims.delete(0..CLAIMS).await?;
    claims.left(0, LONG).await
}

/// Waits until so many claims have the class, with nothing open.
async fn done(claims: &Claims, class: &str, least: usize) -> Result<()> {
    until(&format!("{least} claims have the class {class}"), LONG, async || {
        let all = claims.modifications().await?;
        let have = all.iter().filter(|now| now.current == class && now.state.is_empty()).count();
        let open: Vec<&Modification> = all.iter().filter(|now| !now.state.is_empty()).take(3).collect();
        ensure!(have >= least, "{have} of {} have, open are {open:?}", all.len());
        Ok(())
    })
    .await
}

/// The claims' volumes say the same, in the API and at the driver.
async fn sound(claims: &Claims, driver: &Driver, class: &str, count: usize) -> Result<()> {
    let of_volumes = claims.classes_of_volumes().await?;
    ensure!(of_volumes == vec![class.to_owned(); count], "the volumes have {of_volumes:?}");
    let tiers: Vec<String> = driver.tiers().await?.into_values().collect();
    ensure!(tiers == vec![class.to_owned(); count], "the driver has {tiers:?}");
    Ok(())
}
