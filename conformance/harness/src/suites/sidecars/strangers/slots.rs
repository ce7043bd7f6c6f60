//! The sidecars of a driver, each of which is either the Go program or Cofferdam under the sidecar's name.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    account::Account,
    control_plane::{self, ApiUser, ControlPlane},
    implementation::Implementation,
    namespaces,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar,
};

use super::{call_log::CallLog, description::DriverDescription, guide};
use crate::suites::sidecars::slot::{SLOTS, Slot};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Methods that sidecars and kubelet call at their start.
const STARTUP_METHODS: [&str; 7] = [
    "Probe",
    "GetPluginInfo",
    "GetPluginCapabilities",
    "ControllerGetCapabilities",
    "GroupControllerGetCapabilities",
    "NodeGetCapabilities",
    "NodeGetInfo",
];

/// Name of the process of an implementation, and of its log.
pub(super) fn process_name(name: &str, implementation: Implementation) -> String {
    match implementation {
        Implementation::Upstream => name.to_owned(),
        Implementation::Cofferdam => sidecar::cofferdam_name(name),
    }
}

/// The sidecars with two implementations, and their current processes.
pub(super) struct SidecarSlots<'a> {
    run: &'a SuiteRun,
    description: &'a DriverDescription,
    /// The service account of Cofferdam.
    account: Account,
    kubeconfig: PathBuf,
    socket: PathBuf,
    processes: Vec<(Slot, ManagedProcess)>,
}

impl<'a> SidecarSlots<'a> {
    /// Starts Cofferdam under the name of each sidecar of the description. All use one service account, as
    /// the containers of a pod do, with the rights that the guide grants. Before that, each process runs
    /// [without rights](Self::run_without_rights).
    pub(super) async fn start(
        run: &'a SuiteRun,
        plane: &mut ControlPlane,
        description: &'a DriverDescription,
        socket: &Path,
        calls: Option<&CallLog>,
    ) -> Result<Self> {
        let account = Account::without_rights(run, plane, guide::ACCOUNT).await?;
        let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
        let processes = Vec::new();
        let mut all = Self { run, description, account, kubeconfig, socket: socket.to_owned(), processes };
        for slot in all.slots() {
            all.run_without_rights(plane, slot, calls).await?;
        }
        for slot in all.slots() {
            guide::grant(run, plane, slot.role, &description.secret_namespaces, guide::ACCOUNT).await?;
        }
        for slot in all.slots() {
            all.replace(slot, Implementation::Cofferdam).await?;
        }
        Ok(all)
    }

    /// Runs a sidecar with an account of its own that has no rights. The process has to name those that the
    /// guide then grants, and to end before it calls a method of its role.
    async fn run_without_rights(
        &self,
        plane: &mut ControlPlane,
        slot: Slot,
        calls: Option<&CallLog>,
    ) -> Result<()> {
        let name = format!("{}-{}", guide::ACCOUNT, slot.role);
        let account = Account::without_rights(self.run, plane, &name).await?;
        let earlier = calls.map(CallLog::methods).transpose()?.map_or(0, |methods| methods.len());
        let spec = self.cofferdam(slot, &account)?.name(&format!("{}-without-rights", slot.name));
        let missing = guide::missing_rights(self.run, spec).await?;
        // Requests of this process were rejected, as expected.
        plane.take_forbidden()?;
        if let Some(calls) = calls {
            let mut methods = calls.methods()?.split_off(earlier);
            methods.retain(|method| !STARTUP_METHODS.contains(&method.as_str()));
            ensure!(methods.is_empty(), "{} without rights has called {methods:?}", slot.name);
        }
        guide::grant(self.run, plane, slot.role, &self.description.secret_namespaces, &name).await?;
        let mut granted = guide::granted_rights(plane, &name).await?;
        if !self.has_leader_election(slot)? {
            // The command grants the rights to Leases for both cases of step 4.
            granted.retain(|right| right.split(' ').nth(1) != Some("leases"));
        }
        let unnamed: Vec<_> = granted.difference(&missing).collect();
        let unneeded: Vec<_> = missing.difference(&granted).collect();
        ensure!(
            unnamed.is_empty() && unneeded.is_empty(),
            "{} did not name {unnamed:?}, and named {unneeded:?}, which are not granted",
            slot.name
        );
        self.run.add_note(&format!("{}: named {} missing rights", slot.name, missing.len()))
    }

    /// The sidecars of the description that both implementations have.
    pub(super) fn slots(&self) -> Vec<Slot> {
        slots(self.description).collect()
    }

    /// Ends the current process of a sidecar: with SIGKILL if it is Cofferdam's, and otherwise with SIGTERM.
    pub(super) async fn end_current(&mut self, slot: Slot, implementation: Implementation) -> Result<()> {
        for (_, mut process) in self.processes.extract_if(.., |(other, _)| *other == slot) {
            match implementation {
                Implementation::Cofferdam => process.kill().await?,
                Implementation::Upstream => process.stop().await?,
            }
        }
        Ok(())
    }

