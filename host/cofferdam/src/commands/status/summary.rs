//! Summarizes the objects of the API for `cofferdam status`. Pure: the input is objects and the current time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_domain::{Quantity, names};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Event, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition},
        storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeError},
    },
    apimachinery::pkg::{api::resource::Quantity as Amount, apis::meta::v1::ObjectMeta},
};
use serde::Serialize;

use super::{
    metadata::{DELETE, by_name, finalizers_text, timestamp_or_epoch},
    snapshots::{SnapshotLookup, SnapshotObjects, SnapshotOperation, SnapshotState},
};
use crate::snapshot_kinds::{VolumeSnapshot, VolumeSnapshotContent};

/// Maximum number of errors per driver; the newest are shown.
const MAX_ERRORS: usize = 5;
/// Provisioner of classes with statically provisioned volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Objects of the cluster.
#[derive(Debug, Default)]
pub(super) struct StatusObjects {
    pub(super) drivers: Vec<CSIDriver>,
    pub(super) nodes: Vec<CSINode>,
    pub(super) classes: Vec<StorageClass>,
    pub(super) claims: Vec<PersistentVolumeClaim>,
    pub(super) volumes: Vec<PersistentVolume>,
    pub(super) attachments: Vec<VolumeAttachment>,
    /// Empty if the cluster does not serve the kinds of snapshots.
    pub(super) snapshots: SnapshotObjects,
    /// Events of type Warning.
    pub(super) events: Vec<Event>,
    /// Numbers of orphans with their driver, from the reports.
    pub(super) orphans: Vec<(String, OrphanCount)>,
    /// ConfigMaps of the intent journals.
    pub(super) journals: Vec<JournalShard>,
    /// Resources that this user may not list, such as `csinodes`.
    pub(super) forbidden: Vec<&'static str>,
}

/// A ConfigMap of a driver's intent journal.
#[derive(Clone, Debug)]
pub(super) struct JournalShard {
    pub(super) driver: String,
    pub(super) namespace: String,
    pub(super) intents: Vec<IntentState>,
    /// Number of intents that this version cannot read.
    pub(super) undecodable: usize,
}

/// An intent: the request for a volume that may exist at the driver.
#[derive(Clone, Debug)]
pub(super) struct IntentState {
    pub(super) claim_namespace: String,
    pub(super) claim_name: String,
    pub(super) claim_uid: String,
    /// Name of the volume.
    pub(super) volume: String,
    /// Absent in intents of older versions.
    pub(super) recorded_at: Option<Timestamp>,
}

/// The state of a cluster's storage.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterStatus {
    /// Drivers, sorted by name. If there are claims or volumes without a CSI driver, the last entry has them.
    pub(super) drivers: Vec<DriverStatus>,
    /// Resources that this user may not list, such as `csinodes`; their counts are missing.
    pub(super) forbidden: Vec<&'static str>,
}

/// The state of one driver.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverStatus {
    /// Name of the driver. For a claim without a volume it is its class's provisioner, which may be no CSI
    /// driver. Absent for claims and volumes without either.
    pub(super) driver: Option<String>,
    /// Set if there is a CSIDriver object.
    pub(super) installed: bool,
    /// `attachRequired` of the CSIDriver; `true` without a CSIDriver.
    pub(super) attach_required: bool,
    /// Number of nodes whose CSINode lists the driver.
    pub(super) nodes: usize,
    /// Number of orphans in each report that this version can read, sorted by namespace. Reports of several
    /// namespaces are not added up: only one of them can be that of the process that runs the driver.
    pub(super) orphans: Vec<OrphanCount>,
    /// The intent journal in each namespace that has one, by namespace.
    pub(super) journals: Vec<JournalSummary>,
    /// Number of claims by state, such as `bound`, `resizing` or `deleting`.
    pub(super) claims: BTreeMap<&'static str, usize>,
    /// Number of PersistentVolumes by state, such as `bound` or `released`.
    pub(super) volumes: BTreeMap<&'static str, usize>,
    /// Number of VolumeAttachments by state: `attaching`, `attached` or `detaching`.
    pub(super) attachments: BTreeMap<&'static str, usize>,
    /// Number of VolumeSnapshots by state: `ready`, `pending` or `deleting`.
    pub(super) snapshots: BTreeMap<&'static str, usize>,
    /// Number of VolumeSnapshotContents by state: `ready`, `pending`, `released` or `deleting`.
    pub(super) snapshot_contents: BTreeMap<&'static str, usize>,
    /// Waiting operations by name, such as `provision`, `attach` or `delete`.
    pub(super) waiting: BTreeMap<&'static str, WaitingSummary>,
    /// Objects with a waiting operation whose age is at least that of `--stuck-after`, that has no recorded
    /// start, or that cannot finish without a user. The oldest is first; those without a recorded start are
    /// last.
    pub(super) stuck: Vec<StuckObject>,
    /// The newest errors, newest first: at most one per object and [`MAX_ERRORS`] in all.
    pub(super) errors: Vec<LastError>,
}

