//! A CSI driver that is no part of this repository, by path: claims are provisioned, attached, mounted,
//! expanded and deleted with Cofferdam under the names of the driver's sidecars. Meanwhile each sidecar is
//! replaced by the Go program and back. The environment variable `STRANGER` is the path of the driver's
//! [description](description::DriverDescription); without it the Go driver of `conformance/driver` runs.

mod call_log;
mod description;
mod guide;
mod in_tree;
mod slots;

use std::{
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{Api, api::ListParams};
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

use crate::{
    account::Kubectl,
    claims::{Claims, ContinuousClaimLoad},
    control_plane::{ControlPlane, ControlPlaneOptions},
    implementation::Implementation,
    journal,
    node::{self, KubeletNode},
    planted_secret::PlantedSecret,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};
use call_log::CallLog;
use description::{
    CommandDescription, DriverDescription, NodeService, SecretKey, SimulatedNode, Variables, substitute,
};
use slots::SidecarSlots;

use super::{
    simulated_node,
    slot::{ATTACHER, PROVISIONER, RESIZER, Slot},
    users::{self, TIMEOUT, Users, VolumeUse},
};

/// Variable of the environment with the directory of a driver's programs: `${programs}` of a description.
const PROGRAMS: &str = "STRANGER_PROGRAMS";
/// The description if the environment names none.
const GO_DRIVER: &str = "../strangers/go-driver.json";
const NODE: &str = "node-1";
const NAMESPACE: &str = "strangers";
/// Namespace of the claim that waits before the sidecars have rights.
const EARLY_NAMESPACE: &str = "strangers-early";
/// Name of this claim.
const EARLY_CLAIM: &str = "claim-0";
/// Minimum number of claims.
const CLAIMS: usize = 24;
/// Concurrent users of claims.
const CONCURRENT_USERS: usize = 6;
/// Number of volumes that are used between two replacements: one user at least has deleted a volume and used
/// another one meanwhile.
const CLAIMS_PER_SWAP: usize = CONCURRENT_USERS + 1;
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                           persistentvolumeclaim-protection-controller,namespace-controller";
/// Controllers that pods on a kubelet need, too.
const POD_CONTROLLERS: &str = "node-lifecycle-controller,persistentvolume-attach-detach-controller";

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let path = env::var_os("STRANGER")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(GO_DRIVER), PathBuf::from);
    let description = DriverDescription::read(&path)?;
    let has_node = description.node.is_some();
    let controllers =
        if has_node { format!("{CONTROLLERS},{POD_CONTROLLERS}") } else { CONTROLLERS.to_owned() };
    let options = ControlPlaneOptions {
        controllers: Some(controllers),
        has_scheduler: has_node,
        has_audited_bodies: description.planted_secret.is_some(),
        ..ControlPlaneOptions::default()
    };
    let mut plane = ControlPlane::start(run, options).await?;
    let node = if has_node { Some(KubeletNode::start(run, &plane, NODE).await?) } else { None };
    let kubectl = Kubectl::new(run, &plane)?;
    for manifest in &description.manifests {
        kubectl.run(&["apply", "--filename", &manifest.display().to_string()]).await?;
    }
    in_tree::check_lists(run, &plane, &description).await?;
    let mut driver = RunningDriver::start(run, &description, node.as_ref()).await?;
    if let Some(simulated) = &description.simulated_node {
        let SimulatedNode { id, topology } = simulated;
        simulated_node::register(plane.client(), NODE, &description.driver, id, topology).await?;
    }
    if has_node {
        until("kubelet has registered the driver", TIMEOUT, async || {
            node::ensure_registered(plane.client(), NODE, &description.driver).await
        })
        .await?;
    }
    // Work for a process without rights.
    let early_claims = Claims::with_class(plane.client(), EARLY_NAMESPACE, &description.class).await?;
    early_claims.create(0..1).await?;
    let class: StorageClass = Api::all(plane.client().clone()).get(&description.class).await?;
    if is_delayed(&class) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(plane.client().clone(), EARLY_NAMESPACE);
        users::select_node(&claims, EARLY_CLAIM, NODE).await?;
    }
    let calls = driver.calls.as_ref();
    let slots = SidecarSlots::start(run, &mut plane, &description, &driver.socket, calls).await?;
    early_claims.wait_bound(1, TIMEOUT).await?;
    early_claims.delete(0..1).await?;
    early_claims.wait_remaining(0, TIMEOUT).await?;
    if let Some(arguments) = description.sidecars.get("livenessprobe") {
        driver.processes.push(slots::start_liveness(run, arguments, &driver.socket).await?);
    }
    let planted = run_users(run, &plane, &description, &driver, slots).await?;
    if let Some(node) = &node {
        node.wait_idle(run, TIMEOUT).await?;
    }
    // The services last: the driver uses them.
    while let Some(mut process) = driver.processes.pop() {
        process.stop().await?;
    }
    if let Some(node) = node {
        node.stop().await?;
    }
    plane.stop().await?;
    match planted {
        Some(planted) => planted.ensure_not_in_files(run.directory()),
        None => Ok(()),
    }
}