    /// Starts a sidecar, whose former process has ended.
    pub(super) async fn replace(&mut self, slot: Slot, implementation: Implementation) -> Result<()> {
        let process = match implementation {
            Implementation::Upstream => {
                let arguments = self.arguments(slot)?;
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                sidecar::start(self.run, slot.name, &self.kubeconfig, &self.socket, &arguments).await?
            }
            Implementation::Cofferdam => {
                start_and_wait(self.run, self.cofferdam(slot, &self.account)?, "/readyz").await?
            }
        };
        self.processes.push((slot, process));
        Ok(())
    }

    /// The arguments of the description, and those of a process outside of a pod.
    fn arguments(&self, slot: Slot) -> Result<Vec<String>> {
        let mut arguments = self.description.sidecars.get(slot.name).context("no such sidecar")?.clone();
        if self.has_leader_election(slot)? {
            // In a pod, it is the pod's namespace.
            arguments.push(format!("--leader-election-namespace={}", namespaces::COFFERDAM));
        }
        Ok(arguments)
    }

    fn has_leader_election(&self, slot: Slot) -> Result<bool> {
        let arguments = self.description.sidecars.get(slot.name).context("no such sidecar")?;
        let is_flag = |argument: &String| argument.trim_start_matches('-').starts_with("leader-election");
        Ok(arguments.iter().any(is_flag))
    }

    /// Cofferdam under the name of a sidecar.
    fn cofferdam(&self, slot: Slot, account: &Account) -> Result<CommandSpec> {
        Ok(sidecar::cofferdam_command(self.run, slot.name)?
            .arg(format_args!("--kubeconfig={}", account.kubeconfig().display()))
            .arg(format_args!("--csi-address={}", self.socket.display()))
            .args(self.arguments(slot)?)
            // In a pod, it is the pod's namespace.
            .env("COFFERDAM_NAMESPACE", namespaces::COFFERDAM)
            .env("COFFERDAM_SECRET_NAMESPACES", self.description.secret_namespaces.join(",")))
    }

    /// The current processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ManagedProcess> {
        self.processes.iter().map(|(_, process)| process)
    }

    /// Stops all sidecars. Checks that Cofferdam has reported no missing rights.
    pub(super) async fn stop(mut self) -> Result<()> {
        for (_, process) in &mut self.processes {
            process.stop().await?;
        }
        for slot in self.slots() {
            let log = self.run.log(&process_name(slot.name, Implementation::Cofferdam));
            let text = fs::read_to_string(&log)?;
            let missing = text.lines().find(|line| line.contains("the account lacks rights"));
            ensure!(missing.is_none(), "{}: {}", log.display(), missing.unwrap_or_default());
        }
        Ok(())
    }
}

fn slots(description: &DriverDescription) -> impl Iterator<Item = Slot> {
    SLOTS.into_iter().filter(|slot| description.sidecars.contains_key(slot.name))
}

/// Starts Cofferdam as csi-node-driver-registrar, with the node service behind `socket`.
pub(super) async fn start_registrar(
    run: &SuiteRun,
    description: &DriverDescription,
    socket: &Path,
    root: &Path,
) -> Result<ManagedProcess> {
    const NAME: &str = "csi-node-driver-registrar";
    let plugins = root.join("plugins_registry");
    fs::create_dir_all(&plugins)?;
    let spec = sidecar::cofferdam_command(run, NAME)?
        .arg(format_args!("--csi-address={}", socket.display()))
        .arg(format_args!("--kubelet-registration-path={}", socket.display()))
        .arg(format_args!("--plugin-registration-path={}", plugins.display()))
        .args(description.sidecars.get(NAME).into_iter().flatten());
    start_and_wait(run, spec, "/healthz").await
}

/// Starts Cofferdam as livenessprobe.
pub(super) async fn start_liveness(
    run: &SuiteRun,
    arguments: &[String],
    socket: &Path,
) -> Result<ManagedProcess> {
    let spec = sidecar::cofferdam_command(run, "livenessprobe")?
        .arg(format_args!("--csi-address={}", socket.display()))
        .args(arguments);
    start_and_wait(run, spec, "/healthz").await
}

async fn start_and_wait(run: &SuiteRun, spec: CommandSpec, page: &str) -> Result<ManagedProcess> {
    let port = run.free_port()?;
    let mut process = ManagedProcess::start(run, spec.arg(format_args!("--http-endpoint=127.0.0.1:{port}")))?;
    let client = sidecar::plain_client(port)?;
    process.wait_ready(READY_TIMEOUT, async || control_plane::probe_path(&client, page).await).await?;
    Ok(process.with_metrics(client))
}
