//! An upgrade from [`PREVIOUS`], the last version whose journal has no epoch, and the way back, while both
//! versions compete for the Leases. Each leader ends with open intents, once by SIGTERM and once by SIGKILL:
//! the other version completes them, and no volume is leaked or created twice.
//!
//! Before its SIGKILL the current version also leaves an intent that the previous one cannot read. That one
//! keeps the intent and logs its claim, and the current version completes it later.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use kube::Client;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    account::Account,
    claims::Claims,
    control_plane::{self, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    journal, namespaces,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar::plain_client,
    wait::until,
};

/// Name of the program of the previous version among the peers.
const PREVIOUS: &str = "cofferdam-previous";
const DRIVER: &str = "upgrade.conformance.cofferdam.dev";
/// Claims that are created before the leader ends, and as many afterwards.
const CLAIMS: usize = 30;
/// Minimum number of open intents when the leader ends.
const MIN_INTENTS: usize = 20;
/// Duration of each driver call: long enough that the intents are open when the leader ends.
const LATENCY: Duration = Duration::from_secs(3);
/// Duration of a deletion that is under way when the leader ends.
const DELETION_LATENCY: Duration = Duration::from_secs(100);
/// Namespace of the claim with an intent that the previous version cannot read.
const UNREADABLE: &str = "upgrade-unreadable";
const TIMEOUT: Duration = Duration::from_secs(120);
/// A short Lease, because the next leader waits for its end after SIGKILL.
const LEASE: [&str; 4] = [
    "--leader-election",
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
];

/// A version of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Previous,
    Current,
}

/// The end of a leader.
#[derive(Clone, Copy, Debug)]
enum End {
    /// SIGTERM.
    Terminated,
    /// SIGKILL.
    Killed,
}

/// The next leader, after the end of the one before.
const STEPS: [(End, Version); 5] = [
    (End::Terminated, Version::Current),
    (End::Terminated, Version::Previous),
    (End::Killed, Version::Current),
    (End::Killed, Version::Previous),
    (End::Terminated, Version::Current),
];

impl Version {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Previous => "previous",
            Self::Current => "current",
        }
    }

    fn program(self, run: &SuiteRun) -> Result<PathBuf> {
        match self {
            Self::Previous => {
                run.peers().program(PREVIOUS).context("`make conformance SUITE=upgrade` builds it")
            }
            Self::Current => Ok(run.program().to_owned()),
        }
    }
}

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let mut driver = CsiDriverProcess::start(run, DRIVER, &[]).await?;
    driver.set_latency(LATENCY).await?;
    // An operator grants the rights of the new version before it is started.
    let account = Account::new(run, &plane, &["provisioner", "attacher", "resizer"]).await?;
    let claims = Claims::new(plane.client(), "upgrade", DRIVER).await?;

    let mut leader = Replica::start(run, Version::Previous, &account, &driver).await?;
    let mut count = 0;
    for (end, next) in STEPS {
        let former = leader.version;
        let step = format!("{} to {}, {end:?}", former.as_str(), next.as_str());
        let standby = Replica::start(run, next, &account, &driver).await.context(step.clone())?;
        let unreadable = match (former, end) {
            (Version::Current, End::Killed) => {
                Some(UnreadableIntent::leave(plane.client(), &driver).await.context(step.clone())?)
            }
            _ => None,
        };
        let kept = usize::from(unreadable.is_some());
        let note =
            hand_over(plane.client(), &claims, &mut count, leader, end, kept).await.context(step.clone())?;
        let mut stored = driver.volumes().await?;
        if let Some(intent) = unreadable {
            intent.ensure_kept(plane.client(), &standby).await.context(step.clone())?;
            stored.remove(&intent.volume).with_context(|| format!("{step}: {} is deleted", intent.volume))?;
            run.add_note(&format!("{step}: 1 intent kept, which the previous version cannot read"))?;
        }
        claims.ensure_consistent(count, &stored).await.context(step.clone())?;
        run.add_note(&format!("{step}: {note}"))?;
        leader = standby;
    }

    driver.set_latency(Duration::ZERO).await?;
    claims.delete(0..count).await?;
    claims.wait_remaining(0, TIMEOUT).await?;
    journal::ensure_intents(plane.client(), 0).await?;
    let left = driver.volumes().await?;
    ensure!(left.is_empty(), "the driver has {left:?}");
    leader.process.stop().await?;
    driver.process.stop().await?;
    plane.stop().await
}

