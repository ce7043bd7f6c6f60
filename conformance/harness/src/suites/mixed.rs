//! Theirs and ours in one chain: csi-provisioner and csi-attacher call our `csi-server`, and a real kubelet our `node`. In the middle
//! of claims with pods, our roles take the sidecars' place over the same server, and give it back.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, LogParams, PostParams},
};
use serde_json::Value;

use crate::{
    account::Account,
    chain::{Backend, NodeRoles},
    claims::Claims,
    cofferdam,
    control_plane::{ControlPlane, Options, User},
    node::Node,
    pod::{self, AT},
    process::{self, Process},
    run::Run,
    sidecar,
    wait::until,
};

const CLAIMS: usize = 200;
/// How many pods are there at once: as many volumes as the driver has room for on a node.
const AT_ONCE: usize = 20;
/// How many pods have run when the first swap begins, and how many run between one and the next.
const FIRST: usize = 20;
const BETWEEN: usize = 35;
/// How long one pod may take while somebody is swapped, with the pauses of everybody's back-off.
const LONG: Duration = Duration::from_secs(180);
const NODE: &str = "node-1";
const NAMESPACE: &str = "mixed";
/// The loops of kube-controller-manager, none of which is ours here.
const CONTROLLERS: &str = "persistentvolume-binder-controller,persistentvolume-attach-detach-controller,\
                           persistentvolume-protection-controller,persistentvolumeclaim-protection-controller,\
                           node-lifecycle-controller,namespace-controller";

pub(super) async fn run(run: &Run) -> Result<()> {
    let options =
        Options { controllers: Some(CONTROLLERS.to_owned()), scheduler: true, ..Options::default() };
    let plane = ControlPlane::start(run, options).await?;
    let node = Node::start(run, &plane, NODE).await?;
    let backend = Backend::memory(run, NODE)?;
    let (mut server, socket, page) = backend.serve(run).await?;
    let mut roles = backend.node(run, NODE, node.root()).await?;
    let driver: CSIDriver = serde_json::from_value(pod::attached_driver(backend.driver()))?;
    Api::all(plane.client().clone()).create(&PostParams::default(), &driver).await?;

    let users = Users::new(&plane, backend.driver()).await?;
    let mut places = Places::new(run, &plane, socket).await?;
    let started = Instant::now();
    tokio::try_join!(users.all(), swaps(run, &users, &mut places, &page))?;
    run.tell(&format!("{CLAIMS} claims with pods, four swaps: {:.0} s", started.elapsed().as_secs_f64()))?;

    nothing_is_left(run, &users, &places.socket, &roles, &node).await?;
    let calls = calls(&page).await?;
    let said: Vec<String> = calls.iter().map(|(method, times)| format!("{method} {times}")).collect();
    run.tell(&format!("calls that our server answered with OK: {}", said.join(", ")))?;
    for method in METHODS {
        let times = calls.get(method).copied().unwrap_or_default();
        ensure!(times >= CLAIMS, "{method} was answered {times} times: expected {CLAIMS} at least");
    }

    for process in [&mut places.provisioner, &mut places.attacher, &mut roles.process, &mut server] {
        process.stop().await?;
    }
    node.stop().await?;
    plane.stop().await
}

