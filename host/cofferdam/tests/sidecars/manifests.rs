//! The command lines of public drivers' manifests: each process does the work of its sidecar.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt as _;
use serde::Deserialize;

use crate::{
    driver::{Behavior, NAME},
    fixture::{Fixture, free_port, page, until},
    process::Process,
};

const MANIFESTS: &str = include_str!("../fixtures/sidecar-arguments.toml");
/// Smallest number of repositories in the fixture.
const MIN_REPOSITORIES: usize = 20;
const PROGRAMS: [&str; 5] =
    ["csi-attacher", "csi-node-driver-registrar", "csi-provisioner", "csi-resizer", "livenessprobe"];
/// Number of processes that are started at the same time.
const PROCESSES: usize = 6;
/// Time for the work of a process, less than that of the fixture's own waits.
const WORK_TIMEOUT: Duration = Duration::from_secs(40);
/// Flags whose value is a port or an address to serve pages on.
const ENDPOINT_FLAGS: [&str; 3] = ["http-endpoint", "metrics-address", "health-port"];

#[derive(Deserialize)]
struct Manifests {
    container: Vec<Container>,
}

/// A container of a manifest. Fields that say where it is from are for the reader.
#[derive(Deserialize)]
struct Container {
    repository: String,
    path: String,
    program: String,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Path of the container's own HTTP livenessProbe.
    #[serde(default = "default_probe")]
    probe: String,
    /// Command of the container's own exec livenessProbe.
    #[serde(default)]
    probe_command: Vec<String>,
}

fn default_probe() -> String {
    "/healthz".to_owned()
}