/// Ends the leader while its intents are open, and waits until another process has completed them, and has
/// provisioned as many claims that are created later. `kept` intents are left to the version that can read
/// them. Returns a note.
async fn hand_over(
    client: &Client,
    claims: &Claims,
    count: &mut usize,
    mut leader: Replica,
    end: End,
    kept: usize,
) -> Result<String> {
    let first = *count;
    claims.create(first..first + CLAIMS).await?;
    let intents = until("intents are open", TIMEOUT, async || {
        let intents = journal::count_intents(client).await?;
        ensure!(intents >= MIN_INTENTS, "{intents} are: expected {MIN_INTENTS}");
        Ok(intents)
    })
    .await?;
    let ended = Instant::now();
    let stop = async {
        match end {
            End::Terminated => leader.process.stop().await,
            End::Killed => leader.process.kill().await,
        }
    };
    let (stopped, created) = tokio::join!(stop, claims.create(first + CLAIMS..first + 2 * CLAIMS));
    stopped?;
    created?;
    *count = first + 2 * CLAIMS;
    claims.wait_bound(*count, TIMEOUT).await?;
    until("the intents are completed", TIMEOUT, async || journal::ensure_intents(client, kept).await).await?;
    Ok(format!(
        "{intents} open intents; {} claims are Bound after {:.1} s",
        2 * CLAIMS,
        ended.elapsed().as_secs_f64()
    ))
}

/// An intent whose field `unneeded` the previous version does not know: its claim was deleted during
/// CreateVolume, and the volume is being deleted.
struct UnreadableIntent {
    claim_uid: String,
    /// Handle of the volume.
    volume: String,
}

impl UnreadableIntent {
    /// Lets the current version, which leads, write the intent. Its deletion is under way afterwards.
    async fn leave(client: &Client, driver: &CsiDriverProcess) -> Result<Self> {
        let created = calls_of(driver, "CreateVolume").await?;
        let claims = Claims::new(client, UNREADABLE, DRIVER).await?;
        claims.create(0..1).await?;
        until("CreateVolume is under way", TIMEOUT, async || {
            ensure!(calls_of(driver, "CreateVolume").await? > created, "no call");
            Ok(())
        })
        .await?;
        driver.set_latency(DELETION_LATENCY).await?;
        claims.delete(0..1).await?;
        let intent = until("an intent names an unneeded volume", TIMEOUT, async || {
            for (claim_uid, intent) in journal::intents(client).await? {
                let intent: Value = serde_json::from_str(&intent)?;
                if let Some(volume) = intent.get("unneeded").and_then(Value::as_str) {
                    return Ok(Self { claim_uid, volume: volume.to_owned() });
                }
            }
            bail!("none does")
        })
        .await?;
        driver.set_latency(LATENCY).await?;
        Ok(intent)
    }

    /// Checks that the journal still has the intent, and that the previous version, which leads, has logged
    /// its claim.
    async fn ensure_kept(&self, client: &Client, leader: &Replica) -> Result<()> {
        let intents = journal::intents(client).await?;
        ensure!(intents.contains_key(&self.claim_uid), "the intent of claim {} is gone", self.claim_uid);
        let log = fs::read_to_string(leader.process.log())?;
        let is_logged = |line: &str| line.contains("undecodable intent") && line.contains(&self.claim_uid);
        ensure!(log.lines().any(is_logged), "the log does not name claim {}", self.claim_uid);
        Ok(())
    }
}

/// Number of the driver's calls of a method.
async fn calls_of(driver: &CsiDriverProcess, method: &str) -> Result<u64> {
    Ok(driver.call_counts().await?.get(method).copied().unwrap_or_default())
}

/// A process that leads, or waits for the Leases.
struct Replica {
    version: Version,
    process: ManagedProcess,
}

impl Replica {
    async fn start(
        run: &SuiteRun,
        version: Version,
        account: &Account,
        driver: &CsiDriverProcess,
    ) -> Result<Self> {
        let port = run.free_port()?;
        let spec = CommandSpec::new(format!("{}-{port}", version.as_str()), version.program(run)?)
            .arg("run")
            .args(account.roles().iter().map(|role| format!("--role={role}")))
            .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
            .arg(format_args!("--kubeconfig={}", account.kubeconfig().display()))
            .arg(format_args!("--csi-address={}", driver.socket().display()))
            .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
            .arg(format_args!("--leader-election-namespace={}", namespaces::COFFERDAM))
            .args(LEASE)
            .arg("--orphan-scan-interval=off");
        let mut process = ManagedProcess::start(run, spec)?;
        let endpoint = plain_client(port)?;
        // The previous version is not ready while it waits for the Leases.
        process.wait_ready(TIMEOUT, async || control_plane::probe_path(&endpoint, "/healthz").await).await?;
        Ok(Self { version, process })
    }
}
