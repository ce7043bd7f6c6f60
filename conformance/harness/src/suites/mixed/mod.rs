//! Theirs and ours in one chain: csi-provisioner, csi-attacher and csi-resizer call our `csi-server`, and a real kubelet our `node`;
//! and the other way round, a driver in Go is served by our roles. In the middle of claims with pods whose volumes grow, everybody
//! is replaced over the same socket, and comes back; so is Kubernetes' attach-detach controller by ours.

mod places;
mod storage;
mod users;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{
    Api,
    api::{ListParams, PostParams},
};

use crate::{
    control_plane::{ControlPlane, Options},
    node::Node,
    pod,
    run::Run,
    wait::until,
};
use places::{Place, Places, Whose};
use storage::Storage;
use users::Users;

/// How many pods are there at once: as many volumes as the driver has room for on a node.
const AT_ONCE: usize = 20;
/// How long one pod may take while somebody is swapped, with the pauses of everybody's back-off.
const LONG: Duration = Duration::from_secs(300);
const NODE: &str = "node-1";
/// Claims with pods, during which each place changes hands twice.
struct Round {
    namespace: &'static str,
    claims: usize,
    /// How many pods have run when the first swap begins, and how many run between one and the next.
    first: usize,
    between: usize,
    /// Who has the places at the beginning and at the end.
    whose: Whose,
}

const OUR_SERVER: Round =
    Round { namespace: "our-server", claims: 100, first: 10, between: 9, whose: Whose::Theirs };
const DRIVER_IN_GO: Round =
    Round { namespace: "driver-in-go", claims: 60, first: 5, between: 4, whose: Whose::Ours };

pub(super) async fn run(run: &Run) -> Result<()> {
    let options = Options { scheduler: true, ..Options::default() };
    let mut plane = ControlPlane::start(run, options).await?;
    let node = Node::start(run, &plane, NODE).await?;
    let storage = Storage::ours(run, &node).await?;
    OUR_SERVER.play(run, &mut plane, &node, storage).await?;
    let storage = Storage::go(run, &node).await?;
    DRIVER_IN_GO.play(run, &mut plane, &node, storage).await?;
    node.stop().await?;
    plane.stop().await
}

impl Round {
    async fn play(&self, run: &Run, plane: &mut ControlPlane, node: &Node, storage: Storage) -> Result<()> {
        let driver: CSIDriver = serde_json::from_value(pod::attached_driver(storage.driver()))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &driver).await?;
        let users = Users::new(plane, self.namespace, storage.driver(), storage.has_sizes()).await?;
        let mut places = Places::new(run, plane, storage.socket(), self.whose).await?;
        let started = Instant::now();
        tokio::try_join!(users.all(self.claims), self.swaps(run, &users, &mut places, &storage))?;
        let (name, claims, taken) = (self.namespace, self.claims, started.elapsed().as_secs_f64());
        run.tell(&format!("{name}: {claims} claims with pods, each grown once, eight swaps: {taken:.0} s"))?;

        nothing_is_left(run, &users, &storage, node).await?;
        let calls = storage.calls().await?;
        let methods = || Place::ALL.iter().flat_map(|place| place.methods());
        let times = |method: &str| calls.get(method).copied().unwrap_or_default();
        let said: Vec<String> = methods().map(|method| format!("{method} {}", times(method))).collect();
        run.tell(&format!("{name}: answers of the controller: {}", said.join(", ")))?;
        for method in methods() {
            let times = times(method);
            ensure!(
                times >= u64::try_from(claims)?,
                "{method} was answered {times} times: expected {claims} at least"
            );
        }
        places.stop().await?;
        storage.stop().await
    }

    /// Each place is the other's for a while, and nobody knows of it but who is swapped.
    async fn swaps(
        &self,
        run: &Run,
        users: &Users,
        places: &mut Places<'_>,
        storage: &Storage,
    ) -> Result<()> {
        let other = self.whose.other();
        let swaps = [other, self.whose].into_iter().flat_map(|whose| Place::ALL.map(|place| (place, whose)));
        let mut since: BTreeMap<String, u64> = BTreeMap::new();
        for (number, (place, whose)) in swaps.enumerate() {
            users.ran(self.first + number * self.between).await?;
            places.vacate(place).await?;
            let now = storage.calls().await?;
            let of =
                |calls: &BTreeMap<String, u64>, method: &str| calls.get(method).copied().unwrap_or_default();
            if whose == self.whose && !place.methods().is_empty() {
                let more = |method: &&str| {
                    let times = of(&now, method).saturating_sub(of(&since, method));
                    format!("{method} {times}")
                };
                let said: Vec<String> = place.methods().iter().map(more).collect();
                run.tell(&format!(
                    "{}: while the place was {}: {}",
                    self.namespace,
                    other.word(),
                    said.join(", ")
                ))?;
            }
            // Something waits for who comes: so it is the middle.
            match place {
                Place::Provisioner => users.a_claim_waits().await?,
                Place::Attacher => users.an_attachment_waits().await?,
                Place::Resizer => users.a_growth_waits().await?,
                Place::AttachDetach => users.a_pod_waits().await?,
            }
            since.extend(place.methods().iter().map(|method| ((*method).to_owned(), of(&now, method))));
            places.take(place, whose).await?;
        }
        Ok(())
    }
}

/// Nothing is in the API, at the storage or on the node.
async fn nothing_is_left(run: &Run, users: &Users, storage: &Storage, node: &Node) -> Result<()> {
    until("nothing is left", LONG, async || {
        users.claims.left(0, LONG).await?;
        let attachments = users.attachments().await?.len();
        let pods = users.pods().list(&ListParams::default()).await?.items.len();
        ensure!(attachments == 0 && pods == 0, "{attachments} attachments, {pods} pods");
        storage.is_empty(run).await
    })
    .await?;
    node.idle(run, LONG).await
}
