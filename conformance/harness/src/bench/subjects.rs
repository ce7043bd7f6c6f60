//! Compares csi-attacher with Cofferdam's role `attacher`, and csi-resizer with the role `resizer`, on
//! existing volumes. For each pair of a controller and a driver, Cofferdam's roles `provisioner` and
//! `pv-controller` create the volumes, and stop before the load starts. In the configuration without
//! controllers, whose throughput is the upper bound for controllers, clients create the volumes.

use anyhow::Result;

use super::{
    attachments::AttachmentLoad,
    configurations::{DRIVER, RunningConfiguration, start_control_plane},
    load::ClaimLoad,
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
    upper_bound::{self, ProvisioningMode, measure_each},
};
use crate::{
    account::Account,
    cofferdam::{self, MemoryDriver},
    control_plane::{ApiUser, ControlPlane},
    driver::CsiDriverProcess,
    implementation::Implementation,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
};

/// Roles that create the volumes.
const PROVISIONING_ROLES: [&str; 2] = ["provisioner", "pv-controller"];
/// Namespace of the volumes.
const NAMESPACE: &str = "volumes";

/// The use that the load makes of the existing volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BenchmarkTask {
    /// Attach all volumes, then detach them.
    Attach,
    /// Expand the claims of all volumes.
    Expand,
}

impl BenchmarkTask {
    /// The sidecar, Cofferdam's role, and the flag that gives both the same number of workers.
    const fn controllers(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Attach => ("csi-attacher", "attacher", "--worker-threads=100"),
            Self::Expand => ("csi-resizer", "resizer", "--workers=100"),
        }
    }

    /// Describes the writes that clients make per object to measure the API server only.
    const fn write_description(self) -> &'static str {
        match self {
            Self::Attach => "four writes to attach and two to detach",
            Self::Expand => "four writes to expand",
        }
    }
}

/// A measured pair of a controller and a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchmarkSubject {
    /// csi-attacher or csi-resizer, with the Go driver.
    GoSidecar,
    /// Cofferdam's role, with the Go driver.
    CofferdamWithCsiDriver,
    /// Cofferdam's role, with the memory driver as a WebAssembly component.
    CofferdamWithComponent,
}

/// The subjects in the order of measurement. Each has a control plane of its own.
const SUBJECTS: [BenchmarkSubject; 3] = [
    BenchmarkSubject::GoSidecar,
    BenchmarkSubject::CofferdamWithCsiDriver,
    BenchmarkSubject::CofferdamWithComponent,
];

/// Driver of the volumes.
enum SubjectDriver {
    /// The Go driver, a process with a CSI socket.
    Driver(Box<CsiDriverProcess>),
    /// The memory driver, which the Cofferdam process loads as a WebAssembly component.
    Component(MemoryDriver),
}

impl SubjectDriver {
    async fn start(run: &SuiteRun, subject: BenchmarkSubject) -> Result<Self> {
        Ok(match subject {
            BenchmarkSubject::GoSidecar | BenchmarkSubject::CofferdamWithCsiDriver => {
                Self::Driver(Box::new(CsiDriverProcess::start(run, DRIVER, &["--any-node"]).await?))
            }
            // The driver's state is in a file: it outlives the process that creates the volumes.
            BenchmarkSubject::CofferdamWithComponent => Self::Component(MemoryDriver::new(run, DRIVER)?),
        })
    }

    /// Starts Cofferdam's roles with the driver.
    async fn start_roles(&self, run: &SuiteRun, account: &Account, flags: &[&str]) -> Result<ManagedProcess> {
        match self {
            Self::Driver(driver) => {
                cofferdam::start_with_csi_driver_and_flags(run, account, driver.socket(), flags).await
            }
            Self::Component(driver) => cofferdam::start_with_flags(run, account, driver, flags).await,
        }
    }
}

/// The load on existing volumes: VolumeAttachments that it creates and deletes, or claims that it expands,
/// with their number.
enum VolumeLoad {
    Attachments(AttachmentLoad),
    Claims(ClaimLoad, usize),
}

impl VolumeLoad {
    async fn new(task: BenchmarkTask, load: ClaimLoad, volumes: Vec<String>) -> Result<Self> {
        Ok(match task {
            BenchmarkTask::Attach => {
                Self::Attachments(AttachmentLoad::new(load.client(), DRIVER, volumes).await?)
            }
            BenchmarkTask::Expand => Self::Claims(load, volumes.len()),
        })
    }

    /// Attaches and detaches, or expands, all volumes through the controller, and records the measurements.
    async fn run(&self, recorder: &mut LoadRecorder<'_>) -> Result<()> {
        recorder.begin_load().await?;
        match self {
            Self::Attachments(attachments) => {
                let timing = attachments.attach_all().await?;
                recorder.end_load(LoadKind::Attach, &timing).await?;
                let timing = attachments.detach_all().await?;
                recorder.end_load(LoadKind::Detach, &timing).await
            }
            Self::Claims(load, count) => {
                let timing = load.expand_all(*count).await?;
                recorder.end_load(LoadKind::Expand, &timing).await
            }
        }
    }

    /// Makes the writes of the load's clients and those of the controller, all as a client, and records the
    /// measurements.
    async fn run_upper_bound(&self, recorder: &mut LoadRecorder<'_>) -> Result<()> {
        recorder.begin_load().await?;
        match self {
            Self::Attachments(attachments) => {
                let count = attachments.count();
                let timing =
                    measure_each(count, async |number| attachments.write_attach(number).await).await?;
                recorder.end_load(LoadKind::Attach, &timing).await?;
                let timing =
                    measure_each(count, async |number| attachments.write_detach(number).await).await?;
                recorder.end_load(LoadKind::Detach, &timing).await
            }
            Self::Claims(load, count) => {
                let timing = upper_bound::expand_all(load, *count).await?;
                recorder.end_load(LoadKind::Expand, &timing).await
            }
        }
    }
}

