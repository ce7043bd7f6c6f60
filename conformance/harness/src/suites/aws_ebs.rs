//! The example driver for AWS EBS on moto, which imitates EC2: `cofferdam backend test`, and the demo of dev mode
//! with pods. moto comes from PyPI; where PyPI cannot be reached, the suite runs nothing and adds a note.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use tokio::net::TcpStream;

use crate::{
    process::{CommandSpec, ManagedProcess, run_to_completion},
    run::SuiteRun,
    sidecar::plain_client,
};

const MOTO: &str = "moto[ec2,server]==5.2.5";
/// moto with other rules of EC2, which checks signatures.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../strangers/moto_server.py");
const KEY_ID: &str = "AKIDEXAMPLE";
const KEY: &str = "conformance/secret";
const INSTANCES: [&str; 2] = ["i-0123456789abcdef0", "i-0123456789abcdef1"];
const ZONE: &str = "us-east-1a";
const ZONE_KEY: &str = "topology.kubernetes.io/zone";
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The suite makes some 700 calls, and many wait for the listing of EC2.
const TEST_TIMEOUT: Duration = Duration::from_secs(20 * 60);
const DEMO_TIMEOUT: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let Some(python) = install_moto(run).await? else { return Ok(()) };
    let port = run.free_port()?;
    let spec = CommandSpec::new("moto", &python)
        .args([SERVER, &port.to_string()])
        .args(INSTANCES)
        .args(["--key", &format!("{KEY_ID}={KEY}")]);
    let mut moto = ManagedProcess::start(run, spec)?;
    moto.wait_ready(START_TIMEOUT, async || stored_items(port).await).await?;

    let component = run.scratch().join("aws-ebs.wasm");
    fs::write(&component, cofferdam_test_guests::AWS_EBS)?;
    let config = write_config(run, &component, port)?;
    let nodes = [1, 2].into_iter().zip(INSTANCES);
    let nodes = nodes.map(|(number, instance)| format!("--node=node-{number}=aws:///{ZONE}/{instance}"));
    let nodes: Vec<String> = nodes.collect();

    let test = CommandSpec::new("backend-test", run.program())
        .args(["backend", "test"])
        .arg(component.display())
        .args([format!("--config={}", config.display()), format!("--topology={ZONE_KEY}={ZONE}")])
        .args(&nodes)
        .args(["--name=ebs", "--size=1Gi", "--parameter=type=gp3", "--other-parameter=type=gp2"])
        .args(["--mutable-parameter=iops=4000", "--retry-timeout=5m"]);
    let report = complete(run, test, TEST_TIMEOUT).await?;
    let totals =
        report.lines().find(|line| line.contains(" passed, ")).context("the report has no totals")?;
    run.add_note(&format!("backend test: {totals}"))?;
    ensure!(totals.contains(" 0 failed, "), "a case failed: {totals}");
    ensure_empty(port, "after the suite").await?;

    let demo = CommandSpec::new("dev", run.program())
        .args(["dev", "--demo", "--delete", "--port=0"])
        .arg(format_args!("--config={}", config.display()))
        .args(nodes.iter().map(|node| format!("{node},{ZONE_KEY}={ZONE}")));
    complete(run, demo, DEMO_TIMEOUT).await?;
    ensure_empty(port, "after the demo").await?;
    run.add_note("dev --demo: the pods ran, and nothing is left in moto")?;
    moto.stop().await
}

/// Installs moto into an environment of the cache. Returns its Python, or `None` if PyPI cannot be reached.
async fn install_moto(run: &SuiteRun) -> Result<Option<PathBuf>> {
    let directory = run.peers().directory().with_file_name("moto-5.2.5");
    let python = directory.join("bin/python");
    let text = directory.display().to_string();
    if let Err(error) = run_to_completion("python3", &["-m", "venv", &text]).await {
        run.add_note(&format!("not run: it needs python3 with venv: {error:#}"))?;
        return Ok(None);
    }
    let installed = run_to_completion(&python, &["-m", "pip", "install", "--quiet", MOTO]).await;
    let Err(error) = installed else { return Ok(Some(python)) };
    let connection = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect("pypi.org:443")).await;
    ensure!(
        !matches!(connection, Ok(Ok(_))),
        "pypi.org is reached, and {MOTO} cannot be installed: {error:#}"
    );
    run.add_note(&format!("not run: PyPI cannot be reached, and {MOTO} is not installed"))?;
    Ok(None)
}

fn write_config(run: &SuiteRun, component: &Path, port: u16) -> Result<PathBuf> {
    let (file, secret) = (run.scratch().join("aws-ebs.toml"), run.scratch().join("secret"));
    fs::write(&secret, KEY)?;
    let (component, secret) = (component.display(), secret.display());
    let text = format!(
        r#"[backend.ebs]
file = "{component}"
grants = ["ambient", "deadline", "secrets", "settings", "sign"]

[backend.ebs.settings]
endpoint = "http://127.0.0.1:{port}/"
region = "us-east-1"
access-key-id = "{KEY_ID}"

[backend.ebs.secrets]
secret-access-key = "{secret}"

[[backend.ebs.http.origins]]
origin = "http://127.0.0.1:{port}"
addresses = ["127.0.0.1"]
"#
    );
    fs::write(&file, text)?;
    Ok(file)
}

/// Runs a command to its end, and returns its log.
async fn complete(run: &SuiteRun, spec: CommandSpec, limit: Duration) -> Result<String> {
    let mut process = ManagedProcess::start(run, spec)?;
    let status = process.wait_exit(limit).await?;
    let log = fs::read_to_string(process.log())?;
    ensure!(status.success(), "{} ended with {status}, log {}", process.name(), process.log().display());
    Ok(log)
}

/// The names of the volumes and snapshots in moto.
async fn stored_items(port: u16) -> Result<String> {
    Ok(plain_client(port)?.request_text(Request::get("/volumes").body(Vec::new())?).await?)
}

async fn ensure_empty(port: u16, when: &str) -> Result<()> {
    let items = stored_items(port).await?;
    ensure!(items.is_empty(), "{when}, moto has {}", items.replace('\n', " "));
    Ok(())
}
