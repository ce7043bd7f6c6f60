//! Machines with Debian's kernel, emulated by QEMU: this machine's kernel may have neither network storage nor
//! its servers.
//!
//! A machine has two network interfaces. `eth0` is QEMU's own network, by which the harness reaches the
//! [agent], and the machine reaches this machine at [`HOST`]. `eth1` is a link to a network of machines, which
//! can be cut.

mod agent;
mod kubelet;
mod monitor;
mod system;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpStream, UnixListener},
    task::JoinHandle,
};

use self::agent::{AgentRequest, ScriptOutput};
pub(crate) use self::{agent::serve as serve_agent, kubelet::MachineKubelet, system::MachineSystem};
use crate::{process::ManagedProcess, run::SuiteRun, wait::until};

/// Address of this machine on the network `eth0`.
pub(crate) const HOST: &str = "10.0.2.2";
/// Time limit of a start. A machine needs some five seconds of CPU time.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of a script.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Kernel parameters. Without `no_timer_check` and `acpi=off`, a machine that gets little CPU time does not
/// start.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t no_timer_check acpi=off \
                                 tsc=reliable nowatchdog mitigations=off nokaslr";
/// Name of the link in QEMU.
const LINK: &str = "link";

/// A network of machines: a multicast address on this machine's loopback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineNetwork {
    port: u16,
}

impl MachineNetwork {
    /// A network of the run.
    ///
    /// # Errors
    /// If the run has no free port.
    pub(crate) fn new(run: &SuiteRun) -> Result<Self> {
        Ok(Self { port: run.free_port()? })
    }
}

/// A running machine. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Machine {
    /// QEMU.
    process: ManagedProcess,
    /// The number in the network.
    number: u8,
    /// Port of the agent on this machine's loopback.
    port: u16,
    /// Socket of QEMU's monitor.
    monitor: PathBuf,
    /// The log of the kernel and of the agent.
    console: PathBuf,
}

