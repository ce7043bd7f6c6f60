//! Growth in other hands: what our resizer has begun or has failed at, csi-resizer ends, and the other way round. The same for
//! classes of attributes.

mod classes;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::Client;

use crate::{
    account::Account,
    claims::{Claims, Growth},
    cofferdam,
    control_plane::{ControlPlane, Options, User},
    driver::Driver,
    process::Process,
    run::Run,
    sidecar,
    wait::until,
};

const DRIVER: &str = "resize.conformance.cofferdam.dev";
const CLAIMS: usize = 200;
/// How many have grown when the place changes hands; as many more grow then.
const SWAPS: [usize; 2] = [40, 120];
/// How long a call of the driver takes while the place changes hands: longer than either resizer waits.
const HANGS: Duration = Duration::from_secs(3600);
/// How many calls are open then: both resizers make as many at once.
const OPEN: u64 = 10;
const LONG: Duration = Duration::from_secs(240);
/// A claim's size, and what it asks for.
const BEFORE: &str = "1Gi";
const SMALLER: &str = "2Gi";
const LARGER: &str = "3Gi";
/// More failures than there will be calls.
const ALWAYS: u32 = 1_000_000;
const EXPAND: &str = "ControllerExpandVolume";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Theirs,
}

impl Whose {
    const fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }
}

/// A growth that the first resizer cannot end, and what the second makes of it after the wish has become smaller.
struct Row {
    name: &'static str,
    first: Whose,
    /// What the driver answers to the first.
    code: &'static str,
    /// What the first leaves in the claim's status.
    leaves: &'static str,
    /// What the claim has in the end.
    ends: &'static str,
}

/// Nobody knows whether an answer such as `UNAVAILABLE` means that the volume has grown: so it has to.
const ROWS: [Row; 4] = [
    Row {
        name: "ours-refused",
        first: Whose::Ours,
        code: "OUT_OF_RANGE",
        leaves: "ControllerResizeInfeasible",
        ends: SMALLER,
    },
    Row {
        name: "theirs-refused",
        first: Whose::Theirs,
        code: "OUT_OF_RANGE",
        leaves: "ControllerResizeInfeasible",
        ends: SMALLER,
    },
    Row {
        name: "ours-open",
        first: Whose::Ours,
        code: "UNAVAILABLE",
        leaves: "ControllerResizeInProgress",
        ends: LARGER,
    },
    Row {
        name: "theirs-open",
        first: Whose::Theirs,
        code: "UNAVAILABLE",
        leaves: "ControllerResizeInProgress",
        ends: LARGER,
    },
];

pub(super) async fn run(run: &Run) -> Result<()> {
    let plane = ControlPlane::start(run, Options { unlimited: true, ..Options::default() }).await?;
    let mut driver = Driver::start(run, DRIVER, &["--attach=false"]).await?;
    let others = Account::new(run, &plane, &["provisioner", "pv-controller", "protection"]).await?;
    let mut others = cofferdam::start_before(run, &others, driver.socket()).await?;
    let place = Place::new(run, &plane, &driver).await?;
    for row in ROWS {
        row.play(plane.client(), &driver, &place).await.with_context(|| row.name)?;
    }
    many(run, plane.client(), &driver, &place).await?;
    classes::change(run, plane.client(), &driver, &place).await?;
    others.stop().await?;
    driver.process.stop().await?;
    plane.stop().await
}

impl Row {
    async fn play(&self, client: &Client, driver: &Driver, place: &Place<'_>) -> Result<()> {
        let claims = Claims::new(client, self.name, DRIVER).await?;
        claims.create(0..1).await?;
        claims.bound(1, LONG).await?;
        let before = called(driver, EXPAND).await?;
        driver.fail(EXPAND, self.code, ALWAYS).await?;
        let mut first = place.take(self.first).await?;
        claims.grow(0..1, LARGER).await?;
        until("the first has failed", LONG, async || {
            let (calls, growth) = (called(driver, EXPAND).await?, growth(&claims).await?);
            ensure!(calls > before && growth.state == self.leaves, "{} calls, {growth:?}", calls - before);
            Ok(())
        })
        .await?;
        first.kill().await?;
        let left = growth(&claims).await?;
        ensure!(left.capacity == BEFORE && left.asked_for == LARGER, "the first leaves {left:?}");

        driver.fail(EXPAND, self.code, 0).await?;
        claims.grow(0..1, SMALLER).await?;
        let mut second = place.take(self.first.other()).await?;
        until(&format!("the claim has {}", self.ends), LONG, async || {
            let growth = growth(&claims).await?;
            let done = growth.capacity == self.ends && growth.state.is_empty();
            ensure!(done, "it has {growth:?}");
            Ok(())
        })
        .await?;
        let sizes: BTreeMap<String, u64> = driver.sizes().await?;
        let sizes: Vec<u64> = sizes.into_values().collect();
        ensure!(sizes == [bytes(self.ends)?], "the driver has made {sizes:?}: expected {}", self.ends);
        second.stop().await?;
        claims.delete(0..1).await?;
        claims.left(0, LONG).await
    }
}