impl Container {
    /// Replaces variables as kubelet does.
    fn expand(&self, argument: &str) -> String {
        let variables = self.environment.iter();
        variables.fold(argument.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
    }

    /// The arguments of the sidecar, without a program that wraps it.
    fn expanded(&self) -> Vec<String> {
        let all = self.command.iter().chain(&self.arguments);
        let start = all.clone().position(|argument| argument.ends_with(&format!("/{}", self.program)));
        all.skip(start.map_or(0, |start| start + 1)).map(|argument| self.expand(argument)).collect()
    }

    /// The command line, with what differs between containers of the same command line in this test.
    fn distinct(&self) -> (String, Vec<String>, BTreeMap<String, String>, Vec<String>) {
        let is_path = |argument: &String| {
            ["csi-address=", "kubelet-registration-path="].iter().any(|flag| argument.contains(flag))
        };
        let arguments = self.expanded().into_iter().filter(|argument| !is_path(argument)).collect();
        let probe = self.probe_command.iter().map(|argument| self.expand(argument)).collect();
        (self.program.clone(), arguments, self.environment.clone(), probe)
    }
}

/// The last value of a flag counts. The test appends the addresses of this machine to the command line, and
/// therefore the container's own values are parsed, too.
struct Addresses {
    arguments: Vec<String>,
    /// Ports by the flag that names them.
    ports: BTreeMap<&'static str, u16>,
}

impl Addresses {
    fn new(fixture: &Fixture, container: &Container) -> Self {
        let given = container.expanded();
        let is_given = |flag: &str| {
            given.iter().any(|argument| {
                argument.trim_start_matches('-').split('=').next().is_some_and(|name| name == flag)
            })
        };
        let is_liveness = container.program == "livenessprobe";
        let mut arguments = fixture.connection_flags();
        match container.program.as_str() {
            "livenessprobe" => arguments.truncate(1),
            "csi-node-driver-registrar" => {
                arguments.truncate(1);
                arguments.push(format!("--plugin-registration-path={}", fixture.path().display()));
            }
            _ => {}
        }
        let mut ports = BTreeMap::new();
        for flag in ENDPOINT_FLAGS {
            // The default of livenessprobe is a port; those of the other programs are none.
            let is_default = is_liveness && flag == "health-port" && !is_given("http-endpoint");
            if is_given(flag) || is_default {
                let port = free_port();
                let host = if flag == "health-port" { "" } else { "127.0.0.1:" };
                arguments.push(format!("--{flag}={host}{port}"));
                ports.insert(flag, port);
            }
        }
        Self { arguments, ports }
    }
}

/// Creates an object to work on, and starts the process.
async fn start(fixture: &Fixture, container: &Container, addresses: &Addresses) -> Process {
    match container.program.as_str() {
        "csi-provisioner" => fixture.create_claim_for_node("claim", "node-1").await,
        "csi-attacher" => fixture.create_attachment("attachment").await,
        "csi-resizer" => fixture.create_claim_to_resize("claim").await,
        _ => {}
    }
    let mut command = fixture.command(&container.program, &container.expanded());
    command.args(&addresses.arguments);
    fixture.spawn_with(&mut command, &container.environment)
}

/// Waits for what the process is for.
async fn wait_for_work(fixture: &Fixture, container: &Container) {
    let call = match container.program.as_str() {
        "csi-provisioner" => "CreateVolume",
        "csi-attacher" => "ControllerPublishVolume",
        "csi-resizer" => "ControllerExpandVolume",
        "livenessprobe" => "Probe",
        _ => {
            let socket = fixture.path().join(format!("{NAME}@reg.sock"));
            return until("socket of the registrar", || socket.exists().then_some(())).await;
        }
    };
    fixture.wait_for_calls(call, 1).await;
}

/// Starts the process and returns what differs from a process that works.
async fn check(container: &Container) -> Result<(), String> {
    let fixture = Fixture::start(Behavior::default()).await;
    for argument in container.expanded() {
        let Some((_, namespace)) = argument.split_once("leader-election-namespace=") else { continue };
        if fixture.get(&format!("/api/v1/namespaces/{namespace}")).await.is_null() {
            fixture.create_namespace(namespace).await;
        }
    }
    let addresses = Addresses::new(&fixture, container);
    let mut process = start(&fixture, container, &addresses).await;
    let work = async {
        // livenessprobe calls the driver for a request only.
        if container.program != "livenessprobe" {
            wait_for_work(&fixture, container).await;
        }
        for (flag, port) in &addresses.ports {
            let path = if *flag == "metrics-address" { "/metrics" } else { container.probe.as_str() };
            let (code, body) = page(*port, path).await;
            if code != 200 {
                return Err(format!("{path} of --{flag} has status {code}: {body}"));
            }
        }
        wait_for_work(&fixture, container).await;
        Ok(())
    };
    let result = tokio::select! {
        result = tokio::time::timeout(WORK_TIMEOUT, work) => {
            result.unwrap_or_else(|_| Err(format!("no work within {WORK_TIMEOUT:?}")))
        }
        status = process.wait() => Err(status.to_string()),
    };
    result.map_err(|error| format!("{error}: {}", process.log()))?;
    let Some((_, arguments)) = container.probe_command.split_first() else { return Ok(()) };
    let arguments: Vec<String> = arguments.iter().map(|argument| container.expand(argument)).collect();
    let status = fixture.spawn(&mut fixture.command(&container.program, &arguments)).wait().await;
    if status.success() { Ok(()) } else { Err(format!("{:?}: {status}", container.probe_command)) }
}

#[tokio::test]
async fn processes_of_public_manifests_work() {
    let containers = toml::from_str::<Manifests>(MANIFESTS).unwrap().container;
    let repositories: BTreeSet<_> = containers.iter().map(|container| &container.repository).collect();
    assert!(repositories.len() >= MIN_REPOSITORIES, "{}", repositories.len());
    let programs: BTreeSet<_> = containers.iter().map(|container| container.program.as_str()).collect();
    assert_eq!(programs.into_iter().collect::<Vec<_>>(), PROGRAMS);

    let distinct: BTreeMap<_, _> =
        containers.iter().map(|container| (container.distinct(), container)).collect();
    let checks = distinct.into_values().map(|container| async move {
        let place = format!("{} {} {}", container.repository, container.path, container.program);
        check(container).await.err().map(|error| format!("{place}: {error}"))
    });
    let failures: Vec<_> = futures::stream::iter(checks)
        .buffer_unordered(PROCESSES)
        .filter_map(async |error| error)
        .collect()
        .await;
    assert_eq!(failures, [""; 0]);
}