impl DriverStatus {
    /// The objects that need the driver, by kind: `3 PersistentVolumes`. Empty if the driver can be removed.
    pub(super) fn users(&self) -> Vec<String> {
        [
            (self.volumes.values().sum::<usize>(), "PersistentVolume"),
            (self.attachments.values().sum(), "VolumeAttachment"),
            (self.snapshot_contents.values().sum(), "VolumeSnapshotContent"),
            (self.journals.iter().map(|journal| journal.intents).sum(), "open CreateVolume request"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}{}", if count == 1 { "" } else { "s" }))
        .collect()
    }
}

/// Number of orphans of one kind in a driver's report of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OrphanCount {
    pub(super) namespace: String,
    pub(super) kind: OrphanKind,
    pub(super) count: u64,
}

/// A driver's intent journal in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JournalSummary {
    pub(super) namespace: String,
    /// Number of intents, including undecodable ones.
    pub(super) intents: usize,
    /// Number of intents that this version cannot read.
    pub(super) undecodable: usize,
    /// Age of the oldest intent in seconds, if any age is recorded.
    pub(super) oldest_seconds: Option<i64>,
}

/// Waiting operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitingSummary {
    /// Number of objects.
    pub(super) count: usize,
    /// Age of the oldest operation in seconds, if any age is known.
    pub(super) oldest_seconds: Option<i64>,
}

/// Reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportedObject {
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// An object with a stuck operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StuckObject {
    #[serde(flatten)]
    pub(super) object: ReportedObject,
    /// The waiting operation, as in [`DriverStatus::waiting`].
    pub(super) operation: &'static str,
    /// Age of the operation in seconds; absent if its start is not recorded.
    pub(super) seconds: Option<i64>,
    /// Reason: from the state of this object and of related objects, else the newest error of this object,
    /// else `no reason reported`.
    pub(super) reason: String,
}

/// An error of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastError {
    #[serde(flatten)]
    pub(super) object: ReportedObject,
    pub(super) time: Timestamp,
    pub(super) message: String,
}

/// A waiting operation.
struct PendingOperation {
    object: ReportedObject,
    operation: &'static str,
    /// Start of the operation; absent if it is not recorded.
    since: Option<Timestamp>,
    /// Reason, from the object or from related objects.
    reason: Option<String>,
    /// Set if the operation cannot finish without a user.
    permanent: bool,
}

fn seconds_since(since: Timestamp, now: Timestamp) -> i64 {
    now.duration_since(since).as_secs().max(0)
}

/// Waiting operation of a claim: its name, its start, the reason, and `true` if it cannot finish without a
/// user.
type ClaimOperation = (&'static str, Option<Timestamp>, Option<String>, bool);

/// Intermediate state of building a [`ClusterStatus`].
struct StatusBuilder<'a> {
    objects: &'a StatusObjects,
    volumes: HashMap<&'a str, &'a PersistentVolume>,
    classes: HashMap<&'a str, &'a StorageClass>,
    nodes: HashMap<&'a str, &'a CSINode>,
    snapshots: SnapshotLookup<'a>,
    /// The newest warning of an object, by uid.
    warnings: HashMap<&'a str, (Timestamp, &'a Event)>,
    drivers: BTreeMap<Option<String>, DriverStatus>,
    pending: Vec<(Option<String>, PendingOperation)>,
}

