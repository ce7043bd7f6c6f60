//! csi-sanity in a machine, with the role `node` of the machine and the role `csi-server` of this one.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
    task::JoinHandle,
};

use super::node::{MachineNode, ROOT, SOCKET};
use crate::{machine::HOST, run::SuiteRun, suites::csi_sanity::SanityCounts};

/// Size of a volume in bytes before its expansion to twice this size.
const SIZE: u64 = 64 << 20;

const TIMEOUT: Duration = Duration::from_secs(300);

/// A run of csi-sanity.
pub(in crate::suites) struct MachineSanity<'a> {
    /// The name of the run, which ends the name of its log.
    pub(in crate::suites) name: &'a str,
    /// `mount` or `block`.
    pub(in crate::suites) access_type: &'a str,
    /// The secrets of the calls as YAML.
    pub(in crate::suites) secrets: String,
    /// The expected result.
    pub(in crate::suites) expected: SanityCounts,
    /// The tests that fail, as the driver documents.
    pub(in crate::suites) failures: &'a [&'a str],
}

/// Runs csi-sanity, and checks its result. `controller` is the CSI socket of the role `csi-server`.
pub(in crate::suites) async fn run(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    controller: &Path,
    sanity: &MachineSanity<'_>,
) -> Result<()> {
    let MachineSanity { name, access_type, secrets, expected, failures } = sanity;
    let (relay, port) = relay(controller).await?;
    node.machine.write("/run/secrets.yaml", secrets).await?;
    let script = format!(
        "rm -rf /run/sanity-done
         (csi-sanity --csi.endpoint=unix://{SOCKET} --csi.controllerendpoint=dns:///{HOST}:{port} \
            --csi.mountdir={ROOT}/target --csi.stagingdir={ROOT}/staging --csi.secrets=/run/secrets.yaml \
            --csi.testvolumeaccesstype={access_type} --csi.testvolumesize={SIZE} \
            --csi.testvolumeexpandsize={} --csi.testnodevolumeattachlimit --ginkgo.no-color --ginkgo.v || true
          touch /run/sanity-done) </dev/null >/run/sanity.log 2>&1 &",
        2 * SIZE
    );
    node.machine.shell(&script).await?;
    node.machine.wait_for_file("/run/sanity-done", TIMEOUT).await?;
    relay.abort();
    let output = node.machine.shell("cat /run/sanity.log; rm -f /run/secrets.yaml").await?;
    let log = run.log(&format!("csi-sanity-{name}"));
    fs::write(&log, &output)?;
    let counts = SanityCounts::parse(&output).with_context(|| format!("its log is {}", log.display()))?;
    let failed = output.lines().filter_map(|line| line.trim().strip_prefix("[FAIL] ")?.rsplit_once("[It] "));
    let failed: BTreeSet<&str> = failed.map(|(_, test)| test).collect();
    ensure!(
        counts == *expected && failed == failures.iter().copied().collect(),
        "csi-sanity with {name} says {counts:?}, failed {failed:?}: expected {expected:?}, failed {failures:?}; its \
         log is {}",
        log.display()
    );
    let SanityCounts { passed, failed, skipped } = counts;
    run.add_note(&format!(
        "csi-sanity with {name}: {passed} passed, {skipped} skipped, {failed} failed as documented"
    ))
}

/// Makes a Unix socket a TCP port, which machines reach.
async fn relay(socket: &Path) -> Result<(JoinHandle<()>, u16)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let socket = socket.to_owned();
    let task = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                // An error closes the connection.
                if let Ok(mut server) = UnixStream::connect(socket).await {
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    Ok((task, port))
}
