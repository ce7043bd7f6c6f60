//! Who answers a load on volumes that are there: attaches them, or grows them. They are made beforehand, by the same roles for
//! everybody, which are gone when the load begins: what is compared is one controller.

use anyhow::Result;

use super::{
    Figures, Flow, Ground,
    attachments::Attachments,
    ceiling::{self, Volumes, timed},
    load::Load,
    measure::Reading,
    stacks::{Controllers, DRIVER, Whose},
    start,
};
use crate::{
    account::Account,
    cofferdam::{self, MemoryDriver},
    control_plane::{ControlPlane, User},
    driver::Driver,
    process::Process,
    run::Run,
    sidecar,
};

/// What makes the volumes.
const MAKERS: [&str; 2] = ["provisioner", "pv-controller"];
/// Who has the volumes, for the driver and for the users.
const VOLUMES: &str = "volumes";

/// What is to be done with the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Attach,
    Grow,
}

impl Task {
    /// Theirs, ours, and the flag by which both get as many workers.
    const fn controllers(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Attach => ("csi-attacher", "attacher", "--worker-threads=100"),
            Self::Grow => ("csi-resizer", "resizer", "--workers=100"),
        }
    }

    /// What the users write themselves where nobody controls.
    const fn writes(self) -> &'static str {
        match self {
            Self::Attach => "four writes to attach and two to detach",
            Self::Grow => "four writes to grow",
        }
    }
}

/// Who does it, and with which driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Go,
    BeforeDriver,
    Component,
}

/// The contenders in the order in which they are measured, each on a control plane of its own.
const CONTENDERS: [Contender; 3] = [Contender::Go, Contender::BeforeDriver, Contender::Component];

/// Where volumes are.
enum Storage {
    Driver(Box<Driver>),
    Component(MemoryDriver),
}

impl Storage {
    async fn start(run: &Run, contender: Contender) -> Result<Self> {
        Ok(match contender {
            Contender::Go | Contender::BeforeDriver => {
                Self::Driver(Box::new(Driver::start(run, DRIVER, &["--any-node"]).await?))
            }
            // It has to outlive the process that makes the volumes.
            Contender::Component => Self::Component(MemoryDriver::new(run, DRIVER)?),
        })
    }

    /// Starts roles of ours that run it.
    async fn roles(&self, run: &Run, account: &Account, flags: &[&str]) -> Result<Process> {
        match self {
            Self::Driver(driver) => cofferdam::start_before_with(run, account, driver.socket(), flags).await,
            Self::Component(driver) => cofferdam::start_with(run, account, driver, flags).await,
        }
    }
}

/// Volumes that something is done with.
enum Work {
    Attachments(Attachments),
    Claims(Load, usize),
}

impl Work {
    async fn new(task: Task, load: Load, volumes: Vec<String>) -> Result<Self> {
        Ok(match task {
            Task::Attach => Self::Attachments(Attachments::new(load.client(), DRIVER, volumes).await?),
            Task::Grow => Self::Claims(load, volumes.len()),
        })
    }

    /// Asks for it, and waits until it is done.
    async fn answered(&self, ground: &mut Ground<'_>) -> Result<()> {
        ground.begin().await?;
        match self {
            Self::Attachments(attachments) => {
                let answered = attachments.attached().await?;
                ground.end(Flow::Attached, &answered).await?;
                let answered = attachments.detached().await?;
                ground.end(Flow::Detached, &answered).await
            }
            Self::Claims(load, count) => {
                let answered = load.grown(*count).await?;
                ground.end(Flow::Grown, &answered).await
            }
        }
    }

    /// The same writes by the users themselves.
    async fn written(&self, ground: &mut Ground<'_>) -> Result<()> {
        ground.begin().await?;
        match self {
            Self::Attachments(attachments) => {
                let count = attachments.count();
                let answered = timed(count, async |number| attachments.written(number).await).await?;
                ground.end(Flow::Attached, &answered).await?;
                let answered = timed(count, async |number| attachments.unwritten(number).await).await?;
                ground.end(Flow::Detached, &answered).await
            }
            Self::Claims(load, count) => {
                let answered = ceiling::grown(load, *count).await?;
                ground.end(Flow::Grown, &answered).await
            }
        }
    }
}

/// Lets all contenders do it with so many volumes, one after another, and then the users themselves.
///
/// # Errors
/// When something does not run, or a request is not answered.
pub(super) async fn measured(run: &Run, task: Task, count: usize) -> Result<Vec<Figures>> {
    let mut all = Vec::new();
    for contender in CONTENDERS {
        all.push(contender.measured(run, task, count).await?);
    }
    all.push(nobody(run, task, count).await?);
    Ok(all)
}