impl ClusterStatus {
    /// Summarizes the objects. Operations of the age `stuck_after` or older count as stuck, as do those
    /// without a recorded start and those that cannot finish without a user.
    pub(super) fn from_objects(objects: &StatusObjects, now: Timestamp, stuck_after: Duration) -> Self {
        let mut builder = StatusBuilder::new(objects);
        builder.add_drivers();
        for claim in &objects.claims {
            builder.add_claim(claim);
        }
        for volume in &objects.volumes {
            builder.add_volume(volume);
        }
        for attachment in &objects.attachments {
            builder.add_attachment(attachment);
        }
        for snapshot in &objects.snapshots.snapshots {
            builder.add_snapshot(snapshot);
        }
        for content in &objects.snapshots.contents {
            builder.add_snapshot_content(content);
        }
        for shard in &objects.journals {
            builder.add_journal(shard, now);
        }
        builder.build(now, stuck_after)
    }
}

impl<'a> StatusBuilder<'a> {
    fn new(objects: &'a StatusObjects) -> Self {
        let mut warnings: HashMap<&str, (Timestamp, &Event)> = HashMap::new();
        for event in &objects.events {
            let Some(uid) = event.involved_object.uid.as_deref() else { continue };
            let seen_at = last_seen(event);
            if warnings.get(uid).is_none_or(|(newest, _)| *newest < seen_at) {
                warnings.insert(uid, (seen_at, event));
            }
        }
        Self {
            objects,
            volumes: by_name(&objects.volumes, |object| &object.metadata),
            classes: by_name(&objects.classes, |object| &object.metadata),
            nodes: by_name(&objects.nodes, |object| &object.metadata),
            snapshots: SnapshotLookup::new(&objects.snapshots, &objects.claims, &objects.forbidden),
            warnings,
            drivers: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    fn driver_status(&mut self, driver: Option<&str>) -> &mut DriverStatus {
        let driver = driver.map(str::to_owned);
        self.drivers.entry(driver.clone()).or_insert_with(|| DriverStatus {
            driver,
            // Kubernetes' default without a CSIDriver.
            attach_required: true,
            ..DriverStatus::default()
        })
    }

    /// Adds every driver that a CSIDriver, a CSINode or an orphan report names, including unused ones.
    fn add_drivers(&mut self) {
        let objects = self.objects;
        for driver in &objects.drivers {
            let attach_required = driver.spec.attach_required.unwrap_or(true);
            let status = self.driver_status(driver.metadata.name.as_deref());
            (status.installed, status.attach_required) = (true, attach_required);
        }
        for driver in objects.nodes.iter().flat_map(|node| &node.spec.drivers) {
            self.driver_status(Some(&driver.name)).nodes += 1;
        }
        for (driver, count) in &objects.orphans {
            self.driver_status(Some(driver)).orphans.push(count.clone());
        }
    }

    /// The driver of a claim: that of its volume; without a volume, or if the volume was not listed, that of
    /// its class or else of its provisioner annotation. `None` for a volume without CSI source, for a class
    /// with the provisioner `kubernetes.io/no-provisioner`, and if neither class nor annotation exists.
    fn driver_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let spec = claim.spec.as_ref();
        let volume =
            spec.and_then(|spec| spec.volume_name.as_deref()).and_then(|name| self.volumes.get(name));
        if let Some(volume) = volume {
            return driver_of_volume(volume).map(str::to_owned);
        }
        let class = class_of_claim(claim).and_then(|name| self.classes.get(name));
        let requested_provisioner =
            || annotation(&claim.metadata, names::STORAGE_PROVISIONER).map(str::to_owned);
        let provisioner = class.map(|class| class.provisioner.clone()).or_else(requested_provisioner);
        provisioner.filter(|name| name != NO_PROVISIONER)
    }

    fn add_claim(&mut self, claim: &'a PersistentVolumeClaim) {
        let driver = self.driver_of(claim);
        let object = reported_object("PersistentVolumeClaim", &claim.metadata);
        let (state, operation) = self.claim_state(claim);
        *self.driver_status(driver.as_deref()).claims.entry(state).or_default() += 1;
        if let Some((operation, since, reason, permanent)) = operation {
            self.pending.push((
                driver.clone(),
                PendingOperation { object: object.clone(), operation, since, reason, permanent },
            ));
        }
        self.add_warning(driver, object, &claim.metadata);
    }

    /// State of a claim, and its waiting operation if it has one.
    fn claim_state(&self, claim: &PersistentVolumeClaim) -> (&'static str, Option<ClaimOperation>) {
        let created = timestamp_or_epoch(claim.metadata.creation_timestamp.as_ref());
        if let Some(since) = &claim.metadata.deletion_timestamp {
            return ("deleting", Some((DELETE, Some(since.0), finalizers_text(&claim.metadata), false)));
        }
        let status = claim.status.as_ref();
        let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Lost") => {
                let reason = match bound_to {
                    Some(volume) => format!("PersistentVolume {volume} does not exist"),
                    None => "the claim's PersistentVolume does not exist".to_owned(),
                };
                return ("lost", Some(("bind", Some(created), Some(reason), true)));
            }
            Some("Bound") => {}
            Some(_) | None => return self.unbound_claim_state(claim, created, bound_to),
        }
        if let Some(operation) = expansion(claim, created) {
            return ("resizing", Some(operation));
        }
        modification(claim, created).map_or(("bound", None), |operation| ("modifying", Some(operation)))
    }

    fn unbound_claim_state(
        &self,
        claim: &PersistentVolumeClaim,
        created: Timestamp,
        bound_to: Option<&str>,
    ) -> (&'static str, Option<ClaimOperation>) {
        if let Some(volume) = bound_to.filter(|name| !name.is_empty()) {
            let missing = !self.volumes.contains_key(volume);
            let reason = missing.then(|| format!("PersistentVolume {volume} does not exist"));
            return ("pending", Some(("bind", Some(created), reason, false)));
        }
        let name = class_of_claim(claim).filter(|name| !name.is_empty());
        let Some(name) = name else {
            let reason = "the claim has no class: expected a matching volume, created manually".to_owned();
            return ("pending", Some(("bind", Some(created), Some(reason), false)));
        };
        let Some(class) = self.classes.get(name) else {
            let can_list_classes = !self.objects.forbidden.contains(&"storageclasses");
            let reason = can_list_classes.then(|| format!("StorageClass {name} does not exist"));
            return ("pending", Some(("provision", Some(created), reason, false)));
        };
        if class.provisioner == NO_PROVISIONER {
            let reason = format!(
                "StorageClass {name} has no provisioner: expected a matching volume, created manually"
            );
            return ("pending", Some(("bind", Some(created), Some(reason), false)));
        }
        let waits_for_pod = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
            && annotation(&claim.metadata, names::SELECTED_NODE).is_none();
        if waits_for_pod {
            ("waiting for a pod", None)
        } else {
            ("pending", Some(("provision", Some(created), None, false)))
        }
    }

    fn add_volume(&mut self, volume: &'a PersistentVolume) {
        let driver = driver_of_volume(volume).map(str::to_owned);
        let object = reported_object("PersistentVolume", &volume.metadata);
        let status = volume.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let changed = status.and_then(|status| status.last_phase_transition_time.as_ref());
        let since = changed.or(volume.metadata.creation_timestamp.as_ref());
        let deletes = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
            == Some("Delete");
        let status_message =
            status.and_then(|status| status.message.clone()).filter(|message| !message.is_empty());
        let (state, operation) = match (&volume.metadata.deletion_timestamp, phase) {
            (Some(since), _) => {
                ("deleting", Some((since.0, status_message.or_else(|| finalizers_text(&volume.metadata)))))
            }
            (None, Some("Bound")) => ("bound", None),
            (None, Some("Available")) => ("available", None),
            (None, Some("Released")) => {
                ("released", deletes.then(|| (timestamp_or_epoch(since), status_message)))
            }
            (None, Some("Failed")) => ("failed", Some((timestamp_or_epoch(since), status_message))),
            (None, Some(_) | None) => ("pending", None),
        };
        *self.driver_status(driver.as_deref()).volumes.entry(state).or_default() += 1;
        if let Some((since, reason)) = operation {
            let pending = PendingOperation {
                object: object.clone(),
                operation: DELETE,
                since: Some(since),
                reason,
                permanent: false,
            };
            self.pending.push((driver.clone(), pending));
        }
        self.add_warning(driver, object, &volume.metadata);
    }

    fn add_attachment(&mut self, attachment: &'a VolumeAttachment) {
        let driver = Some(attachment.spec.attacher.clone());
        let object = reported_object("VolumeAttachment", &attachment.metadata);
        let status = attachment.status.as_ref();
        let deleting = attachment.metadata.deletion_timestamp.as_ref();
        let attached = status.is_some_and(|status| status.attached);
        let error = status.and_then(|status| {
            if deleting.is_some() { status.detach_error.as_ref() } else { status.attach_error.as_ref() }
        });
        let (node, volume) =
            (&attachment.spec.node_name, attachment.spec.source.persistent_volume_name.as_deref());
        let prerequisite = self.missing_prerequisite(&attachment.spec.attacher, node, volume);
        let reason = error.and_then(volume_error_message).or(prerequisite);
        let (state, operation) = match deleting {
            Some(since) => ("detaching", Some(("detach", since.0))),
            None if attached => ("attached", None),
            None => (
                "attaching",
                Some(("attach", timestamp_or_epoch(attachment.metadata.creation_timestamp.as_ref()))),
            ),
        };
        *self.driver_status(driver.as_deref()).attachments.entry(state).or_default() += 1;
        if let Some((operation, since)) = operation {
            let pending = PendingOperation {
                object: object.clone(),
                operation,
                since: Some(since),
                reason,
                permanent: false,
            };
            self.pending.push((driver.clone(), pending));
        }
        if let Some((error, message)) = error.and_then(|error| Some((error, volume_error_message(error)?))) {
            let time = timestamp_or_epoch(error.time.as_ref());
            self.driver_status(driver.as_deref()).errors.push(LastError {
                object: object.clone(),
                time,
                message,
            });
        }
        self.add_warning(driver, object, &attachment.metadata);
    }

    fn add_snapshot(&mut self, snapshot: &'a VolumeSnapshot) {
        let claim = self.snapshots.claim_of(snapshot);
        let driver = self.snapshots.driver_of(snapshot).or_else(|| self.driver_of(claim?));
        let object = reported_object("VolumeSnapshot", &snapshot.metadata);
        let SnapshotState { state, operation, error } = self.snapshots.snapshot_state(snapshot, claim);
        *self.driver_status(driver.as_deref()).snapshots.entry(state).or_default() += 1;
        self.add_snapshot_details(driver, object, &snapshot.metadata, (operation, error));
    }

    fn add_snapshot_content(&mut self, content: &'a VolumeSnapshotContent) {
        let driver = Some(content.spec.driver.clone());
        let object = reported_object("VolumeSnapshotContent", &content.metadata);
        let SnapshotState { state, operation, error } = self.snapshots.content_state(content);
        *self.driver_status(driver.as_deref()).snapshot_contents.entry(state).or_default() += 1;
        self.add_snapshot_details(driver, object, &content.metadata, (operation, error));
    }

    /// Adds the waiting operation, the error and the newest warning of a VolumeSnapshot or its content.
    fn add_snapshot_details(
        &mut self,
        driver: Option<String>,
        object: ReportedObject,
        metadata: &'a ObjectMeta,
        (operation, error): (Option<SnapshotOperation>, Option<(Timestamp, String)>),
    ) {
        if let Some(SnapshotOperation { operation, since, reason }) = operation {
            let pending = PendingOperation {
                object: object.clone(),
                operation,
                since: Some(since),
                reason,
                permanent: false,
            };
            self.pending.push((driver.clone(), pending));
        }
        if let Some((time, message)) = error {
            let error = LastError { object: object.clone(), time, message };
            self.driver_status(driver.as_deref()).errors.push(error);
        }
        self.add_warning(driver, object, metadata);
    }

    /// Adds the intents of a journal's ConfigMap. An intent whose claim is deleted is a waiting operation: no
    /// object stands for its volume.
    fn add_journal(&mut self, shard: &JournalShard, now: Timestamp) {
        let claims: BTreeSet<&str> =
            self.objects.claims.iter().filter_map(|claim| claim.metadata.uid.as_deref()).collect();
        let can_list_claims = !self.objects.forbidden.contains(&"persistentvolumeclaims");
        for intent in &shard.intents {
            if !can_list_claims || claims.contains(&*intent.claim_uid.to_string()) {
                continue;
            }
            let (namespace, claim) = (&intent.claim_namespace, &intent.claim_name);
            let object =
                ReportedObject { kind: "PersistentVolume", namespace: None, name: intent.volume.clone() };
            let reason = format!(
                "CreateVolume has no final result, and claim {namespace}/{claim} is deleted: the volume is \
                 deleted once it is known"
            );
            let pending = PendingOperation {
                object,
                operation: "create",
                since: intent.recorded_at,
                reason: Some(reason),
                permanent: false,
            };
            self.pending.push((Some(shard.driver.clone()), pending));
        }
        let oldest = shard.intents.iter().filter_map(|intent| intent.recorded_at).min();
        let oldest = oldest.map(|oldest| seconds_since(oldest, now));
        let intents = shard.intents.len().saturating_add(shard.undecodable);
        let journals = &mut self.driver_status(Some(&shard.driver)).journals;
        match journals.iter_mut().find(|journal| journal.namespace == shard.namespace) {
            Some(journal) => {
                journal.intents += intents;
                journal.undecodable += shard.undecodable;
                journal.oldest_seconds = journal.oldest_seconds.max(oldest);
            }
            None => journals.push(JournalSummary {
                namespace: shard.namespace.clone(),
                intents,
                undecodable: shard.undecodable,
                oldest_seconds: oldest,
            }),
        }
    }

    /// The missing PersistentVolume, CSINode or driver registration that delays an attachment.
    fn missing_prerequisite(&self, driver: &str, node: &str, volume: Option<&str>) -> Option<String> {
        let can_list = |kind| !self.objects.forbidden.contains(&kind);
        if let Some(volume) = volume.filter(|name| !self.volumes.contains_key(name))
            && can_list("persistentvolumes")
        {
            return Some(format!("PersistentVolume {volume} does not exist"));
        }
        if !can_list("csinodes") {
            return None;
        }
        match self.nodes.get(node) {
            None => Some(format!("the node {node} has no CSINode")),
            Some(found) if !found.spec.drivers.iter().any(|registered| registered.name == driver) => {
                Some(format!("the driver is not registered on the node {node}"))
            }
            Some(_) => None,
        }
    }

    /// Adds the newest warning of an object to the errors.
    fn add_warning(&mut self, driver: Option<String>, object: ReportedObject, metadata: &'a ObjectMeta) {
        let warning = metadata.uid.as_deref().and_then(|uid| self.warnings.get(uid).copied());
        if let Some((time, event)) = warning {
            let message = event_text(event);
            self.driver_status(driver.as_deref()).errors.push(LastError { object, time, message });
        }
    }

    fn build(mut self, now: Timestamp, stuck_after: Duration) -> ClusterStatus {
        let limit = i64::try_from(stuck_after.as_secs()).unwrap_or(i64::MAX);
        for status in self.drivers.values_mut() {
            status.errors.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.object.cmp(&b.object)));
            // Show only the newest error of each object.
            let mut listed_objects = BTreeSet::new();
            status.errors.retain(|error| listed_objects.insert(error.object.clone()));
        }
        for (driver, pending) in std::mem::take(&mut self.pending) {
            let age = pending.since.map(|since| seconds_since(since, now));
            let status = self.driver_status(driver.as_deref());
            let waiting = status
                .waiting
                .entry(pending.operation)
                .or_insert(WaitingSummary { count: 0, oldest_seconds: None });
            waiting.count += 1;
            waiting.oldest_seconds = waiting.oldest_seconds.max(age);
            // An operation without a recorded start counts as stuck.
            if age.is_some_and(|age| age < limit) && !pending.permanent {
                continue;
            }
            let last_error = status.errors.iter().find(|error| error.object == pending.object);
            // A finalizer only says that something is left to do.
            let failed_since = |error: &&LastError| pending.since.is_some_and(|since| error.time >= since);
            let failure = last_error.filter(|_| pending.operation == DELETE).filter(failed_since);
            let message = |error: &LastError| error.message.clone();
            let reason = failure.map(message).or(pending.reason).or_else(|| last_error.map(message));
            status.stuck.push(StuckObject {
                object: pending.object,
                operation: pending.operation,
                seconds: age,
                reason: reason.unwrap_or_else(|| "no reason reported".to_owned()),
            });
        }
        let without_driver = self.drivers.remove(&None);
        let mut drivers: Vec<DriverStatus> = self.drivers.into_values().chain(without_driver).collect();
        for status in &mut drivers {
            status.orphans.sort();
            status.journals.sort_by(|a, b| a.namespace.cmp(&b.namespace));
            status.stuck.sort_by(|a, b| b.seconds.cmp(&a.seconds).then_with(|| a.object.cmp(&b.object)));
            status.errors.truncate(MAX_ERRORS);
        }
        ClusterStatus { drivers, forbidden: self.objects.forbidden.clone() }
    }
}

