//! From the API's objects to what an operator wants to know. Pure: objects and the time in, facts out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use cofferdam_domain::{Quantity, names};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Event, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition},
        storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeError},
    },
    apimachinery::pkg::{
        api::resource::Quantity as Amount,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use serde::Serialize;

/// Errors that are shown of a driver, the newest.
const ERRORS: usize = 5;
/// Provisioner of classes whose volumes are made by people.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) drivers: Vec<CSIDriver>,
    pub(super) nodes: Vec<CSINode>,
    pub(super) classes: Vec<StorageClass>,
    pub(super) claims: Vec<PersistentVolumeClaim>,
    pub(super) volumes: Vec<PersistentVolume>,
    pub(super) attachments: Vec<VolumeAttachment>,
    /// Warnings.
    pub(super) events: Vec<Event>,
    /// Orphans by driver, where a process reports them.
    pub(super) orphans: BTreeMap<String, u64>,
    /// Kinds that this user may not list.
    pub(super) forbidden: Vec<&'static str>,
}

/// The state of a cluster's storage.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    /// By name; what belongs to no driver comes last.
    pub(super) drivers: Vec<DriverStatus>,
    /// Kinds that could not be looked at: their counts are missing.
    pub(super) forbidden: Vec<&'static str>,
}

/// What concerns one driver.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverStatus {
    /// Absent for claims and volumes without a CSI driver.
    pub(super) driver: Option<String>,
    /// Whether there is a CSIDriver object.
    pub(super) installed: bool,
    /// Whether its volumes are attached.
    pub(super) attach_required: bool,
    /// Nodes on which it is registered.
    pub(super) nodes: usize,
    /// Volumes that it holds and nothing stands for; absent where nobody reports.
    pub(super) orphans: Option<u64>,
    /// Claims by state.
    pub(super) claims: BTreeMap<&'static str, usize>,
    /// Volumes by state.
    pub(super) volumes: BTreeMap<&'static str, usize>,
    /// Attachments by state.
    pub(super) attachments: BTreeMap<&'static str, usize>,
    /// Work that waits, by what it is.
    pub(super) waiting: BTreeMap<&'static str, Waiting>,
    /// What has waited too long, or waits for something that will not come; the oldest first.
    pub(super) stuck: Vec<Stuck>,
    /// The newest errors.
    pub(super) errors: Vec<LastError>,
}

/// A queue as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Waiting {
    /// Objects in it.
    pub(super) count: usize,
    /// Seconds that the oldest has waited, where that is known of any.
    pub(super) oldest_seconds: Option<i64>,
}

/// An object, for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// An object that gets no further.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stuck {
    #[serde(flatten)]
    pub(super) object: Object,
    /// What it waits for: the same word as in the queues.
    pub(super) work: &'static str,
    /// For so long; absent where nobody has written down since when.
    pub(super) seconds: Option<i64>,
    /// Why, as far as the API says it.
    pub(super) reason: String,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastError {
    #[serde(flatten)]
    pub(super) object: Object,
    pub(super) time: Timestamp,
    pub(super) message: String,
}

/// Work of which the API knows when it was asked for.
struct Pending {
    object: Object,
    work: &'static str,
    /// Absent where nobody has written that down.
    since: Option<Timestamp>,
    /// Why it waits, where the object itself or what is around it says so.
    reason: Option<String>,
    /// It will not come to an end by itself.
    hopeless: bool,
}

fn time(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.duration_since(since).as_secs().max(0)
}

/// What a claim waits for: the work, since when, why, and whether that is hopeless.
type Work = (&'static str, Option<Timestamp>, Option<String>, bool);

/// Objects by name, and what the API says of them.
struct Gathering<'a> {
    objects: &'a Objects,
    volumes: HashMap<&'a str, &'a PersistentVolume>,
    classes: HashMap<&'a str, &'a StorageClass>,
    nodes: HashMap<&'a str, &'a CSINode>,
    /// The newest warning of an object, by uid.
    warnings: HashMap<&'a str, (Timestamp, &'a Event)>,
    found: BTreeMap<Option<String>, DriverStatus>,
    pending: Vec<(Option<String>, Pending)>,
}

