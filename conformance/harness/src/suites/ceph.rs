//! The driver for Ceph on a real Ceph: `cofferdam backend test`, and a cluster for people.

pub(super) mod guide;
mod node;

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    ceph::{CephCluster, NODE_USER, POOLS, USER},
    process::{CommandSpec, ManagedProcess, run_to_completion},
    run::SuiteRun,
};

/// The result of `backend test`: a case that starts to be skipped is noticed.
const TOTALS: &str = "124 passed, 0 failed, 31 skipped";
/// The start of every token of the dashboard: `{"alg":"HS256"` in Base64.
const TOKEN_START: &str = "eyJhbGciOiJIUzI1Ni";
/// Name of the driver's section in the configuration.
const NAME: &str = "ceph";
const TEST_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Address of the cluster on the loopback interface. Virtual machines with QEMU's user network reach it,
/// because it is not in 127.0.0.0/8.
const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let started = Instant::now();
    let _address = LoopbackAddress::add(GUEST_ADDRESS).await?;
    let mut cluster = CephCluster::start(run, GUEST_ADDRESS).await?;
    run.add_note(&format!("Ceph started in {} s", started.elapsed().as_secs()))?;
    let config = write_config(run, &cluster)?;
    let [pool, other] = POOLS;
    let spec = CommandSpec::new("backend-test", run.program())
        .args(["backend", "test"])
        .arg(run.scratch().join("ceph.wasm").display())
        .args([format!("--config={}", config.display()), "--name=ceph".to_owned()])
        .args([format!("--parameter=pool={pool}"), format!("--other-parameter=pool={other}")])
        .env("RUST_LOG", "debug");
    let mut test = ManagedProcess::start(run, spec)?;
    test.wait_exit(TEST_TIMEOUT).await?;
    let report = fs::read_to_string(test.log())?;
    for (secret, text) in [("the password", cluster.password()), ("a token", TOKEN_START)] {
        ensure!(!report.contains(text), "the log of `backend test` at the level debug has {secret}");
    }
    let totals =
        report.lines().find(|line| line.contains(" passed, ")).context("the report has no totals")?;
    run.add_note(&format!("backend test: {totals}, after {} s", started.elapsed().as_secs()))?;
    ensure!(totals == TOTALS, "the totals are {totals:?}, expected {TOTALS:?}");
    ensure_empty(&cluster, "backend test").await?;
    node::use_volumes(run, &mut cluster, &config).await?;
    ensure_empty(&cluster, "the node").await?;
    cluster.stop().await
}

/// Checks that the pools have no image.
async fn ensure_empty(cluster: &CephCluster, after: &str) -> Result<()> {
    for pool in POOLS {
        let images = cluster.rbd(&["ls", "--pool", pool]).await?;
        ensure!(images.trim().is_empty(), "after {after}, the pool {pool} has {images}");
    }
    Ok(())
}

/// An address of the machine's loopback interface. It belongs to no namespace of the run, and is removed when this is
/// dropped.
struct LoopbackAddress(String);

impl LoopbackAddress {
    async fn add(address: Ipv4Addr) -> Result<Self> {
        let address = format!("{address}/32");
        run_to_completion("ip", &["address", "replace", &address, "dev", "lo"]).await?;
        Ok(Self(address))
    }
}

impl Drop for LoopbackAddress {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["address", "del", &self.0, "dev", "lo"]).status();
    }
}

/// Starts a cluster, and prints how to use it, until the run is interrupted.
pub(super) async fn serve(run: &SuiteRun) -> Result<()> {
    let _address = LoopbackAddress::add(GUEST_ADDRESS).await?;
    let cluster = CephCluster::start(run, GUEST_ADDRESS).await?;
    let config = write_config(run, &cluster)?;
    let key = run.scratch().join("node.key");
    fs::write(&key, cluster.node_key().await?)?;
    let script = run.directory().join("enter");
    let text = format!(
        "#!/bin/sh\n\
         # Runs a command, or a shell, in the namespaces of the cluster. `ceph` and `rbd` are those of the cluster.\n\
         pid=$(pgrep --full 'suite ceph-cluster --scratch {scratch} ' | head -1)\n\
         test -n \"$pid\" || {{ echo 'the cluster has ended' >&2; exit 1; }}\n\
         case \"${{1:-}}\" in ceph | rbd | rados) set -- chroot {root} \"$@\" ;; esac\n\
         exec nsenter --target \"$pid\" --all --wd=\"$PWD\" \"${{@:-bash}}\"\n",
        scratch = run.scratch().display(),
        root = cluster.root().display(),
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    run.add_note(&format!(
        "Ceph {} is ready: {} runs a shell or a command in its namespaces, such as `ceph -s`",
        cluster.fsid(),
        script.display()
    ))?;
    run.add_note(&format!(
        "in them: configuration of the driver {}, key of {NODE_USER} {}",
        config.display(),
        key.display()
    ))?;
    run.add_note(&format!(
        "monitor {}, dashboard {}, pools {POOLS:?}; Ctrl-C ends it",
        cluster.monitor(),
        cluster.url()
    ))?;
    std::future::pending().await
}

/// Writes the component, the password and the configuration of the driver.
fn write_config(run: &SuiteRun, cluster: &CephCluster) -> Result<PathBuf> {
    let [file, component, password] =
        ["ceph.toml", "ceph.wasm", "password"].map(|name| run.scratch().join(name));
    fs::write(&component, cofferdam_test_guests::CEPH)?;
    fs::write(&password, cluster.password())?;
    let (component, password, url) = (component.display(), password.display(), cluster.url());
    let [pool, other] = POOLS;
    let text = format!(
        r#"[backend.ceph]
file = "{component}"
grants = ["ambient", "deadline", "reveal", "secrets", "session", "settings"]

[backend.ceph.settings]
url = "{url}"
user = "{USER}"
pool = "{pool}"
pools = "{other}"

[backend.ceph.secrets]
password = "{password}"

[[backend.ceph.http.origins]]
origin = "{url}"
addresses = ["127.0.0.1"]
"#
    );
    fs::write(&file, text)?;
    Ok(file)
}