fn reported_object(kind: &'static str, metadata: &ObjectMeta) -> ReportedObject {
    let name = metadata.name.clone().unwrap_or_default();
    ReportedObject { kind, namespace: metadata.namespace.clone(), name }
}

fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn driver_of_volume(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.csi.as_ref().map(|csi| csi.driver.as_str())
}

fn class_of_claim(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, names::CLASS_BETA)
        .or_else(|| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()))
}

/// Unfinished expansion of a bound claim.
fn expansion(claim: &PersistentVolumeClaim, created: Timestamp) -> Option<ClaimOperation> {
    let error = |kind| find_true_condition(claim, kind).and_then(condition_message);
    let on_node = find_true_condition(claim, "FileSystemResizePending").is_some();
    let kinds = ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];
    if let Some(since) = oldest_transition(claim, &kinds, created) {
        let node = "kubelet expands the filesystem when a pod uses the volume".to_owned();
        return Some(match on_node {
            true => ("resize on the node", Some(since), error("NodeResizeError").or(Some(node)), false),
            false => {
                let error_message = error("ControllerResizeError").or_else(|| error("NodeResizeError"));
                ("resize", Some(since), error_message.or_else(|| error("Resizing")), false)
            }
        });
    }
    let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
    let size = |amounts: &BTreeMap<String, Amount>| Quantity::parse(&amounts.get("storage")?.0).ok();
    let request = spec.resources.as_ref()?.requests.as_ref().and_then(size)?;
    let capacity = status.capacity.as_ref().and_then(size)?;
    (request > capacity).then_some(("resize", None, None, false))
}