/// What each volume needs of the driver at least once.
const METHODS: [&str; 4] =
    ["CreateVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "DeleteVolume"];

/// Each place is ours for a while, and nobody knows of it but who is swapped.
async fn swaps(run: &Run, users: &Users, places: &mut Places<'_>, page: &Client) -> Result<()> {
    const SWAPS: [(Place, Whose); 4] = [
        (Place::Provisioner, Whose::Ours),
        (Place::Attacher, Whose::Ours),
        (Place::Provisioner, Whose::Theirs),
        (Place::Attacher, Whose::Theirs),
    ];
    let mut since = BTreeMap::new();
    for (number, (place, whose)) in SWAPS.into_iter().enumerate() {
        users.ran(FIRST + number * BETWEEN).await?;
        places.vacate(place).await?;
        if whose == Whose::Theirs {
            let (before, now) = (since.clone(), calls(page).await?);
            let more = |method: &str| {
                let of = |calls: &BTreeMap<String, usize>| calls.get(method).copied().unwrap_or_default();
                format!("{method} {}", of(&now).saturating_sub(of(&before)))
            };
            let said = place.methods().map(more).join(", ");
            run.tell(&format!("while the place was ours: {said}"))?;
        }
        // Something waits for who comes: so it is the middle.
        match place {
            Place::Provisioner => users.a_claim_waits().await?,
            Place::Attacher => users.an_attachment_waits().await?,
        }
        if whose == Whose::Ours {
            let now = calls(page).await?;
            since.extend(now.into_iter().filter(|(method, _)| place.methods().contains(&method.as_str())));
        }
        places.take(place, whose).await?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Provisioner,
    Attacher,
}

impl Place {
    /// What whoever has it calls.
    const fn methods(self) -> [&'static str; 2] {
        match self {
            Self::Provisioner => ["CreateVolume", "DeleteVolume"],
            Self::Attacher => ["ControllerPublishVolume", "ControllerUnpublishVolume"],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Theirs,
}

/// Who provisions and who attaches, over one server.
struct Places<'a> {
    run: &'a Run,
    kubeconfig: PathBuf,
    accounts: [Account; 2],
    socket: PathBuf,
    provisioner: Process,
    attacher: Process,
}

impl<'a> Places<'a> {
    /// Starts the sidecars.
    async fn new(run: &'a Run, plane: &ControlPlane, socket: PathBuf) -> Result<Self> {
        let kubeconfig = plane.kubeconfig(User::Admin)?;
        let accounts = [
            Account::new(run, plane, &["provisioner"]).await?,
            Account::new(run, plane, &["attacher"]).await?,
        ];
        let provisioner = sidecar::start(run, "csi-provisioner", &kubeconfig, &socket, &[]).await?;
        let attacher = sidecar::start(run, "csi-attacher", &kubeconfig, &socket, &[]).await?;
        Ok(Self { run, kubeconfig, accounts, socket, provisioner, attacher })
    }

    /// Kills who has the place.
    async fn vacate(&mut self, place: Place) -> Result<()> {
        match place {
            Place::Provisioner => self.provisioner.kill().await,
            Place::Attacher => self.attacher.kill().await,
        }
    }

    /// Gives a vacant place to somebody.
    async fn take(&mut self, place: Place, whose: Whose) -> Result<()> {
        let [provisioner, attacher] = &self.accounts;
        let (account, sidecar) = match place {
            Place::Provisioner => (provisioner, "csi-provisioner"),
            Place::Attacher => (attacher, "csi-attacher"),
        };
        let process = match whose {
            Whose::Ours => cofferdam::start_before(self.run, account, &self.socket).await?,
            Whose::Theirs => sidecar::start(self.run, sidecar, &self.kubeconfig, &self.socket, &[]).await?,
        };
        match place {
            Place::Provisioner => self.provisioner = process,
            Place::Attacher => self.attacher = process,
        }
        Ok(())
    }
}

/// Users, each of whom makes a claim and a pod, reads what the pod says, and deletes both.
struct Users {
    client: Client,
    claims: Claims,
    /// Pods that have run to their good end.
    ran: Cell<usize>,
    /// The handles of all volumes that there were.
    handles: RefCell<BTreeSet<String>>,
}

impl Users {
    async fn new(plane: &ControlPlane, driver: &str) -> Result<Self> {
        let client = plane.client().clone();
        let claims = Claims::new(&client, NAMESPACE, driver).await?;
        Ok(Self { client, claims, ran: Cell::new(0), handles: RefCell::default() })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn all(&self) -> Result<()> {
        stream::iter(0..CLAIMS)
            .map(|number| async move { self.one(number).await.with_context(|| format!("user {number}")) })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn one(&self, number: usize) -> Result<()> {
        let (name, claim) = (format!("pod-{number}"), format!("claim-{number}"));
        self.claims.create(number..number + 1).await?;
        // A volume is empty when it is new, and a mount of its own: a directory of the node would pass for one otherwise.
        let script = format!(
            "cd {AT}; ls; echo {number} > f; sync; cat f; test $(stat -c %d .) != $(stat -c %d /) && echo mounted"
        );
        let pod = serde_json::from_value(pod::with_claim(&name, &claim, &script))?;
        self.pods().create(&PostParams::default(), &pod).await?;
        until("the pod has run to its good end", LONG, async || {
            let status = self.pods().get(&name).await?.status.context("no status")?;
            let phase = status.phase.unwrap_or_default();
            ensure!(phase == "Succeeded", "it is {phase}");
            Ok(())
        })
        .await?;
        let said = self.pods().logs(&name, &LogParams::default()).await?;
        ensure!(said == format!("{number}\nmounted\n"), "the pod says {said:?}");
        let volume = self.volume(&claim).await?;
        self.ran.set(self.ran.get() + 1);

        self.pods().delete(&name, &DeleteParams::default()).await?;
        self.claims.delete(number..number + 1).await?;
        until("the volume is gone", LONG, async || {
            let volumes = Api::<PersistentVolume>::all(self.client.clone());
            let phase =
                volumes.get_opt(&volume).await?.map(|volume| volume.status.and_then(|status| status.phase));
            ensure!(phase.is_none(), "{volume} is {:?}", phase.flatten());
            Ok(())
        })
        .await
    }

    /// The name of a claim's volume, whose handle nobody else has.
    async fn volume(&self, claim: &str) -> Result<String> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), NAMESPACE);
        let name = claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).context("no volume")?;
        let volume = Api::<PersistentVolume>::all(self.client.clone()).get(&name).await?;
        let handle = volume.spec.and_then(|spec| spec.csi).context("no CSI volume")?.volume_handle;
        ensure!(self.handles.borrow_mut().insert(handle.clone()), "{handle} is the volume of two claims");
        Ok(name)
    }

    /// Waits until so many pods have run.
    async fn ran(&self, least: usize) -> Result<()> {
        until(&format!("{least} pods have run"), LONG, async || {
            let ran = self.ran.get();
            ensure!(ran >= least, "{ran} have");
            Ok(())
        })
        .await
    }

    async fn a_claim_waits(&self) -> Result<()> {
        until("a claim waits for its volume", LONG, async || self.claims.in_the_middle().await).await
    }

    async fn an_attachment_waits(&self) -> Result<()> {
        until("an attachment waits", LONG, async || {
            let all = self.attachments().await?;
            let waits = all.iter().any(|attachment| {
                let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
                attachment.metadata.deletion_timestamp.is_some() || !attached
            });
            ensure!(waits, "all {} are where they shall be", all.len());
            Ok(())
        })
        .await
    }

    async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        Ok(Api::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }
}

/// Nothing is in the API, at the storage or on the node; and each claim had a volume of its own.
async fn nothing_is_left(
    run: &Run,
    users: &Users,
    socket: &Path,
    roles: &NodeRoles,
    node: &Node,
) -> Result<()> {
    let different = users.handles.borrow().len();
    ensure!(different == CLAIMS, "{different} volumes for {CLAIMS} claims");
    until("nothing is left", LONG, async || {
        users.claims.left(0, LONG).await?;
        let attachments = users.attachments().await?.len();
        let pods = users.pods().list(&ListParams::default()).await?.items.len();
        let records = roles.records()?;
        let stored = stored(run, socket).await?;
        ensure!(
            attachments == 0 && pods == 0 && records.is_empty() && stored.is_empty(),
            "{attachments} attachments, {pods} pods, on the node {records:?}, at the storage {stored:?}"
        );
        Ok(())
    })
    .await?;
    node.idle(run, LONG).await
}

/// The volumes that the driver has, as our server lists them.
async fn stored(run: &Run, socket: &Path) -> Result<Vec<Value>> {
    let driver = format!("unix://{}", socket.display());
    let arguments = ["backend", "call", &driver, "listing.list", "--output", "json"];
    let answer: Value = serde_json::from_str(&process::output(run.program(), &arguments).await?)?;
    let volumes = answer.pointer("/answer/volumes").and_then(Value::as_array);
    Ok(volumes.context("no volumes in the answer")?.clone())
}

/// How often our server has answered a method of its controller with OK.
async fn calls(page: &Client) -> Result<BTreeMap<String, usize>> {
    let text = page.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let mut calls = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("cofferdam_csi_server_operations_seconds_count{"))
    {
        let (labels, times) =
            line.rsplit_once("} ").with_context(|| format!("a line without a value: {line}"))?;
        let method = labels.split_once("/csi.v1.Controller/").and_then(|(_, rest)| rest.split('"').next());
        let Some(method) = method.filter(|_| labels.contains("grpc_status_code=\"OK\"")) else { continue };
        calls.insert(method.to_owned(), times.trim().parse()?);
    }
    Ok(calls)
}