impl Status {
    /// Puts together what is known; `stuck_after` is how long work may wait before it counts as stuck.
    pub(super) fn of(objects: &Objects, now: Timestamp, stuck_after: Duration) -> Self {
        let mut gathering = Gathering::new(objects);
        gathering.drivers();
        for claim in &objects.claims {
            gathering.claim(claim);
        }
        for volume in &objects.volumes {
            gathering.volume(volume);
        }
        for attachment in &objects.attachments {
            gathering.attachment(attachment);
        }
        gathering.finish(now, stuck_after)
    }
}

impl<'a> Gathering<'a> {
    fn new(objects: &'a Objects) -> Self {
        let mut warnings: HashMap<&str, (Timestamp, &Event)> = HashMap::new();
        for event in &objects.events {
            let Some(uid) = event.involved_object.uid.as_deref() else { continue };
            let at = moment(event);
            if warnings.get(uid).is_none_or(|(newest, _)| *newest < at) {
                warnings.insert(uid, (at, event));
            }
        }
        Self {
            objects,
            volumes: by_name(&objects.volumes, |it| &it.metadata),
            classes: by_name(&objects.classes, |it| &it.metadata),
            nodes: by_name(&objects.nodes, |it| &it.metadata),
            warnings,
            found: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    fn of(&mut self, driver: Option<&str>) -> &mut DriverStatus {
        let driver = driver.map(str::to_owned);
        self.found.entry(driver.clone()).or_insert_with(|| DriverStatus {
            driver,
            // What Kubernetes assumes where there is no CSIDriver.
            attach_required: true,
            ..DriverStatus::default()
        })
    }

    /// What is installed, even if nobody uses it.
    fn drivers(&mut self) {
        let objects = self.objects;
        for driver in &objects.drivers {
            let attach_required = driver.spec.attach_required.unwrap_or(true);
            let status = self.of(driver.metadata.name.as_deref());
            (status.installed, status.attach_required) = (true, attach_required);
        }
        for driver in objects.nodes.iter().flat_map(|node| &node.spec.drivers) {
            self.of(Some(&driver.name)).nodes += 1;
        }
        for (driver, orphans) in &objects.orphans {
            self.of(Some(driver)).orphans = Some(*orphans);
        }
    }

    /// The driver of a claim: its volume's, its class's, or the one that was asked for it.
    fn driver_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let spec = claim.spec.as_ref();
        let volume =
            spec.and_then(|spec| spec.volume_name.as_deref()).and_then(|name| self.volumes.get(name));
        if let Some(volume) = volume {
            return driver(volume).map(str::to_owned);
        }
        let class = class(claim).and_then(|name| self.classes.get(name));
        let asked = || annotation(&claim.metadata, names::STORAGE_PROVISIONER).map(str::to_owned);
        let provisioner = class.map(|class| class.provisioner.clone()).or_else(asked);
        provisioner.filter(|name| name != NO_PROVISIONER)
    }

    fn claim(&mut self, claim: &'a PersistentVolumeClaim) {
        let driver = self.driver_of(claim);
        let object = object("PersistentVolumeClaim", &claim.metadata);
        let (state, work) = self.state_of(claim);
        *self.of(driver.as_deref()).claims.entry(state).or_default() += 1;
        if let Some((work, since, reason, hopeless)) = work {
            self.pending
                .push((driver.clone(), Pending { object: object.clone(), work, since, reason, hopeless }));
        }
        self.warned(driver, object, &claim.metadata);
    }

    /// State of a claim, and what it waits for.
    fn state_of(&self, claim: &PersistentVolumeClaim) -> (&'static str, Option<Work>) {
        let created = time(claim.metadata.creation_timestamp.as_ref());
        if let Some(since) = &claim.metadata.deletion_timestamp {
            return ("deleting", Some(("delete", Some(since.0), held(&claim.metadata), false)));
        }
        let status = claim.status.as_ref();
        let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Lost") => {
                let volume = bound_to.unwrap_or("its volume");
                return ("lost", Some(("bind", Some(created), Some(format!("{volume} is not there")), true)));
            }
            Some("Bound") => {}
            Some(_) | None => return self.unbound(claim, created, bound_to),
        }
        if let Some(work) = growing(claim, created) {
            return ("resizing", Some(work));
        }
        modifying(claim, created).map_or(("bound", None), |work| ("modifying", Some(work)))
    }

    fn unbound(
        &self,
        claim: &PersistentVolumeClaim,
        created: Timestamp,
        bound_to: Option<&str>,
    ) -> (&'static str, Option<Work>) {
        if let Some(volume) = bound_to.filter(|name| !name.is_empty()) {
            let missing = !self.volumes.contains_key(volume);
            let reason = missing.then(|| format!("the volume {volume} is not there"));
            return ("pending", Some(("bind", Some(created), reason, false)));
        }
        let name = class(claim).filter(|name| !name.is_empty());
        let Some(name) = name else {
            let reason = "it names no class: a volume that fits must be made by hand".to_owned();
            return ("pending", Some(("bind", Some(created), Some(reason), false)));
        };
        let Some(class) = self.classes.get(name) else {
            let seen = !self.objects.forbidden.contains(&"storageclasses");
            let reason = seen.then(|| format!("the class {name} is not there"));
            return ("pending", Some(("provision", Some(created), reason, false)));
        };
        if class.provisioner == NO_PROVISIONER {
            let reason = format!("the class {name} makes no volumes: one that fits must be made by hand");
            return ("pending", Some(("bind", Some(created), Some(reason), false)));
        }
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
            && annotation(&claim.metadata, names::SELECTED_NODE).is_none();
        if waits {
            ("waiting for a pod", None)
        } else {
            ("pending", Some(("provision", Some(created), None, false)))
        }
    }

    fn volume(&mut self, volume: &'a PersistentVolume) {
        let driver = driver(volume).map(str::to_owned);
        let object = object("PersistentVolume", &volume.metadata);
        let status = volume.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let changed = status.and_then(|status| status.last_phase_transition_time.as_ref());
        let since = changed.or(volume.metadata.creation_timestamp.as_ref());
        let deletes = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
            == Some("Delete");
        let said = status.and_then(|status| status.message.clone()).filter(|message| !message.is_empty());
        let (state, work) = match (&volume.metadata.deletion_timestamp, phase) {
            (Some(since), _) => ("deleting", Some((since.0, said.or_else(|| held(&volume.metadata))))),
            (None, Some("Bound")) => ("bound", None),
            (None, Some("Available")) => ("available", None),
            (None, Some("Released")) => ("released", deletes.then(|| (time(since), said))),
            (None, Some("Failed")) => ("failed", Some((time(since), said))),
            (None, Some(_) | None) => ("pending", None),
        };
        *self.of(driver.as_deref()).volumes.entry(state).or_default() += 1;
        if let Some((since, reason)) = work {
            let pending = Pending {
                object: object.clone(),
                work: "delete",
                since: Some(since),
                reason,
                hopeless: false,
            };
            self.pending.push((driver.clone(), pending));
        }
        self.warned(driver, object, &volume.metadata);
    }

    fn attachment(&mut self, attachment: &'a VolumeAttachment) {
        let driver = Some(attachment.spec.attacher.clone());
        let object = object("VolumeAttachment", &attachment.metadata);
        let status = attachment.status.as_ref();
        let deleting = attachment.metadata.deletion_timestamp.as_ref();
        let attached = status.is_some_and(|status| status.attached);
        let error = status.and_then(|status| {
            if deleting.is_some() { status.detach_error.as_ref() } else { status.attach_error.as_ref() }
        });
        let (node, volume) =
            (&attachment.spec.node_name, attachment.spec.source.persistent_volume_name.as_deref());
        let around = self.around(&attachment.spec.attacher, node, volume);
        let reason = error.and_then(message).or(around);
        let (state, work) = match deleting {
            Some(since) => ("detaching", Some(("detach", since.0))),
            None if attached => ("attached", None),
            None => ("attaching", Some(("attach", time(attachment.metadata.creation_timestamp.as_ref())))),
        };
        *self.of(driver.as_deref()).attachments.entry(state).or_default() += 1;
        if let Some((work, since)) = work {
            let pending =
                Pending { object: object.clone(), work, since: Some(since), reason, hopeless: false };
            self.pending.push((driver.clone(), pending));
        }
        if let Some((error, message)) = error.and_then(|error| Some((error, message(error)?))) {
            let time = time(error.time.as_ref());
            self.of(driver.as_deref()).errors.push(LastError { object: object.clone(), time, message });
        }
        self.warned(driver, object, &attachment.metadata);
    }

    /// What an attachment misses around it.
    fn around(&self, driver: &str, node: &str, volume: Option<&str>) -> Option<String> {
        let sees = |kind| !self.objects.forbidden.contains(&kind);
        if let Some(volume) = volume.filter(|name| !self.volumes.contains_key(name))
            && sees("persistentvolumes")
        {
            return Some(format!("the volume {volume} is not there"));
        }
        if !sees("csinodes") {
            return None;
        }
        match self.nodes.get(node) {
            None => Some(format!("the node {node} has no CSINode")),
            Some(found) if !found.spec.drivers.iter().any(|on| on.name == driver) => {
                Some(format!("the driver is not registered on the node {node}"))
            }
            Some(_) => None,
        }
    }

    /// Takes the newest warning of an object.
    fn warned(&mut self, driver: Option<String>, object: Object, metadata: &'a ObjectMeta) {
        let warning = metadata.uid.as_deref().and_then(|uid| self.warnings.get(uid).copied());
        if let Some((time, event)) = warning {
            let message = told(event);
            self.of(driver.as_deref()).errors.push(LastError { object, time, message });
        }
    }

    fn finish(mut self, now: Timestamp, stuck_after: Duration) -> Status {
        let limit = i64::try_from(stuck_after.as_secs()).unwrap_or(i64::MAX);
        for status in self.found.values_mut() {
            status.errors.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.object.cmp(&b.object)));
            // Of an object the newest one tells enough.
            let mut seen = BTreeSet::new();
            status.errors.retain(|error| seen.insert(error.object.clone()));
        }
        for (driver, pending) in std::mem::take(&mut self.pending) {
            let age = pending.since.map(|since| seconds(since, now));
            let status = self.of(driver.as_deref());
            let waiting =
                status.waiting.entry(pending.work).or_insert(Waiting { count: 0, oldest_seconds: None });
            waiting.count += 1;
            waiting.oldest_seconds = waiting.oldest_seconds.max(age);
            // Of what has no age nobody can say that it is new.
            if age.is_some_and(|age| age < limit) && !pending.hopeless {
                continue;
            }
            let told = status.errors.iter().find(|error| error.object == pending.object);
            let told = told.map(|error| error.message.clone());
            let reason = pending.reason.or(told);
            status.stuck.push(Stuck {
                object: pending.object,
                work: pending.work,
                seconds: age,
                reason: reason.unwrap_or_else(|| "nobody has said why".to_owned()),
            });
        }
        let nobody = self.found.remove(&None);
        let mut drivers: Vec<DriverStatus> = self.found.into_values().chain(nobody).collect();
        for status in &mut drivers {
            status.stuck.sort_by(|a, b| b.seconds.cmp(&a.seconds).then_with(|| a.object.cmp(&b.object)));
            status.errors.truncate(ERRORS);
        }
        Status { drivers, forbidden: self.objects.forbidden.clone() }
    }
}