/// Unfinished modification of a bound claim.
fn modification(claim: &PersistentVolumeClaim, created: Timestamp) -> Option<ClaimOperation> {
    let status = claim.status.as_ref()?;
    let since = oldest_transition(claim, &["ModifyingVolume", "ModifyVolumeError"], created);
    let desired_class = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let desired_class = desired_class.filter(|desired_class| !desired_class.is_empty());
    let pending = status.modify_volume_status.as_ref().is_some_and(|status| status.status == "Pending");
    if since.is_none()
        && (desired_class.is_none()
            || status.current_volume_attributes_class_name.as_deref() == desired_class)
    {
        return None;
    }
    let missing = || {
        let desired_class = desired_class.filter(|_| pending)?;
        Some(format!("VolumeAttributesClass {desired_class} does not exist or belongs to another driver"))
    };
    let error = || find_true_condition(claim, "ModifyVolumeError").and_then(condition_message);
    let progress_message = || find_true_condition(claim, "ModifyingVolume").and_then(condition_message);
    Some(("modify", since, missing().or_else(error).or_else(progress_message), false))
}

/// Finds a condition with status True.
fn find_true_condition<'a>(
    claim: &'a PersistentVolumeClaim,
    kind: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.status == "True" && condition.type_ == kind)
}

/// Oldest transition time of the given conditions with status True. A condition without a time counts since
/// the creation of the claim.
fn oldest_transition(claim: &PersistentVolumeClaim, kinds: &[&str], created: Timestamp) -> Option<Timestamp> {
    let matching = kinds.iter().filter_map(|kind| find_true_condition(claim, kind));
    matching.map(|condition| condition.last_transition_time.as_ref().map_or(created, |time| time.0)).min()
}

fn condition_message(condition: &PersistentVolumeClaimCondition) -> Option<String> {
    condition.message.clone().filter(|message| !message.is_empty())
}

fn volume_error_message(error: &VolumeError) -> Option<String> {
    error.message.clone().filter(|message| !message.is_empty())
}

/// Time of the last occurrence of an event.
fn last_seen(event: &Event) -> Timestamp {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = || event.event_time.as_ref().map(|time| time.0);
    let created = || event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.max(last).or_else(first).or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn event_text(event: &Event) -> String {
    let reason = event.reason.as_deref().unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    match (reason.is_empty(), message.is_empty()) {
        (false, false) => format!("{reason}: {message}"),
        _ => format!("{reason}{message}"),
    }
}