/// Runs the users while each sidecar is replaced by the Go program and back, and checks that nothing is left.
/// Returns the planted Secret of the description.
async fn run_users(
    run: &SuiteRun,
    plane: &ControlPlane,
    description: &DriverDescription,
    driver: &RunningDriver,
    mut slots: SidecarSlots<'_>,
) -> Result<Option<PlantedSecret>> {
    let client = plane.client();
    let class: StorageClass = Api::all(client.clone()).get(&description.class).await?;
    let volume_use = VolumeUse {
        is_mounted: description.node.is_some(),
        is_attached: description.sidecars.contains_key(ATTACHER.name),
        is_expanded: description.sidecars.contains_key(RESIZER.name)
            && class.allow_volume_expansion == Some(true),
        is_delayed: is_delayed(&class),
    };
    let claims = Claims::with_class(client, NAMESPACE, &description.class).await?;
    let users = Users::new(client, NAMESPACE, NODE, &description.driver, claims, volume_use);
    let started = Instant::now();
    let load = ContinuousClaimLoad::new(CLAIMS, CONCURRENT_USERS);
    let swaps = async {
        until("the driver lists a volume", TIMEOUT, async || {
            // Shows that an empty list at the end means something.
            let volumes = driver.list_volumes(run).await?;
            ensure!(volumes.is_none_or(|volumes| !volumes.is_empty()), "it lists none");
            Ok(())
        })
        .await?;
        guide::wait_claims_shown(run, plane, &description.driver).await?;
        in_tree::ensure_lists(run, plane, description, &[]).await?;
        swap_sidecars(run, plane, &users, &mut slots, description, volume_use).await?;
        load.finish();
        Ok(())
    };
    let (count, ()) = tokio::try_join!(users.run_all(&load), swaps)?;
    run.add_note(&format!(
        "{}: {count} claims, {volume_use:?}: {:.0} s",
        description.driver,
        started.elapsed().as_secs_f64()
    ))?;
    until("nothing is left", TIMEOUT, async || {
        users.claims.wait_remaining(0, TIMEOUT).await?;
        let attachments = users.attachments().list(&ListParams::default()).await?.items.len();
        let pods = users.pods().list(&ListParams::default()).await?.items.len();
        ensure!(attachments == 0 && pods == 0, "{attachments} VolumeAttachments, {pods} pods");
        journal::ensure_intents(client, 0).await?;
        if let Some(volumes) = driver.list_volumes(run).await? {
            ensure!(volumes.is_empty(), "the driver has {volumes:?}");
        }
        Ok(())
    })
    .await?;
    let planted = match &description.planted_secret {
        Some(SecretKey { namespace, name, key }) => {
            let planted = PlantedSecret::read(client, namespace, name, key).await?;
            let processes = slots.processes().chain(&driver.processes);
            run.add_note(&planted.search(client, run.directory(), processes, namespace, name).await?)?;
            Some(planted)
        }
        None => None,
    };
    let tested: Vec<_> = slots.slots().into_iter().filter(|slot| is_used(*slot, volume_use)).collect();
    slots.stop().await?;
    let methods = driver.calls.as_ref().map(CallLog::methods).transpose()?;
    for slot in tested.into_iter().filter(|slot| driver.has_capability(slot.capability)) {
        if let Some(methods) = &methods {
            // Shows that the absence of these calls by a process without rights means something.
            let unrecorded = slot.methods.iter().find(|method| !methods.iter().any(|other| other == *method));
            ensure!(unrecorded.is_none(), "the call log of the driver has no call of {unrecorded:?}");
        }
        for implementation in [Implementation::Cofferdam, Implementation::Upstream] {
            for method in slot.methods {
                let calls = call_count(run, slot.name, implementation, method)?;
                run.add_note(&format!("calls of {}: {method} {calls}", implementation.as_str()))?;
                ensure!(calls > 0, "no successful call of {method} by {}", implementation.as_str());
            }
        }
    }
    Ok(planted)
}

fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

fn is_used(slot: Slot, volume_use: VolumeUse) -> bool {
    slot != RESIZER || volume_use.is_expanded
}

/// Replaces each sidecar that has work by the Go program, and later back. Each replacement has pending work.
async fn swap_sidecars(
    run: &SuiteRun,
    plane: &ControlPlane,
    users: &Users,
    slots: &mut SidecarSlots<'_>,
    description: &DriverDescription,
    volume_use: VolumeUse,
) -> Result<()> {
    for next in [Implementation::Upstream, Implementation::Cofferdam] {
        for slot in slots.slots().into_iter().filter(|slot| is_used(*slot, volume_use)) {
            users.wait_more_finished(CLAIMS_PER_SWAP).await?;
            // The steps of the guide's roll back.
            let is_rollback = slot == PROVISIONER && next == Implementation::Upstream;
            if is_rollback {
                users.pause_claims().await?;
                guide::wait_journal_empty(run, plane, &description.driver).await?;
            }
            slots.end_current(slot, next.other()).await?;
            if is_rollback {
                journal::ensure_intents(plane.client(), 0).await?;
                users.resume_claims();
            }
            users.wait_pending(slot).await?;
            slots.replace(slot, next).await?;
        }
    }
    users.wait_more_finished(CLAIMS_PER_SWAP).await
}

/// The programs of a driver.
struct RunningDriver {
    /// In the order of their start.
    processes: Vec<ManagedProcess>,
    /// Socket of the controller service.
    socket: PathBuf,
    /// Capabilities of the controller service.
    capabilities: Vec<String>,
    list: Option<Vec<String>>,
    /// The calls of all programs of the driver, if it records them.
    calls: Option<CallLog>,
}

impl RunningDriver {
    async fn start(
        run: &SuiteRun,
        description: &DriverDescription,
        node: Option<&KubeletNode>,
    ) -> Result<Self> {
        let mut variables = Variables::from([
            ("node", NODE.to_owned()),
            ("scratch", run.scratch().display().to_string()),
            ("peers", run.peers().directory().display().to_string()),
        ]);
        if let Some(directory) = env::var_os(PROGRAMS) {
            variables.insert("programs", PathBuf::from(directory).display().to_string());
        }
        let mut processes = Vec::new();
        for service in &description.services {
            let command = CommandDescription {
                command: service.command.clone(),
                environment: service.environment.clone(),
            };
            let spec = command_spec(&service.name, &command, &variables)?;
            let mut process = ManagedProcess::start(run, spec)?;
            let address = (Ipv4Addr::LOCALHOST, service.port);
            process
                .wait_ready(READY_TIMEOUT, async || {
                    TcpStream::connect(address).await.map(drop).with_context(|| format!("{address:?}"))
                })
                .await?;
            processes.push(process);
        }
        let own_socket = run.scratch().join("stranger/csi.sock");
        let node_socket =
            node.map(|node| node.root().join("plugins").join(&description.driver).join("csi.sock"));
        let socket = match (&description.node, &node_socket) {
            (Some(NodeService::Controller), Some(socket)) => socket.clone(),
            _ => own_socket,
        };
        if let Some(node) = node {
            variables.insert("kubelet", node.root().display().to_string());
        }
        processes.push(
            start_driver(run, "driver-controller", &description.controller, &socket, &mut variables).await?,
        );
        if let (Some(NodeService::Program(program)), Some(socket)) = (&description.node, &node_socket) {
            processes.push(start_driver(run, "driver-node", program, socket, &mut variables).await?);
        }
        if let (Some(node), Some(socket)) = (node, &node_socket) {
            processes.push(slots::start_registrar(run, description, socket, node.root()).await?);
        }
        let address = format!("unix://{}", socket.display());
        let arguments = ["backend", "inspect", &address, "--output", "json"];
        let answer: Value =
            serde_json::from_str(&process::run_to_completion(run.program(), &arguments).await?)?;
        let name = answer.pointer("/description/driver").and_then(Value::as_str).unwrap_or_default();
        ensure!(name == description.driver, "the driver is {name}: expected {}", description.driver);
        let capabilities = answer.pointer("/description/csiControllerCapabilities").cloned();
        let capabilities = serde_json::from_value(capabilities.context("no capabilities")?)?;
        let list = description
            .list
            .as_ref()
            .map(|command| command.iter().map(|text| substitute(text, &variables)).collect::<Result<_>>())
            .transpose()?;
        let call_log = description.call_log.as_ref().map(|path| substitute(path, &variables)).transpose()?;
        let calls = call_log.map(|path| CallLog::new(path.into()));
        Ok(Self { processes, socket, capabilities, list, calls })
    }