impl Contender {
    const fn whose(self) -> Whose {
        match self {
            Self::Go => Whose::Theirs,
            Self::BeforeDriver | Self::Component => Whose::Ours,
        }
    }

    const fn name(self, task: Task) -> &'static str {
        match (self, task) {
            (Self::Go, Task::Attach) => "Go, attaching",
            (Self::BeforeDriver, Task::Attach) => "Cofferdam, attaching",
            (Self::Component, Task::Attach) => "Cofferdam, component, attaching",
            (Self::Go, Task::Grow) => "Go, growing",
            (Self::BeforeDriver, Task::Grow) => "Cofferdam, growing",
            (Self::Component, Task::Grow) => "Cofferdam, component, growing",
        }
    }

    fn about(self, task: Task) -> String {
        let (theirs, ours, _) = task.controllers();
        match self {
            Self::Go => {
                format!("{theirs}, client rates unlimited, 100 workers, the Go driver on a unix socket")
            }
            Self::BeforeDriver => {
                format!("`cofferdam run` with {ours}, 100 workers, the Go driver on a unix socket")
            }
            Self::Component => "the same with the memory driver as a WebAssembly component in its process, \
                                and the driver's state in a file"
                .to_owned(),
        }
    }

    async fn measured(self, run: &Run, task: Task, count: usize) -> Result<Figures> {
        let plane = start(run).await?;
        let client = plane.client().clone();
        let watches = Reading::at_rest(&client, &[]).await?.watches();
        let storage = Storage::start(run, self).await?;
        let account = Account::new(run, &plane, &MAKERS).await?;
        let mut makers = storage.roles(run, &account, &[]).await?;
        let load = Load::new(&client, VOLUMES, Some(DRIVER)).await?;
        let load = if task == Task::Grow { load.of_blocks() } else { load };
        let (_, volumes) = load.bound(count).await?;
        makers.stop().await?;
        let work = Work::new(task, load, volumes).await?;

        let controllers = self.start(run, &plane, task, storage).await?;
        let name = self.name(task);
        let mut ground = Ground::new(name, &plane, controllers.processes(), watches).await?;
        work.answered(&mut ground).await?;

        let figures = Figures {
            name: name.to_owned(),
            about: self.about(task),
            whose: Some(self.whose()),
            controllers: controllers.names(),
            loads: ground.done(),
        };
        controllers.stop().await?;
        drop((work, client));
        plane.stop().await?;
        Ok(figures)
    }

    async fn start(
        self,
        run: &Run,
        plane: &ControlPlane,
        task: Task,
        storage: Storage,
    ) -> Result<Controllers> {
        let (theirs, ours, workers) = task.controllers();
        let controller = match (self, &storage) {
            (Self::Go, Storage::Driver(driver)) => {
                let kubeconfig = plane.kubeconfig(User::Admin)?;
                sidecar::start(run, theirs, &kubeconfig, driver.socket(), &[workers]).await?
            }
            (Self::Go | Self::BeforeDriver | Self::Component, _) => {
                storage.roles(run, &Account::new(run, plane, &[ours]).await?, &[workers]).await?
            }
        };
        let storage = match storage {
            Storage::Driver(driver) => vec![driver.process],
            Storage::Component(_) => Vec::new(),
        };
        Ok(Controllers { driver: DRIVER, controllers: vec![controller], storage })
    }
}

/// The same writes without anybody who controls.
async fn nobody(run: &Run, task: Task, count: usize) -> Result<Figures> {
    let name = match task {
        Task::Attach => "API alone, attaching",
        Task::Grow => "API alone, growing",
    };
    let plane = start(run).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    // The class is needed so that the API lets claims grow.
    let load = Load::new(&client, VOLUMES, Some(DRIVER)).await?;
    let load = if task == Task::Grow { load.of_blocks() } else { load };
    ceiling::bound(&load, count, Volumes::Provisioned).await?;
    let volumes = (0..count).map(|number| format!("{VOLUMES}-{number}")).collect();
    let work = Work::new(task, load, volumes).await?;

    let mut ground = Ground::new(name, &plane, std::iter::empty(), watches).await?;
    work.written(&mut ground).await?;

    let loads = ground.done();
    drop((work, client));
    plane.stop().await?;
    let writes = task.writes();
    Ok(Figures {
        name: name.to_owned(),
        about: format!("{writes} by the users themselves, no controller, nobody watches"),
        whose: None,
        controllers: Vec::new(),
        loads,
    })
}