fn by_name<K>(objects: &[K], metadata: impl Fn(&K) -> &ObjectMeta) -> HashMap<&str, &K> {
    let named = objects.iter().filter_map(|object| Some((metadata(object).name.as_deref()?, object)));
    named.collect()
}

fn object(kind: &'static str, metadata: &ObjectMeta) -> Object {
    let name = metadata.name.clone().unwrap_or_default();
    Object { kind, namespace: metadata.namespace.clone(), name }
}

fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn driver(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.csi.as_ref().map(|csi| csi.driver.as_str())
}

fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, names::CLASS_BETA)
        .or_else(|| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
}

/// What is still to be grown of a bound claim.
fn growing(claim: &PersistentVolumeClaim, created: Timestamp) -> Option<Work> {
    let error = |kind| condition(claim, kind).and_then(said);
    let on_node = condition(claim, "FileSystemResizePending").is_some();
    let kinds = ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];
    if let Some(since) = since(claim, &kinds, created) {
        let node = "the node grows the filesystem when a pod uses the volume".to_owned();
        return Some(match on_node {
            true => ("resize on the node", Some(since), error("NodeResizeError").or(Some(node)), false),
            false => {
                let why = error("ControllerResizeError").or_else(|| error("NodeResizeError"));
                ("resize", Some(since), why.or_else(|| error("Resizing")), false)
            }
        });
    }
    let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
    let size = |amounts: &BTreeMap<String, Amount>| Quantity::parse(&amounts.get("storage")?.0).ok();
    let request = spec.resources.as_ref()?.requests.as_ref().and_then(size)?;
    let capacity = status.capacity.as_ref().and_then(size)?;
    (request > capacity).then_some(("resize", None, None, false))
}

