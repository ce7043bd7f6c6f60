//! The replicas of Cofferdam, or of csi-provisioner.

use std::{
    cell::{Cell, RefCell},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use kube::Client;
use rustix::process::Signal;
use tokio::time::Instant;

use super::super::slot::{ATTACHER, PROVISIONER};
use crate::{
    account::Account,
    control_plane::{self, ControlPlane},
    fake_clock::FakeClock,
    implementation::Implementation,
    namespaces,
    network_link::NetworkLink,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar::{self, plain_client},
    wait::until,
};

/// The driver for whose Leases the replicas compete.
pub(super) const DRIVER: &str = "leases.conformance.cofferdam.dev";
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay before a process that has ended by itself is started again: kubelet's first back-off.
const RESTART_DELAY: Duration = Duration::from_secs(10);
/// Time between two checks whether a process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A replica, with an account, a network to the API, a clock and a socket of the driver of its own.
pub(super) struct Replica {
    implementation: Implementation,
    /// Name of the process, of its account and of its host.
    pub(super) name: String,
    pub(super) socket: String,
    pub(super) link: NetworkLink,
    pub(super) clock: FakeClock,
    process: RefCell<ManagedProcess>,
    endpoint: Client,
    /// True while a fault ends the process.
    is_ended_by_fault: Cell<bool>,
    /// Time at which the process is started again, after it has ended by itself.
    restart_at: Cell<Option<Instant>>,
    /// Number of times that the process has ended by itself.
    pub(super) restarts: Cell<usize>,
}

impl Replica {
    /// Starts a replica, which waits for the Lease or leads.
    pub(super) async fn start(
        run: &SuiteRun,
        plane: &ControlPlane,
        implementation: Implementation,
        number: usize,
        socket: String,
    ) -> Result<Self> {
        let name = format!("replica-{number}");
        let account = match implementation {
            Implementation::Cofferdam => {
                Account::with_name(run, plane, &name, &[PROVISIONER.role, ATTACHER.role], &[]).await?
            }
            Implementation::Upstream => Account::administrator(run, plane, &name).await?,
        };
        let link = NetworkLink::start(account.kubeconfig()).await?;
        let clock = FakeClock::new(run, &format!("{name}.clock"))?;
        let port = run.free_port()?;
        let mut spec = match implementation {
            Implementation::Cofferdam => CommandSpec::new(&name, run.program())
                .arg("run")
                .args([PROVISIONER.role, ATTACHER.role].map(|role| format!("--role={role}")))
                .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
                // The orphan scan must not hide leaks from the suite.
                .arg("--orphan-scan-interval=off")
                .env("RUST_BACKTRACE", "1"),
            Implementation::Upstream => sidecar::upstream_command(run, PROVISIONER.name)?
                .name(&name)
                .args(["--kube-api-qps=100000", "--kube-api-burst=100000"]),
        };
        spec = spec
            .arg(format_args!("--kubeconfig={}", link.kubeconfig().display()))
            .arg(format_args!("--csi-address={socket}"))
            .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
            .arg("--leader-election")
            .arg(format_args!("--leader-election-namespace={}", namespaces::COFFERDAM))
            .args(["--timeout=30s", "--immediate-topology=false"]);
        for (variable, value) in clock.variables() {
            spec = spec.env(variable, value);
        }
        let process = ManagedProcess::start(run, spec.host_name(&name))?;
        let endpoint = plain_client(port)?;
        let process = RefCell::new(process.with_metrics(endpoint.clone()));
        Ok(Self {
            implementation,
            name,
            socket,
            link,
            clock,
            process,
            endpoint,
            is_ended_by_fault: Cell::new(false),
            restart_at: Cell::new(None),
            restarts: Cell::new(0),
        })
    }

    /// Name of the account in the audit log.
    pub(super) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", namespaces::COFFERDAM, self.name)
    }

    /// True if `holder` is the identity of this replica: its host name, and a random part if it is Cofferdam.
    pub(super) fn is_identity(&self, holder: &str) -> bool {
        holder.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Waits until the process waits for the Lease with synced caches, or leads.
    pub(super) async fn wait_ready(&self) -> Result<()> {
        let path = match self.implementation {
            Implementation::Cofferdam => "/readyz",
            Implementation::Upstream => "/metrics",
        };
        let what = format!("{} is ready", self.name);
        until(&what, READY_TIMEOUT, async || control_plane::probe_path(&self.endpoint, path).await).await
    }

    /// Sends a signal that does not end the process.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.borrow().signal(signal)
    }

    /// Sends a signal that ends the process, which is started again by [`restart`](Self::restart).
    pub(super) fn end(&self, signal: Signal) -> Result<()> {
        self.is_ended_by_fault.set(true);
        self.signal(signal)
    }

    /// Waits for the end of the process after [`end`](Self::end), and starts it again. Returns how it ended.
    pub(super) async fn restart(&self, limit: Duration) -> Result<ExitStatus> {
        let status = until(&format!("{} has ended", self.name), limit, async || {
            self.process.borrow_mut().take_exit_status()?.context("it runs")
        })
        .await?;
        self.process.borrow_mut().restart()?;
        self.is_ended_by_fault.set(false);
        Ok(status)
    }

    /// Checks that the process has not ended by itself, or starts it again after a delay if it is upstream.
    fn supervise(&self) -> Result<()> {
        if self.is_ended_by_fault.get() {
            return Ok(());
        }
        let mut process = self.process.borrow_mut();
        if self.implementation == Implementation::Cofferdam {
            return process.ensure_running();
        }
        if process.take_exit_status()?.is_some() {
            self.restarts.set(self.restarts.get() + 1);
            self.restart_at.set(Some(Instant::now() + RESTART_DELAY));
        }
        if self.restart_at.get().is_some_and(|at| at <= Instant::now()) {
            self.restart_at.set(None);
            process.restart()?;
        }
        Ok(())
    }

    /// Ends the process at the end of the suite.
    pub(super) async fn stop(self) -> Result<()> {
        let mut process = self.process.into_inner();
        match self.implementation {
            Implementation::Cofferdam => process.stop().await,
            // It may have ended by itself.
            Implementation::Upstream => {
                let _ = process.take_exit_status()?;
                process.stop().await
            }
        }
    }
}

/// Checks the processes until one of Cofferdam ends by itself. Starts those of upstream again.
///
/// # Errors
/// The end of a process of Cofferdam.
pub(super) async fn supervise(replicas: &[Replica]) -> Result<()> {
    loop {
        for replica in replicas {
            if let Err(error) = replica.supervise() {
                bail!(error.context("a process ended by itself"));
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