/// Measures all subjects one after the other, then the API server only.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(
    run: &SuiteRun,
    task: BenchmarkTask,
    count: usize,
) -> Result<Vec<ConfigurationResults>> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        all.push(subject.measure(run, task, count).await?);
    }
    all.push(measure_upper_bound(run, task, count).await?);
    Ok(all)
}

impl BenchmarkSubject {
    const fn implementation(self) -> Implementation {
        match self {
            Self::GoSidecar => Implementation::Upstream,
            Self::CofferdamWithCsiDriver | Self::CofferdamWithComponent => Implementation::Cofferdam,
        }
    }

    const fn name(self, task: BenchmarkTask) -> &'static str {
        match (self, task) {
            (Self::GoSidecar, BenchmarkTask::Attach) => "Upstream, attach",
            (Self::CofferdamWithCsiDriver, BenchmarkTask::Attach) => "Cofferdam, attach",
            (Self::CofferdamWithComponent, BenchmarkTask::Attach) => "Cofferdam, component, attach",
            (Self::GoSidecar, BenchmarkTask::Expand) => "Upstream, expand",
            (Self::CofferdamWithCsiDriver, BenchmarkTask::Expand) => "Cofferdam, expand",
            (Self::CofferdamWithComponent, BenchmarkTask::Expand) => "Cofferdam, component, expand",
        }
    }

    fn description(self, task: BenchmarkTask) -> String {
        let (sidecar, role, _) = task.controllers();
        match self {
            Self::GoSidecar => {
                format!("{sidecar}, client rates unlimited, 100 workers, the Go driver on a unix socket")
            }
            Self::CofferdamWithCsiDriver => {
                format!("`cofferdam run` with {role}, 100 workers, the Go driver on a unix socket")
            }
            Self::CofferdamWithComponent => {
                "the same with the memory driver as a WebAssembly component in the same process, \
                 and its state in a file"
                    .to_owned()
            }
        }
    }

    async fn measure(
        self,
        run: &SuiteRun,
        task: BenchmarkTask,
        count: usize,
    ) -> Result<ConfigurationResults> {
        let plane = start_control_plane(run).await?;
        let client = plane.client().clone();
        let watches = UsageReading::when_idle(&client, &[]).await?.watches();
        let storage = SubjectDriver::start(run, self).await?;
        let account = Account::new(run, &plane, &PROVISIONING_ROLES).await?;
        let mut provisioning = storage.start_roles(run, &account, &[]).await?;
        let load = ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?;
        let load = if task == BenchmarkTask::Expand { load.with_block_mode() } else { load };
        let (_, volumes) = load.bind_all(count).await?;
        provisioning.stop().await?;
        let work = VolumeLoad::new(task, load, volumes).await?;

        let controllers = self.start_controller(run, &plane, task, storage).await?;
        let name = self.name(task);
        let mut recorder = LoadRecorder::new(name, &plane, controllers.processes(), watches).await?;
        work.run(&mut recorder).await?;

        let results = ConfigurationResults {
            name: name.to_owned(),
            description: self.description(task),
            implementation: Some(self.implementation()),
            controllers: controllers.names(),
            loads: recorder.into_measurements(),
        };
        controllers.stop().await?;
        drop((work, client));
        plane.stop().await?;
        Ok(results)
    }

    async fn start_controller(
        self,
        run: &SuiteRun,
        plane: &ControlPlane,
        task: BenchmarkTask,
        storage: SubjectDriver,
    ) -> Result<RunningConfiguration> {
        let (sidecar, role, workers) = task.controllers();
        let controller = match (self, &storage) {
            (Self::GoSidecar, SubjectDriver::Driver(driver)) => {
                let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
                sidecar::start(run, sidecar, &kubeconfig, driver.socket(), &[workers]).await?
            }
            (Self::GoSidecar | Self::CofferdamWithCsiDriver | Self::CofferdamWithComponent, _) => {
                storage.start_roles(run, &Account::new(run, plane, &[role]).await?, &[workers]).await?
            }
        };
        let storage = match storage {
            SubjectDriver::Driver(driver) => vec![driver.process],
            SubjectDriver::Component(_) => Vec::new(),
        };
        Ok(RunningConfiguration { driver_name: DRIVER, controllers: vec![controller], drivers: storage })
    }
}

/// Measures the load of the task without controllers: clients make the controllers' writes.
async fn measure_upper_bound(
    run: &SuiteRun,
    task: BenchmarkTask,
    count: usize,
) -> Result<ConfigurationResults> {
    let name = match task {
        BenchmarkTask::Attach => "API only, attach",
        BenchmarkTask::Expand => "API only, expand",
    };
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    // The API server requires a StorageClass that allows expansion.
    let load = ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?;
    let load = if task == BenchmarkTask::Expand { load.with_block_mode() } else { load };
    upper_bound::bind_all(&load, count, ProvisioningMode::Dynamic).await?;
    let volumes = (0..count).map(|number| format!("{NAMESPACE}-{number}")).collect();
    let work = VolumeLoad::new(task, load, volumes).await?;

    let mut recorder = LoadRecorder::new(name, &plane, std::iter::empty(), watches).await?;
    work.run_upper_bound(&mut recorder).await?;

    let loads = recorder.into_measurements();
    drop((work, client));
    plane.stop().await?;
    let writes = task.write_description();
    Ok(ConfigurationResults {
        name: name.to_owned(),
        description: format!("{writes}, made by the clients; no controllers, no watches"),
        implementation: None,
        controllers: Vec::new(),
        loads,
    })
}