/// Many grow at once, and the place changes hands in the middle: ours, theirs, ours.
async fn many(run: &Run, client: &Client, driver: &Driver, place: &Place<'_>) -> Result<()> {
    let claims = Claims::new(client, "many", DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.bound(CLAIMS, LONG).await?;
    let before = called(driver, EXPAND).await?;
    let mut who = place.take(Whose::Ours).await?;
    let mut asked = 0;
    for (done, next) in SWAPS.into_iter().zip([Whose::Theirs, Whose::Ours]) {
        claims.grow(asked..done, SMALLER).await?;
        claims.have(SMALLER, done, LONG).await?;
        let ended = called(driver, EXPAND).await?;
        driver.latency(HANGS).await?;
        asked = 2 * done - asked;
        claims.grow(done..asked, SMALLER).await?;
        hangs(driver, EXPAND, ended).await?;
        who.kill().await?;
        driver.latency(Duration::ZERO).await?;
        who = place.take(next).await?;
    }
    claims.grow(asked..CLAIMS, SMALLER).await?;
    claims.have(SMALLER, CLAIMS, LONG).await?;
    who.stop().await?;
    let calls = called(driver, EXPAND).await? - before;
    run.tell(&format!(
        "{CLAIMS} claims grew while the resizer was ours, theirs, and ours: {calls} calls of the driver"
    ))?;
    let open: Vec<Growth> =
        claims.growths().await?.into_iter().filter(|growth| !growth.state.is_empty()).collect();
    ensure!(open.is_empty(), "some say that they still grow: {open:?}");
    let expected = bytes(SMALLER)?;
    let other = driver.sizes().await?.into_values().find(|size| *size != expected);
    ensure!(other.is_none(), "a volume has {other:?} bytes: expected {expected}");
    claims.sound(CLAIMS, &driver.volumes().await?).await?;
    claims.delete(0..CLAIMS).await?;
    claims.left(0, LONG).await
}

/// The place of the resizer.
struct Place<'a> {
    run: &'a Run,
    account: Account,
    kubeconfig: std::path::PathBuf,
    socket: std::path::PathBuf,
}

impl<'a> Place<'a> {
    async fn new(run: &'a Run, plane: &ControlPlane, driver: &Driver) -> Result<Self> {
        let account = Account::new(run, plane, &["resizer"]).await?;
        let kubeconfig = plane.kubeconfig(User::Admin)?;
        Ok(Self { run, account, kubeconfig, socket: driver.socket().to_owned() })
    }

    async fn take(&self, whose: Whose) -> Result<Process> {
        match whose {
            Whose::Ours => cofferdam::start_before(self.run, &self.account, &self.socket).await,
            Whose::Theirs => {
                sidecar::start(self.run, "csi-resizer", &self.kubeconfig, &self.socket, &[]).await
            }
        }
    }
}

async fn growth(claims: &Claims) -> Result<Growth> {
    claims.growths().await?.pop().context("no claim")
}

/// How many calls of a method have begun.
async fn called(driver: &Driver, method: &str) -> Result<u64> {
    Ok(driver.calls().await?.get(method).copied().unwrap_or_default())
}

/// Waits until calls hang, after those that have ended.
async fn hangs(driver: &Driver, method: &str, ended: u64) -> Result<()> {
    until(&format!("{OPEN} calls of {method} hang"), LONG, async || {
        let open = called(driver, method).await? - ended;
        ensure!(open >= OPEN, "{open} calls hang");
        Ok(())
    })
    .await
}

/// Bytes of a size in GiB.
fn bytes(size: &str) -> Result<u64> {
    let number = size.strip_suffix("Gi").with_context(|| format!("{size}: expected GiB"))?;
    Ok(number.parse::<u64>()? << 30)
}
