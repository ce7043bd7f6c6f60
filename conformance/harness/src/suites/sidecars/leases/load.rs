//! A continuous load: claims are created, some of their volumes are attached and detached, and all are
//! deleted. One task reads the state of all objects, so that the load does not use the processors that the
//! replicas need.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{ListParams, ObjectList},
};
use serde_json::json;

use crate::{claims::Claims, retry};

/// Claims that exist at the same time.
const CONCURRENT_CLAIMS: usize = 200;
/// One of this number of volumes is attached.
const CLAIMS_PER_ATTACHMENT: usize = 5;
const CONCURRENT_REQUESTS: usize = 30;
/// Time between two reads of all objects.
const INTERVAL: Duration = Duration::from_millis(200);

/// State of a claim that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Created,
    /// Its VolumeAttachment was created.
    Attaching {
        volume: String,
    },
    /// Its VolumeAttachment was deleted.
    Detaching {
        volume: String,
    },
    /// The claim was deleted.
    Deleting {
        volume: String,
    },
}

/// A request of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    CreateClaim,
    Attach { volume: String },
    Detach,
    DeleteClaim,
}

/// The objects of the load in the cluster.
#[derive(Debug, Default)]
struct Observed {
    /// Names of the volumes of Bound claims, by the number of the claim.
    bound: HashMap<usize, String>,
    volumes: BTreeSet<String>,
    /// True if attached, by the number of the claim.
    attachments: HashMap<usize, bool>,
}

pub(super) struct Load {
    client: Client,
    claims: Claims,
    namespace: &'static str,
    driver: &'static str,
    /// The node to which volumes are attached; `None` if no volume is.
    node: Option<&'static str>,
    /// Minimum number of claims, of which those with an attachment are attached.
    minimum: usize,
    is_stopped: Cell<bool>,
    /// Number of claims that were created.
    created: Cell<usize>,
    /// Number of volumes that were attached.
    attached: Cell<usize>,
    /// Names of all volumes so far, by handle.
    names: RefCell<BTreeMap<String, String>>,
}

impl Load {
    pub(super) fn new(
        client: &Client,
        claims: Claims,
        namespace: &'static str,
        driver: &'static str,
        node: Option<&'static str>,
        minimum: usize,
    ) -> Self {
        Self {
            client: client.clone(),
            claims,
            namespace,
            driver,
            node,
            minimum,
            is_stopped: Cell::new(false),
            created: Cell::new(0),
            attached: Cell::new(0),
            names: RefCell::default(),
        }
    }

    /// Ends the load: once it has its minimum, no claim is created any more.
    pub(super) fn stop(&self) {
        self.is_stopped.set(true);
    }

    /// Number of claims that were created.
    pub(super) const fn created(&self) -> usize {
        self.created.get()
    }

    /// Number of volumes that were attached.
    pub(super) const fn attached(&self) -> usize {
        self.attached.get()
    }

    /// Names of all volumes so far, by handle.
    pub(super) fn names(&self) -> BTreeMap<String, String> {
        self.names.borrow().clone()
    }

