//! A Ceph cluster of one monitor, one manager with the dashboard, and one OSD, from Debian's packages. Nothing is
//! installed: the packages are unpacked into the cache, and the programs run in that directory with `chroot`, below
//! an overlay in memory.

use std::{
    ffi::CString,
    fs::{self, File},
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cofferdam_image::{PackageCache, PinnedPackage};
use rustix::mount::{MountFlags, mount, mount_bind};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    peers,
    process::{CommandSpec, ManagedProcess, run_to_completion},
    run::SuiteRun,
    wait::until,
};

const PACKAGES: &str = include_str!("../../ceph/packages.toml");
/// Links from the root into `/usr`. The packages of Debian 12 are unpacked as if they had them.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// Pools with the application `rbd`.
pub const POOLS: [&str; 2] = ["rbd", "rbd-other"];
const MANAGER: &str = "ceph-mgr";
/// User and role of the dashboard.
pub const USER: &str = "cofferdam";
/// User of the nodes.
pub const NODE_USER: &str = "client.cofferdam-node";
/// Size of the OSD's file in bytes. It is sparse, in memory.
const OSD_BYTES: u64 = 8 << 30;
/// Number of ports from which OSD and manager choose theirs.
const DAEMON_PORTS: u16 = 16;
const START_TIMEOUT: Duration = Duration::from_secs(120);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// A running cluster. Its processes end with the run.
#[derive(Debug)]
pub struct CephCluster {
    root: PathBuf,
    fsid: String,
    address: Ipv4Addr,
    /// The monitor's ports for the versions 2 and 1 of the protocol.
    monitor_ports: [u16; 2],
    dashboard_port: u16,
    password: String,
    processes: Vec<ManagedProcess>,
}

impl CephCluster {
    /// Starts a cluster and waits until the dashboard responds and the pools have space. Monitor and OSD listen on
    /// `address` and advertise it, so it has to be one that every client reaches. The dashboard listens on
    /// 127.0.0.1.
    ///
    /// # Errors
    /// If the packages cannot be had, or the cluster does not become ready in time.
    pub async fn start(run: &SuiteRun, address: Ipv4Addr) -> Result<Self> {
        let root = mount_root(run, &unpack()?)?;
        let monitor_ports = [run.free_port()?, run.free_port()?];
        let dashboard_port = run.free_port()?;
        let (fsid, password) = (random_uuid()?, random_uuid()?);
        let processes = Vec::new();
        let mut cluster = Self { root, fsid, address, monitor_ports, dashboard_port, password, processes };
        let ports: Vec<u16> = (0..DAEMON_PORTS).map(|_| run.free_port()).collect::<Result<_>>()?;
        cluster.write_configuration(&ports)?;
        cluster.start_monitor(run).await?;
        cluster.start_manager(run).await?;
        cluster.start_osd(run).await?;
        cluster.create_pools().await?;
        cluster.create_users().await?;
        Ok(cluster)
    }

    /// Runs `ceph` with these arguments, and returns its output.
    ///
    /// # Errors
    /// If it fails, or does not end in time.
    pub async fn ceph(&self, arguments: &[&str]) -> Result<String> {
        self.run("ceph", arguments).await
    }

    /// Runs `rbd` with these arguments, and returns its output.
    ///
    /// # Errors
    /// As [`ceph`](Self::ceph).
    pub async fn rbd(&self, arguments: &[&str]) -> Result<String> {
        self.run("rbd", arguments).await
    }

