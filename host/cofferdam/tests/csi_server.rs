//! Tests of the built binary in the role `csi-server`, called by a CSI client and by a second process in that
//! role.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

#[path = "common/process.rs"]
mod process;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::{Backend as _, BackendMetrics, Call};
use cofferdam_csi::{ConnectionMetrics, CsiBackend, CsiConfig};
use cofferdam_domain::storage::{
    Ability, AccessType, CapacityRange, CreateVolume, CsiAccessMode, Parameters, VolumeCapability,
};
use process::Process;
use tempfile::TempDir;

/// A process in the role `csi-server` that serves the memory driver on `csi.sock` in the directory.
struct ServedMemoryDriver {
    directory: TempDir,
    process: Process,
}

impl ServedMemoryDriver {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("memory.wasm"), cofferdam_carried::MEMORY).unwrap();
        let mut command = cofferdam();
        command
            .arg("--compilation-cache")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"))
            .arg("--backend")
            .arg(path("memory.wasm"))
            .arg("--csi-socket")
            .arg(path("csi.sock"));
        let process = Process::start(&mut command);
        Self { directory, process }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command that connects to the driver on `csi.sock` and serves it on `socket`.
    fn proxy_command(&self, socket: &str) -> Command {
        let mut command = cofferdam();
        command.arg("--csi-address").arg(self.path("csi.sock")).arg("--csi-socket").arg(self.path(socket));
        command
    }
}

fn cofferdam() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    // The role needs neither a cluster nor a home directory.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).args(["run", "--role", "csi-server"]);
    command
}

async fn client(socket: &Path) -> Arc<CsiBackend> {
    // `connect` retries until the socket is served.
    let config = CsiConfig::new(socket.to_str().unwrap().parse().unwrap());
    CsiBackend::connect(config, &BackendMetrics::default(), &ConnectionMetrics::default()).await.unwrap()
}

fn create_request(name: &str) -> CreateVolume {
    let access = AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None };
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(1 << 30), limit: None },
        capabilities: vec![VolumeCapability {
            access_mode: CsiAccessMode::SingleNodeWriter,
            access_type: access,
        }],
        parameters: Parameters::new(),
        mutable_parameters: Parameters::new(),
        topology: None,
        owner: None,
        source: None,
    }
}

#[tokio::test]
async fn a_component_is_served_as_a_csi_driver_and_can_be_proxied() {
    let mut served = ServedMemoryDriver::start();
    let direct = client(&served.path("csi.sock")).await;
    assert_eq!(direct.driver().as_str(), "memory.cofferdam.dev");
    assert_eq!(direct.abilities(), &Ability::ALL.into());
    let call = || Call::with_deadline(Duration::from_secs(60));
    let volume = direct.create_volume(call(), create_request("v")).await.unwrap();
    assert_eq!(volume.capacity, Some(1 << 30));

    let mut second = Process::start(&mut served.proxy_command("again.sock"));
    let proxied = client(&served.path("again.sock")).await;
    assert_eq!(proxied.abilities(), direct.abilities());
    assert_eq!(
        proxied.create_volume(call(), create_request("v")).await.unwrap(),
        volume,
        "it is the same volume"
    );
    proxied.delete_volume(call(), volume.handle).await.unwrap();

    assert_eq!(second.end_with("TERM").await.code(), Some(0));
    assert!(!served.path("again.sock").exists());
    assert!(served.path("csi.sock").exists());
    assert_eq!(served.process.end_with("TERM").await.code(), Some(0));
    assert!(!served.path("csi.sock").exists());
}

#[tokio::test]
async fn a_socket_in_use_ends_the_process_with_one_line() {
    let served = ServedMemoryDriver::start();
    client(&served.path("csi.sock")).await;
    let mut command = served.proxy_command("csi.sock");
    let mut process = Process::start_with_log(command.args(["--log", "off"]), served.path("log"));
    let status = process.wait().await;
    let text = process.log();
    assert_eq!(status.code(), Some(1), "{text}");
    assert_eq!(
        text,
        format!(
            "cofferdam: backend csi: {}: another process listens on this socket; expected none\n",
            served.path("csi.sock").display()
        )
    );
}