    /// Runs until the load is stopped and all of its objects are deleted.
    ///
    /// # Errors
    /// If a request fails, or two volumes have one handle.
    pub(super) async fn run(&self) -> Result<()> {
        let mut phases: BTreeMap<usize, Phase> = BTreeMap::new();
        loop {
            let observed = self.observe().await?;
            let mut actions = self.advance(&mut phases, &observed);
            while self.is_continued() && phases.len() < CONCURRENT_CLAIMS {
                let number = self.created.replace(self.created.get() + 1);
                phases.insert(number, Phase::Created);
                actions.push((number, Action::CreateClaim));
            }
            if phases.is_empty() {
                return Ok(());
            }
            stream::iter(actions)
                .map(|(number, action)| self.send(number, action))
                .buffer_unordered(CONCURRENT_REQUESTS)
                .try_collect::<()>()
                .await?;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    const fn is_continued(&self) -> bool {
        !self.is_stopped.get() || self.created.get() < self.minimum
    }

    /// The next request of each user. Sets the phases to those after the requests, and removes claims whose
    /// volume is deleted.
    fn advance(&self, phases: &mut BTreeMap<usize, Phase>, observed: &Observed) -> Vec<(usize, Action)> {
        let mut actions = Vec::new();
        phases.retain(|number, phase| {
            let (next, action) = match phase.clone() {
                Phase::Created => match observed.bound.get(number) {
                    None => return true,
                    Some(volume) if self.node.is_some() && number % CLAIMS_PER_ATTACHMENT == 0 => (
                        Phase::Attaching { volume: volume.clone() },
                        Action::Attach { volume: volume.clone() },
                    ),
                    Some(volume) => (Phase::Deleting { volume: volume.clone() }, Action::DeleteClaim),
                },
                Phase::Attaching { volume } if observed.attachments.get(number) == Some(&true) => {
                    self.attached.set(self.attached.get() + 1);
                    (Phase::Detaching { volume }, Action::Detach)
                }
                Phase::Detaching { volume } if !observed.attachments.contains_key(number) => {
                    (Phase::Deleting { volume }, Action::DeleteClaim)
                }
                Phase::Attaching { .. } | Phase::Detaching { .. } => return true,
                Phase::Deleting { volume } => return observed.volumes.contains(&volume),
            };
            *phase = next;
            actions.push((*number, action));
            true
        });
        actions
    }

    async fn observe(&self) -> Result<Observed> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), self.namespace);
        let volumes = Api::<PersistentVolume>::all(self.client.clone());
        let attachments = Api::<VolumeAttachment>::all(self.client.clone());
        let (claims, volumes, attachments) =
            tokio::try_join!(list(&claims), list(&volumes), list(&attachments))?;
        let mut observed = Observed::default();
        for claim in claims {
            let is_bound = claim.status.and_then(|status| status.phase).is_some_and(|phase| phase == "Bound");
            let volume = claim.spec.and_then(|spec| spec.volume_name);
            if let Some(volume) = volume.filter(|_| is_bound) {
                observed.bound.insert(number(claim.metadata.name.as_deref())?, volume);
            }
        }
        let mut names = self.names.borrow_mut();
        for volume in volumes {
            let name = volume.metadata.name.context("a volume without a name")?;
            let handle = volume.spec.and_then(|spec| spec.csi).context("no CSI volume")?.volume_handle;
            let of_handle = names.entry(handle.clone()).or_insert_with(|| name.clone());
            ensure!(*of_handle == name, "{handle} is the handle of {of_handle} and {name}");
            observed.volumes.insert(name);
        }
        for attachment in attachments {
            let is_attached = attachment.status.is_some_and(|status| status.attached);
            observed.attachments.insert(number(attachment.metadata.name.as_deref())?, is_attached);
        }
        Ok(observed)
    }

    async fn send(&self, number: usize, action: Action) -> Result<()> {
        let attachments = Api::<VolumeAttachment>::all(self.client.clone());
        let attachment = format!("attachment-{number}");
        let sent = match &action {
            Action::CreateClaim => self.claims.create(number..number + 1).await,
            Action::DeleteClaim => self.claims.delete(number..number + 1).await,
            Action::Detach => retry::delete(&attachments, &attachment).await,
            Action::Attach { volume } => {
                let object = serde_json::from_value(json!({
                    "metadata": { "name": attachment },
                    "spec": {
                        "attacher": self.driver,
                        "nodeName": self.node,
                        "source": { "persistentVolumeName": volume },
                    },
                }))?;
                retry::create(&attachments, &object).await
            }
        };
        sent.with_context(|| format!("claim {number}, {action:?}"))
    }
}

async fn list<K>(api: &Api<K>) -> Result<Vec<K>>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    // From the API server's cache: the load must not wait for etcd, and may see an earlier state.
    let parameters = ListParams::default().match_any();
    let list: ObjectList<K> = retry::request(async |_| api.list(&parameters).await).await?;
    Ok(list.items)
}

/// The number at the end of a name.
fn number(name: Option<&str>) -> Result<usize> {
    let text = name.and_then(|name| name.rsplit('-').next());
    text.and_then(|text| text.parse().ok()).with_context(|| format!("{name:?}: expected a number at its end"))
}