impl Machine {
    /// Starts a machine with further disks, which it has as `/dev/vdc` and so on, and waits until its agent
    /// responds. `number` is its number in the network, from 1. Its addresses there are 10.1.0.NUMBER and
    /// fd00:1::NUMBER.
    ///
    /// # Errors
    /// If it does not respond in time. The error contains the end of QEMU's log and names that of the machine.
    pub(crate) async fn start(
        run: &SuiteRun,
        system: &MachineSystem,
        name: &str,
        network: MachineNetwork,
        number: u8,
        disks: &[PathBuf],
    ) -> Result<Self> {
        let port = run.free_port()?;
        let console = run.log(&format!("{name}-console"));
        let monitor = run.scratch().join(format!("{name}-monitor.sock"));
        let mut spec = system
            .emulator(name)
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "pc"])
            .args(["-accel", "tcg", "-cpu", "max", "-m", "768", "-rtc", "base=utc"])
            .args(["-kernel", &system.kernel().display().to_string()])
            .args(["-initrd", &system.initial_ram_disk().display().to_string()])
            .args(["-append", KERNEL_PARAMETERS])
            .arg("-serial")
            .arg(format_args!("file:{}", console.display()))
            .arg("-qmp")
            .arg(format_args!("unix:{},server=on,wait=off", monitor.display()))
            .arg("-netdev")
            .arg(format_args!("user,id=host,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{}", agent::PORT))
            .args(["-device", "virtio-net-pci,netdev=host,romfile="])
            .arg("-netdev")
            .arg(format_args!("socket,id={LINK},mcast=230.0.0.1:{},localaddr=127.0.0.1", network.port))
            .arg("-device")
            .arg(format_args!("virtio-net-pci,netdev={LINK},romfile=,mac=52:54:00:00:00:{number:02x}"));
        for disk in system.disks() {
            spec = spec.arg("-drive").arg(format_args!(
                "file={},format=raw,if=virtio,read-only=on,file.locking=off",
                disk.display()
            ));
        }
        for (number, disk) in disks.iter().enumerate() {
            // The disks of a run need not survive this machine's loss of power.
            spec = spec.arg("-drive").arg(format_args!(
                "id={},file={},format=raw,if=virtio,cache=unsafe",
                disk_id(number),
                disk.display()
            ));
        }
        let process = ManagedProcess::start(run, spec)?;
        let mut machine = Self { process, number, port, monitor, console };
        machine.wait_ready().await?;
        Ok(machine)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let (port, console) = (self.port, self.console.display().to_string());
        self.process
            .wait_ready(START_TIMEOUT, async || run_script(port, "true", "").await.map(drop))
            .await
            .with_context(|| format!("the log of the machine is {console}"))?;
        let number = self.number;
        let script = format!(
            "ip link set eth1 up; ip address add 10.1.0.{number}/24 dev eth1; ip address add fd00:1::{number}/64 dev eth1"
        );
        self.shell(&script).await.map(drop)
    }

    /// Runs a script with the shell as root, and returns its standard output without the last line break.
    ///
    /// # Errors
    /// If a command of it fails (the error contains its standard error), or does not end in a
    /// minute. In the second case it continues.
    pub(crate) async fn shell(&self, script: &str) -> Result<String> {
        self.shell_with_input(script, "").await
    }

    /// As [`shell`](Self::shell), with this standard input.
    ///
    /// # Errors
    /// As [`shell`](Self::shell).
    pub(crate) async fn shell_with_input(&self, script: &str, input: &str) -> Result<String> {
        let first_line = script.trim().lines().next().unwrap_or_default();
        let output = tokio::time::timeout(SCRIPT_TIMEOUT, run_script(self.port, script, input))
            .await
            .with_context(|| format!("{first_line:?} does not end within {SCRIPT_TIMEOUT:?}"))??;
        let (code, stderr) = (output.code, output.stderr.trim());
        ensure!(code == Some(0), "{first_line:?} ends with {code:?}: {stderr}");
        Ok(output.stdout.trim_end().to_owned())
    }

    /// Writes a file.
    ///
    /// # Errors
    /// As [`shell`](Self::shell).
    pub(crate) async fn write(&self, path: &str, text: &str) -> Result<()> {
        self.shell_with_input(&format!("cat > {path}"), text).await.map(drop)
    }

    /// Starts a program, which runs until the machine ends and logs to `/run/NAME.log`.
    ///
    /// # Errors
    /// As [`shell`](Self::shell).
    pub(crate) async fn start_program(&self, name: &str, command: &str) -> Result<()> {
        self.shell(&format!("{command} </dev/null >>/run/{name}.log 2>&1 &")).await.map(drop)
    }

    /// Adds the end of the log of a program to an error.
    ///
    /// # Errors
    /// That of the future.
    pub(crate) async fn with_log<T>(&self, name: &str, result: impl Future<Output = Result<T>>) -> Result<T> {
        match result.await {
            Err(error) => Err(error.context(self.shell(&format!("tail -n 12 /run/{name}.log")).await?)),
            result => result,
        }
    }

    /// Waits until a file exists.
    ///
    /// # Errors
    /// If it does not exist in time.
    pub(crate) async fn wait_for_file(&self, path: &str, limit: Duration) -> Result<()> {
        until(&format!("{path} exists"), limit, async || {
            self.shell(&format!("test -e {path}")).await.map(drop)
        })
        .await
    }

    /// Makes a Unix socket of the machine a socket of this machine, at `local`, until the task is aborted.
    ///
    /// # Errors
    /// If the local socket cannot be created.
    pub(crate) fn forward(&self, socket: &Path, local: &Path) -> Result<JoinHandle<()>> {
        let listener = UnixListener::bind(local)?;
        let (port, socket) = (self.port, socket.to_owned());
        Ok(tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let request = AgentRequest::Connect { socket: socket.clone() };
                tokio::spawn(async move {
                    // An error closes the connection.
                    if let Ok(mut stream) = send(port, &request).await {
                        let _ = copy_bidirectional(&mut client, &mut stream).await;
                    }
                });
            }
        }))
    }

    /// Cuts or restores the link. Frames that are sent meanwhile are lost.
    ///
    /// # Errors
    /// If QEMU's monitor does not respond or reports an error.
    pub(crate) async fn set_link(&self, is_up: bool) -> Result<()> {
        monitor::execute(&self.monitor, "set_link", &serde_json::json!({ "name": LINK, "up": is_up })).await
    }

    /// Changes the size of a further disk, by its index among those of [`start`](Self::start), in bytes.
    ///
    /// # Errors
    /// If QEMU's monitor does not respond or reports an error.
    pub(crate) async fn resize_disk(&self, index: usize, bytes: u64) -> Result<()> {
        let arguments = serde_json::json!({ "device": disk_id(index), "size": bytes });
        monitor::execute(&self.monitor, "block_resize", &arguments).await
    }

    /// Stops the machine as a loss of power does. What it has written to its disks stays.
    ///
    /// # Errors
    /// If QEMU had ended before.
    pub(crate) async fn lose_power(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts the machine after [`lose_power`](Self::lose_power).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) async fn power_on(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_ready().await
    }
}

/// QEMU's name of a further disk.
fn disk_id(index: usize) -> String {
    format!("disk-{index}")
}

/// Connects to the agent and sends a request.
async fn send(port: u16, request: &AgentRequest) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(stream)
}

async fn run_script(port: u16, script: &str, input: &str) -> Result<ScriptOutput> {
    let request = AgentRequest::Run { script: script.to_owned(), input: input.to_owned() };
    let mut stream = send(port, &request).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    serde_json::from_slice(&response).context("the agent sent no response")
}