    /// URL of the dashboard.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.dashboard_port)
    }

    /// Password of [`USER`].
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The cluster's ID.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.fsid
    }

    /// The monitor's address for version 1 of the protocol, which the kernel's client uses.
    #[must_use]
    pub fn monitor(&self) -> String {
        format!("{}:{}", self.address, self.monitor_ports[1])
    }

    /// The directory in which `chroot` runs Ceph's programs.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The key of [`NODE_USER`].
    ///
    /// # Errors
    /// If the monitor does not return it.
    pub async fn node_key(&self) -> Result<String> {
        Ok(self.ceph(&["auth", "get-key", NODE_USER]).await?.trim().to_owned())
    }

    /// Pauses the monitor and the OSD, or continues them. While they are paused, connections stay open without
    /// responses.
    ///
    /// # Errors
    /// If one has ended by itself, or does not stop, or if the monitor does not respond again.
    pub async fn set_available(&self, is_available: bool) -> Result<()> {
        for process in self.processes.iter().filter(|process| process.name() != MANAGER) {
            if is_available {
                process.resume()?;
            } else {
                process.pause().await?;
            }
        }
        if is_available {
            // Ceph 16 never ends the state `laggy` of a placement group with one replica, which a request after the
            // end of the read lease causes. Elsewhere other OSDs report a silent one, so that it is marked down.
            self.ceph(&["osd", "down", "0"]).await?;
        }
        Ok(())
    }

    /// Kills the monitor, the manager and the OSD, and starts them again.
    ///
    /// # Errors
    /// If one has ended by itself, or does not start.
    pub async fn restart_daemons(&mut self) -> Result<()> {
        for process in &mut self.processes {
            process.kill().await?;
        }
        self.processes.iter_mut().try_for_each(ManagedProcess::restart)
    }

    /// Waits until the dashboard responds.
    ///
    /// # Errors
    /// If it does not respond in time.
    pub async fn wait_for_dashboard(&self) -> Result<()> {
        until("the dashboard runs", START_TIMEOUT, async || {
            self.ceph(&["dashboard", "ac-role-show"]).await.map(drop)
        })
        .await
    }

    /// Stops the processes.
    ///
    /// # Errors
    /// If one has ended by itself, or does not end.
    pub async fn stop(mut self) -> Result<()> {
        for process in self.processes.iter_mut().rev() {
            process.stop().await?;
        }
        Ok(())
    }

    /// Runs a program of Ceph to its end, and returns its output.
    async fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let root = self.root.display().to_string();
        let arguments = [&[root.as_str(), program], arguments].concat();
        tokio::time::timeout(COMMAND_TIMEOUT, run_to_completion("chroot", &arguments))
            .await
            .with_context(|| format!("{program} did not end within {COMMAND_TIMEOUT:?}"))?
    }

    async fn run_all(&self, commands: &[(&str, &[&str])]) -> Result<()> {
        for (program, arguments) in commands {
            self.run(program, arguments).await?;
        }
        Ok(())
    }

    fn daemon(&self, run: &SuiteRun, program: &str, id: &str) -> Result<ManagedProcess> {
        let spec = CommandSpec::new(program, "chroot").arg(self.root.display());
        ManagedProcess::start(run, spec.args([program, "-f", "-i", id]))
    }

    fn write_configuration(&self, ports: &[u16]) -> Result<()> {
        let Self { fsid, address, .. } = self;
        let (first, last) = (ports.first().context("no port")?, ports.last().context("no port")?);
        let monitor = self.monitor_addresses();
        // A proposal of the monitor waits for a second by default, and every snapshot needs some.
        let text = format!(
            "[global]\n\
             fsid = {fsid}\n\
             mon_host = {monitor}\n\
             public_addr = {address}\n\
             ms_bind_port_min = {first}\n\
             ms_bind_port_max = {last}\n\
             auth_cluster_required = cephx\n\
             auth_service_required = cephx\n\
             auth_client_required = cephx\n\
             auth_allow_insecure_global_id_reclaim = false\n\
             mon_allow_pool_size_one = true\n\
             mon_warn_on_pool_no_redundancy = false\n\
             mgr_initial_modules = dashboard\n\
             osd_pool_default_size = 1\n\
             osd_crush_chooseleaf_type = 0\n\
             bluestore_block_size = {OSD_BYTES}\n\
             paxos_propose_interval = 0.1\n\
             paxos_min_wait = 0.01\n\
             log_to_file = false\n\
             log_to_stderr = true\n\
             mon_cluster_log_to_file = false\n\
             debug_rocksdb = 0\n"
        );
        for directory in ["etc/ceph", "run/ceph", "var/run/ceph", "var/lib/ceph/mon/ceph-a"] {
            fs::create_dir_all(self.root.join(directory))?;
        }
        for directory in ["var/lib/ceph/mgr/ceph-x", "var/lib/ceph/osd/ceph-0"] {
            fs::create_dir_all(self.root.join(directory))?;
        }
        Ok(fs::write(self.root.join("etc/ceph/ceph.conf"), text)?)
    }

    fn monitor_addresses(&self) -> String {
        let Self { address, monitor_ports: [v2, v1], .. } = self;
        format!("[v2:{address}:{v2},v1:{address}:{v1}]")
    }

    async fn start_monitor(&mut self, run: &SuiteRun) -> Result<()> {
        let keys = "/etc/ceph/mon.keyring";
        let admin = "/etc/ceph/ceph.client.admin.keyring";
        let all = ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"];
        let create_admin =
            [&["--create-keyring", admin, "--gen-key", "-n", "client.admin"], &all[..]].concat();
        let addresses = self.monitor_addresses();
        let map = ["--create", "--addv", "a", &addresses, "--fsid", &self.fsid, "/etc/ceph/monmap"];
        let create_store = ["--mkfs", "-i", "a", "--monmap", "/etc/ceph/monmap", "--keyring", keys];
        self.run_all(&[
            (
                "ceph-authtool",
                &["--create-keyring", keys, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"],
            ),
            ("ceph-authtool", &create_admin),
            ("ceph-authtool", &[keys, "--import-keyring", admin]),
            ("monmaptool", &map),
            ("ceph-mon", &create_store),
        ])
        .await?;
        let monitor = self.daemon(run, "ceph-mon", "a")?;
        self.processes.push(monitor);
        self.ceph(&["mon", "stat"]).await.map(drop)
    }

    async fn start_manager(&mut self, run: &SuiteRun) -> Result<()> {
        let port = self.dashboard_port.to_string();
        let keyring = "/var/lib/ceph/mgr/ceph-x/keyring";
        let capabilities = ["mon", "allow profile mgr", "osd", "allow *", "-o", keyring];
        self.ceph(&[&["auth", "get-or-create", "mgr.x"], &capabilities[..]].concat()).await?;
        // The monitor knows the options of the manager's modules only after the manager has started.
        for (option, value) in
            [("ssl", "false"), ("server_addr", "127.0.0.1"), ("server_port", port.as_str())]
        {
            let option = format!("mgr/dashboard/{option}");
            self.ceph(&["config", "set", "mgr", &option, value, "--force"]).await?;
        }
        let manager = self.daemon(run, MANAGER, "x")?;
        self.processes.push(manager);
        Ok(())
    }

    async fn start_osd(&mut self, run: &SuiteRun) -> Result<()> {
        let keyring = "/var/lib/ceph/osd/ceph-0/keyring";
        let caps = [
            "--cap",
            "mon",
            "allow profile osd",
            "--cap",
            "mgr",
            "allow profile osd",
            "--cap",
            "osd",
            "allow *",
        ];
        let create = [&["--create-keyring", keyring, "--gen-key", "-n", "osd.0"], &caps[..]].concat();
        self.run("ceph-authtool", &create).await?;
        let key = self.run("ceph-authtool", &["-p", "-n", "osd.0", keyring]).await?;
        let uuid = random_uuid()?;
        self.write_private("etc/ceph/osd.json", &json!({ "cephx_secret": key.trim() }).to_string())?;
        self.ceph(&["osd", "new", &uuid, "0", "-i", "/etc/ceph/osd.json"]).await?;
        self.run("ceph-osd", &["--mkfs", "-i", "0", "--osd-uuid", &uuid]).await?;
        let osd = self.daemon(run, "ceph-osd", "0")?;
        self.processes.push(osd);
        Ok(())
    }

    async fn create_pools(&self) -> Result<()> {
        for pool in POOLS {
            self.ceph(&["osd", "pool", "create", pool, "8"]).await?;
            self.ceph(&["osd", "pool", "application", "enable", pool, "rbd"]).await?;
        }
        until("the pools have space", START_TIMEOUT, async || {
            let usage: Value = serde_json::from_str(&self.ceph(&["df", "--format", "json"]).await?)?;
            let pools = usage.get("pools").and_then(Value::as_array).context("no pools")?;
            let has_space = |pool: &Value| pool.pointer("/stats/max_avail").and_then(Value::as_u64) > Some(0);
            ensure!(pools.iter().filter(|pool| has_space(pool)).count() > POOLS.len(), "{usage}");
            Ok(())
        })
        .await
    }

    /// Creates the user of the driver and that of the nodes, as `docs/ceph.md` describes.
    async fn create_users(&self) -> Result<()> {
        self.write_private("etc/ceph/password", &self.password)?;
        self.wait_for_dashboard().await?;
        let add = |scope, permissions: &[&'static str]| {
            [&["dashboard", "ac-role-add-scope-perms", USER, scope], permissions].concat()
        };
        self.ceph(&["dashboard", "ac-role-create", USER]).await?;
        self.ceph(&add("rbd-image", &["create", "read", "update", "delete"])).await?;
        self.ceph(&add("pool", &["read"])).await?;
        self.ceph(&add("monitor", &["read"])).await?;
        self.ceph(&["dashboard", "ac-user-create", USER, "-i", "/etc/ceph/password", USER]).await?;
        let osd = POOLS.map(|pool| format!("profile rbd pool={pool}")).join(", ");
        self.ceph(&["auth", "get-or-create", NODE_USER, "mon", "profile rbd", "osd", &osd]).await?;
        Ok(())
    }

    /// Writes a file with a secret.
    fn write_private(&self, path: &str, text: &str) -> Result<()> {
        let path = self.root.join(path);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PackageList {
    packages: Vec<PinnedPackage>,
}

/// Unpacks the packages into a directory of the cache, unless an earlier run has done so.
fn unpack() -> Result<PathBuf> {
    let digest = format!("{:x}", Sha256::digest(PACKAGES));
    let cache = peers::cache()?;
    let all = cache.join("ceph");
    let directory = all.join(digest.get(..16).unwrap_or(&digest));
    fs::create_dir_all(&all)?;
    let lock = File::create(all.join("lock"))?;
    lock.lock()?;
    if directory.exists() {
        return Ok(directory);
    }
    let unfinished = directory.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    for name in ["dev", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(unfinished.join(name))?;
    }
    for name in MERGED {
        fs::create_dir_all(unfinished.join("usr").join(name))?;
        symlink(format!("usr/{name}"), unfinished.join(name))?;
    }
    let PackageList { packages } = toml::from_str(PACKAGES).context("conformance/ceph/packages.toml")?;
    let files = PackageCache::new(cache.join("packages"));
    for package in &packages {
        files.get_or_current(package)?.files().write_directory(&unfinished)?;
    }
    fs::rename(&unfinished, &directory)?;
    Ok(directory)
}

/// Mounts an overlay in memory over the packages, with `/dev` and `/proc`. The mounts end with the run.
fn mount_root(run: &SuiteRun, packages: &Path) -> Result<PathBuf> {
    let directory = run.scratch().join("ceph");
    let [root, upper, work] = ["root", "upper", "work"].map(|name| directory.join(name));
    for directory in [&root, &upper, &work] {
        fs::create_dir_all(directory)?;
    }
    let layers = [("lowerdir", packages), ("upperdir", &upper), ("workdir", &work)];
    let options = layers.map(|(key, path)| format!("{key}={}", path.display())).join(",");
    let none = MountFlags::empty();
    mount("overlay", &root, "overlay", none, CString::new(options)?.as_c_str())
        .context("cannot mount the packages of Ceph")?;
    mount("proc", root.join("proc"), "proc", none, c"").context("cannot mount /proc for Ceph")?;
    mount_bind("/dev", root.join("dev")).context("cannot mount /dev for Ceph")?;
    Ok(root)
}

fn random_uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}
