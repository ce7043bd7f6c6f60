//! Who answers the load of attachments. The volumes are made beforehand, by the same roles for everybody, which are gone when the
//! load begins: what is compared is the attacher.

use anyhow::Result;

use super::{
    Figures, Flow, Ground,
    attachments::Attachments,
    ceiling::timed,
    load::Load,
    measure::Reading,
    stacks::DRIVER,
    stacks::{Controllers, Whose},
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
/// Theirs and ours get as many.
const WORKERS: [&str; 1] = ["--worker-threads=100"];

/// An attacher and its driver.
pub(super) struct Attacher {
    name: &'static str,
    about: &'static str,
    whose: Whose,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Go,
    BeforeDriver,
    Component,
}

/// The attachers in the order in which they are measured, each on a control plane of its own.
pub(super) const ATTACHERS: &[Attacher] = &[
    Attacher {
        name: "Go, attaching",
        about: "csi-attacher, client rates unlimited, 100 workers, the Go driver on a unix socket",
        whose: Whose::Theirs,
        kind: Kind::Go,
    },
    Attacher {
        name: "Cofferdam, attaching",
        about: "`cofferdam run` with attacher, 100 workers, the Go driver on a unix socket",
        whose: Whose::Ours,
        kind: Kind::BeforeDriver,
    },
    Attacher {
        name: "Cofferdam, component, attaching",
        about: "the same with the memory driver as a WebAssembly component in its process, and the driver's state in a file",
        whose: Whose::Ours,
        kind: Kind::Component,
    },
];

/// Where volumes are.
enum Storage {
    Driver(Box<Driver>),
    Component(MemoryDriver),
}

impl Storage {
    async fn start(run: &Run, kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Go | Kind::BeforeDriver => {
                Self::Driver(Box::new(Driver::start(run, DRIVER, &["--any-node"]).await?))
            }
            // It has to outlive the process that makes the volumes.
            Kind::Component => Self::Component(MemoryDriver::new(run, DRIVER)?),
        })
    }

    /// Starts roles of ours that run it.
    async fn roles(&self, run: &Run, account: &Account) -> Result<Process> {
        match self {
            Self::Driver(driver) => {
                cofferdam::start_before_with(run, account, driver.socket(), &WORKERS).await
            }
            Self::Component(driver) => cofferdam::start_with(run, account, driver, &WORKERS).await,
        }
    }
}

impl Attacher {
    /// Lets it attach and detach so many volumes.
    ///
    /// # Errors
    /// When something does not run, or an attachment is not answered.
    pub(super) async fn measured(&self, run: &Run, count: usize) -> Result<Figures> {
        let plane = start(run).await?;
        let client = plane.client().clone();
        let watches = Reading::at_rest(&client, &[]).await?.watches();
        let storage = Storage::start(run, self.kind).await?;
        let account = Account::new(run, &plane, &MAKERS).await?;
        let mut makers = storage.roles(run, &account).await?;
        let (_, volumes) = Load::new(&client, VOLUMES, Some(DRIVER)).await?.bound(count).await?;
        makers.stop().await?;
        let attachments = Attachments::new(&client, DRIVER, volumes).await?;

        let controllers = self.start(run, &plane, storage).await?;
        let mut ground = Ground::new(self.name, &plane, controllers.processes(), watches).await?;
        ground.begin().await?;
        let answered = attachments.attached().await?;
        ground.end(Flow::Attached, &answered).await?;
        let answered = attachments.detached().await?;
        ground.end(Flow::Detached, &answered).await?;

        let figures = Figures {
            name: self.name.to_owned(),
            about: self.about.to_owned(),
            whose: Some(self.whose),
            controllers: controllers.names(),
            loads: ground.done(),
        };
        controllers.stop().await?;
        drop((attachments, client));
        plane.stop().await?;
        Ok(figures)
    }

    async fn start(&self, run: &Run, plane: &ControlPlane, storage: Storage) -> Result<Controllers> {
        let attacher = match (self.kind, &storage) {
            (Kind::Go, Storage::Driver(driver)) => {
                let kubeconfig = plane.kubeconfig(User::Admin)?;
                sidecar::start(run, "csi-attacher", &kubeconfig, driver.socket(), &WORKERS).await?
            }
            (Kind::Go | Kind::BeforeDriver | Kind::Component, _) => {
                storage.roles(run, &Account::new(run, plane, &["attacher"]).await?).await?
            }
        };
        let storage = match storage {
            Storage::Driver(driver) => vec![driver.process],
            Storage::Component(_) => Vec::new(),
        };
        Ok(Controllers { driver: DRIVER, controllers: vec![attacher], storage })
    }
}

/// The same writes without anybody who controls.
///
/// # Errors
/// When the API refuses one.
pub(super) async fn nobody(run: &Run, count: usize) -> Result<Figures> {
    const NAME: &str = "API alone, attaching";
    let plane = start(run).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    Load::new(&client, VOLUMES, None).await?.volumes(count).await?;
    let volumes = (0..count).map(|number| format!("{VOLUMES}-{number}")).collect();
    let attachments = Attachments::new(&client, DRIVER, volumes).await?;

    let mut ground = Ground::new(NAME, &plane, std::iter::empty(), watches).await?;
    ground.begin().await?;
    let answered = timed(count, async |number| attachments.written(number).await).await?;
    ground.end(Flow::Attached, &answered).await?;
    let answered = timed(count, async |number| attachments.unwritten(number).await).await?;
    ground.end(Flow::Detached, &answered).await?;

    let loads = ground.done();
    drop((attachments, client));
    plane.stop().await?;
    Ok(Figures {
        name: NAME.to_owned(),
        about:
            "four writes to attach and two to detach by the users themselves, no controller, nobody watches"
                .to_owned(),
        whose: None,
        controllers: Vec::new(),
        loads,
    })
}