    fn has_capability(&self, name: &str) -> bool {
        self.capabilities.iter().any(|capability| capability == name)
    }

    /// The volumes at the storage, one line or value each. `None` if they cannot be listed.
    async fn list_volumes(&self, run: &SuiteRun) -> Result<Option<Vec<String>>> {
        if let Some((program, arguments)) = self.list.as_ref().and_then(|command| command.split_first()) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let text = process::run_to_completion(program, &arguments).await?;
            return Ok(Some(text.lines().map(str::to_owned).collect()));
        }
        if !self.has_capability("LIST_VOLUMES") {
            return Ok(None);
        }
        let address = format!("unix://{}", self.socket.display());
        let arguments = ["backend", "call", &address, "listing.list", "--output", "json"];
        let answer: Value =
            serde_json::from_str(&process::run_to_completion(run.program(), &arguments).await?)?;
        let volumes = answer.pointer("/response/volumes").and_then(Value::as_array);
        Ok(Some(volumes.context("no volumes in the response")?.iter().map(Value::to_string).collect()))
    }
}

fn command_spec(name: &str, command: &CommandDescription, variables: &Variables) -> Result<CommandSpec> {
    let (program, arguments) = command.command.split_first().context("an empty command")?;
    let mut spec = CommandSpec::new(name, substitute(program, variables)?);
    for argument in arguments {
        spec = spec.arg(substitute(argument, variables)?);
    }
    for (variable, value) in &command.environment {
        spec = spec.env(variable, substitute(value, variables)?);
    }
    Ok(spec)
}

/// Starts a program of a driver, and waits until its socket accepts connections.
async fn start_driver(
    run: &SuiteRun,
    name: &str,
    command: &CommandDescription,
    socket: &Path,
    variables: &mut Variables,
) -> Result<ManagedProcess> {
    fs::create_dir_all(socket.parent().context("a socket without a directory")?)?;
    variables.insert("socket", socket.display().to_string());
    let mut process = ManagedProcess::start(run, command_spec(name, command, variables)?)?;
    process
        .wait_ready(READY_TIMEOUT, async || {
            UnixStream::connect(socket).await.map(drop).with_context(|| socket.display().to_string())
        })
        .await?;
    Ok(process)
}

/// Successful calls of a method by all processes of an implementation, from the metrics at their ends.
fn call_count(run: &SuiteRun, sidecar: &str, implementation: Implementation, method: &str) -> Result<u64> {
    let path = ManagedProcess::metrics_file(&run.log(&slots::process_name(sidecar, implementation)));
    let text = fs::read_to_string(&path).with_context(|| format!("no metrics in {}", path.display()))?;
    let mut sum = 0;
    for line in text.lines().filter(|line| line.starts_with("csi_sidecar_operations_seconds_count{")) {
        if line.contains("grpc_status_code=\"OK\"") && line.contains(&format!("Controller/{method}\"")) {
            let value = line.rsplit(' ').next().unwrap_or_default();
            sum += value.parse::<u64>().with_context(|| format!("a line without a count: {line}"))?;
        }
    }
    Ok(sum)
}