/// What is still to be modified of a bound claim.
fn modifying(claim: &PersistentVolumeClaim, created: Timestamp) -> Option<Work> {
    let status = claim.status.as_ref()?;
    let since = since(claim, &["ModifyingVolume", "ModifyVolumeError"], created);
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let wanted = wanted.filter(|wanted| !wanted.is_empty());
    let pending = status.modify_volume_status.as_ref().is_some_and(|status| status.status == "Pending");
    if since.is_none()
        && (wanted.is_none() || status.current_volume_attributes_class_name.as_deref() == wanted)
    {
        return None;
    }
    let missing = || {
        let wanted = wanted.filter(|_| pending)?;
        Some(format!("the VolumeAttributesClass {wanted} is not there, or of another driver"))
    };
    let error = || condition(claim, "ModifyVolumeError").and_then(said);
    let going = || condition(claim, "ModifyingVolume").and_then(said);
    Some(("modify", since, missing().or_else(error).or_else(going), false))
}

/// A condition that holds.
fn condition<'a>(claim: &'a PersistentVolumeClaim, kind: &str) -> Option<&'a PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.status == "True" && condition.type_ == kind)
}

/// Since when one of these holds, the oldest one; of one that does not tell, since the claim is there.
fn since(claim: &PersistentVolumeClaim, kinds: &[&str], created: Timestamp) -> Option<Timestamp> {
    let there = kinds.iter().filter_map(|kind| condition(claim, kind));
    there.map(|one| one.last_transition_time.as_ref().map_or(created, |time| time.0)).min()
}

fn said(condition: &PersistentVolumeClaimCondition) -> Option<String> {
    condition.message.clone().filter(|message| !message.is_empty())
}

/// What keeps an object that is being deleted.
fn held(metadata: &ObjectMeta) -> Option<String> {
    let finalizers = metadata.finalizers.as_ref().filter(|finalizers| !finalizers.is_empty())?;
    Some(format!("held by {}", finalizers.join(", ")))
}

fn message(error: &VolumeError) -> Option<String> {
    error.message.clone().filter(|message| !message.is_empty())
}

/// When an event was last seen.
fn moment(event: &Event) -> Timestamp {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = || event.event_time.as_ref().map(|time| time.0);
    let created = || event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.max(last).or_else(first).or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn told(event: &Event) -> String {
    let reason = event.reason.as_deref().unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    match (reason.is_empty(), message.is_empty()) {
        (false, false) => format!("{reason}: {message}"),
        _ => format!("{reason}{message}"),
    }
}
