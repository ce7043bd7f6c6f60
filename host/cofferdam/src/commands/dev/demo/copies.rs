//! The demo's copies of its volume: a snapshot, a claim that is restored from it, and a claim that is cloned
//! from the volume.
//!
//! The bytes of the copies are compared if the nodes mount volumes and the driver stores their data.
//! Otherwise the demo compares only what the driver returns.

use cofferdam_backend::Call;
use cofferdam_domain::{
    Quantity, names,
    storage::{Ability, ErrorKind, StorageError},
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _, api::ApiResource, core::DynamicObject};
use serde_json::{Value, json};

use super::{
    Demo, DemoPod, DemoVolume,
    data::VolumeFile,
    error::DemoError,
    objects::{self, NAME, NAMESPACE, STEP_TIMEOUT, ensure, ensure_empty, ensure_equal},
};
use crate::{
    snapshot_kinds::{self, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
    wait::{self, Expectation},
};

/// Name of the claim and pod with the restored volume.
const RESTORED: &str = "restored";
/// Name of the claim and pod with the cloned volume.
const CLONED: &str = "cloned";
/// Data of the volume when the snapshot is taken.
const DATA: &str = "written before the snapshot";
/// Data of the volume after the snapshot.
const CHANGED_DATA: &str = "changed after the snapshot";

/// A snapshot that is ready.
struct DemoSnapshot {
    /// Name of the VolumeSnapshotContent.
    content: String,
    /// `status.snapshotHandle` of the VolumeSnapshotContent.
    handle: String,
}

/// A volume to create from a source.
struct CopyRequest<'a> {
    /// Name of the claim and of the pod.
    name: &'static str,
    /// `spec.dataSource` of the claim.
    source: Value,
    /// Handle of the source at the driver.
    source_handle: &'a str,
    /// The source for output.
    source_text: &'static str,
    /// Expected data; `None` if data is not compared.
    data: Option<&'static str>,
}

/// The copies that the demo makes.
struct CopyPlan {
    takes_snapshot: bool,
    /// Set if a snapshot can be restored.
    restores: bool,
    clones: bool,
}

impl Demo<'_> {
    /// Takes a snapshot of the volume, restores it and clones the volume, compares, and deletes all three.
    /// Leaves out what the driver does not support, with the reason.
    pub(super) async fn copy_volume(
        &self,
        volume: &DemoVolume,
        pod: Option<&DemoPod>,
        size: &'static str,
    ) -> Result<(), DemoError> {
        let plan = self.plan_copies();
        if !plan.takes_snapshot && !plan.clones {
            return Ok(());
        }
        let file = match self.volume_file(volume, pod).await? {
            Ok(file) => Some(file),
            Err(reason) => {
                self.log_step(format!("writes no data, because {reason}: compares what the driver returns"));
                None
            }
        };
        self.write_data(file.as_ref(), DATA).await?;
        let snapshot = match plan.takes_snapshot {
            true => Some(self.take_snapshot(volume).await?),
            false => None,
        };
        if snapshot.is_some() {
            self.write_data(file.as_ref(), CHANGED_DATA).await?;
        }
        let mut copies = Vec::new();
        if let Some(snapshot) = snapshot.as_ref().filter(|_| plan.restores) {
            let request = CopyRequest {
                name: RESTORED,
                source: json!({
                    "apiGroup": snapshot_kinds::GROUP, "kind": "VolumeSnapshot", "name": NAME,
                }),
                source_handle: &snapshot.handle,
                source_text: "from the snapshot",
                data: file.is_some().then_some(DATA),
            };
            copies.push(self.create_copy(&request, volume, size).await?);
        }
        if plan.clones {
            let request = CopyRequest {
                name: CLONED,
                source: json!({"kind": "PersistentVolumeClaim", "name": NAME}),
                source_handle: &volume.handle,
                source_text: "from the claim",
                data: file.is_some().then_some(if snapshot.is_some() { CHANGED_DATA } else { DATA }),
            };
            copies.push(self.create_copy(&request, volume, size).await?);
        }
        self.delete_copies(&copies, snapshot.as_ref()).await
    }

    /// Decides which copies to make, and prints the reason for each one that is left out.
    fn plan_copies(&self) -> CopyPlan {
        let abilities = self.backend.abilities();
        let snapshot_problem = match (abilities.contains(&Ability::Snapshots), self.has_snapshot_roles) {
            (true, true) => None,
            (false, _) => Some("the driver does not support snapshots"),
            (true, false) => Some("expected the roles snapshot-controller and snapshotter"),
        };
        let restores = abilities.contains(&Ability::Restoring);
        let clones = abilities.contains(&Ability::Cloning);
        match snapshot_problem {
            Some(problem) => self.log_step(format!("takes no snapshot: {problem}")),
            None if restores => {}
            None => self.log_step("restores no snapshot: the driver does not support it".to_owned()),
        }
        if !clones {
            self.log_step("clones no volume: the driver does not support it".to_owned());
        }
        CopyPlan { takes_snapshot: snapshot_problem.is_none(), restores, clones }
    }

    async fn write_data(&self, file: Option<&VolumeFile>, text: &str) -> Result<(), DemoError> {
        let Some(file) = file else { return Ok(()) };
        file.write(text).await?;
        self.log_step(format!("writes {text:?} to the volume"));
        Ok(())
    }

    /// Takes a snapshot of the volume, waits until it is ready, and compares it with what the driver returns.
    async fn take_snapshot(&self, volume: &DemoVolume) -> Result<DemoSnapshot, DemoError> {
        self.log_step(format!("applies VolumeSnapshotClass {NAME}"));
        let classes = self.dynamic_api::<VolumeSnapshotClass>();
        let class = self.snapshot_class.clone();
        objects::create(&classes, "apply VolumeSnapshotClass", "VolumeSnapshotClass", class).await?;
        self.log_step(format!("applies VolumeSnapshot {NAME} of the claim"));
        let kind = ApiResource::erase::<VolumeSnapshot>(&());
        let snapshots: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &kind);
        let manifest = objects::snapshot_manifest();
        objects::create(&snapshots, "apply VolumeSnapshot", "VolumeSnapshot", manifest).await?;

        let is_ready = |snapshot: Option<&VolumeSnapshot>| {
            snapshot.is_some_and(|one| one.status.ready_to_use == Some(true))
        };
        let state = |snapshot: Option<&VolumeSnapshot>| match snapshot {
            Some(snapshot) => {
                let failure = snapshot.status.error.as_ref().and_then(|failure| failure.message.as_deref());
                failure.map_or_else(|| "not ready".to_owned(), |message| format!("not ready ({message})"))
            }
            None => "absent".to_owned(),
        };
        let expectation =
            Expectation { expected: "ready", is_met: &is_ready, describe: &state, timeout: STEP_TIMEOUT };
        let snapshot = wait::wait_for(&self.snapshots(), NAME, &expectation).await?;
        let status = snapshot.map(|snapshot| snapshot.status).unwrap_or_default();
        let content = status.bound_volume_snapshot_content_name.unwrap_or_default();
        let contents: Api<VolumeSnapshotContent> = Api::all(self.client.clone());
        let found = objects::get(&contents, &content, "get VolumeSnapshotContent").await?;
        ensure_equal("the driver of the VolumeSnapshotContent", &found.spec.driver, self.driver)?;
        let handle = found.status.snapshot_handle.unwrap_or_default();
        let restore_size = status.restore_size.map(|size| format!(", {}", size.0)).unwrap_or_default();
        self.log_step(format!("sees the snapshot ready{restore_size}"));
        self.ensure_in_state("the driver's state of the snapshot", &handle)?;
        self.compare_snapshot(&handle, volume).await?;
        Ok(DemoSnapshot { content, handle })
    }

    /// Compares a snapshot with what the driver returns for its handle.
    async fn compare_snapshot(&self, handle: &str, volume: &DemoVolume) -> Result<(), DemoError> {
        match self.get_snapshot(handle).await {
            Ok(found) => {
                ensure_equal("the snapshot that the driver returns", found.handle.as_str(), handle)?;
                ensure_equal("the driver's source of the snapshot", found.source.as_str(), &volume.handle)?;
                ensure("the driver's snapshot", "not ready", "ready", found.ready)?;
                self.log_step(format!("compares the driver's snapshot: {handle}, source {}", found.source));
                Ok(())
            }
            Err(error) if error.kind == ErrorKind::Unimplemented => {
                self.log_step("compares no snapshot: the driver does not return any".to_owned());
                Ok(())
            }
            Err(source) => Err(DemoError::Driver { call: "GetSnapshot", source }),
        }
    }

    async fn get_snapshot(&self, handle: &str) -> Result<cofferdam_domain::storage::Snapshot, StorageError> {
        self.backend.get_snapshot(Call::with_deadline(STEP_TIMEOUT), handle.into()).await
    }

    /// Creates a claim from a source and a pod with it, and compares the volume.
    async fn create_copy(
        &self,
        request: &CopyRequest<'_>,
        original: &DemoVolume,
        size: &'static str,
    ) -> Result<DemoVolume, DemoError> {
        let name = request.name;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.log_step(format!("applies PersistentVolumeClaim {name} {}, {size}", request.source_text));
        let manifest = objects::claim_manifest(name, size, request.source.clone());
        objects::create(&claims, "apply PersistentVolumeClaim", "PersistentVolumeClaim", manifest).await?;
        let pod = match self.nodes {
            Some(_) => Some(self.create_pod(name).await?),
            None => None,
        };
        let volume = self.wait_for_bound_claim(name, size).await?;
        let differs = volume.handle != original.handle;
        ensure("the handle of the copy", &volume.handle, "another one than the source's", differs)?;
        self.ensure_in_state("the driver's state of the copy", &volume.handle)?;
        self.compare_volume(name, &volume, request.source_handle, size).await?;
        if let Some(expected) = request.data {
            let file = self.volume_file(&volume, pod.as_ref()).await?;
            let file = file.map_err(|reason| DemoError::Mismatch {
                subject: "the data of the copy",
                found: format!("not readable, because {reason}"),
                expected: format!("{expected:?}"),
            })?;
            ensure_equal("the data of the copy", &file.read().await?, expected)?;
            self.log_step(format!("reads {expected:?} from {name}"));
        }
        Ok(volume)
    }

    /// Compares a copy with what the driver returns for its handle: the size, and an attribute that names the
    /// source if there is one. The API of drivers has no field for the source of a volume.
    async fn compare_volume(
        &self,
        name: &str,
        volume: &DemoVolume,
        source_handle: &str,
        size: &str,
    ) -> Result<(), DemoError> {
        let mut returned = Vec::new();
        if self.backend.abilities().contains(&Ability::Inspection) {
            let handle = volume.handle.as_str().into();
            let found = self.backend.get_volume(Call::with_deadline(STEP_TIMEOUT), handle).await;
            let found =
                found.map_err(|source| DemoError::Driver { call: "ControllerGetVolume", source })?.volume;
            ensure_equal("the volume that the driver returns", found.handle.as_str(), &volume.handle)?;
            if let Some(capacity) = found.capacity {
                let requested = Quantity::parse(size).ok().and_then(Quantity::bytes_within_int64);
                let is_enough = requested.is_some_and(|requested| capacity >= requested);
                ensure("the driver's size of the copy", &format!("{capacity} bytes"), size, is_enough)?;
                returned.push(format!("{capacity} bytes"));
            }
        }
        let of_driver = |key: &str| !key.starts_with(names::RESERVED_ATTRIBUTE_PREFIX);
        let attributes = volume.attributes.iter();
        returned.extend(
            attributes
                .filter(|(key, value)| of_driver(key) && *value == source_handle)
                .map(|(key, value)| format!("{key}={value}")),
        );
        if !returned.is_empty() {
            self.log_step(format!("compares the driver's volume of {name}: {}", returned.join(", ")));
        }
        Ok(())
    }

    /// Deletes the copies and the snapshot, and checks that nothing remains of them.
    async fn delete_copies(
        &self,
        copies: &[DemoVolume],
        snapshot: Option<&DemoSnapshot>,
    ) -> Result<(), DemoError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        self.log_step(match (copies.is_empty(), snapshot.is_some()) {
            (false, true) => "deletes the copies and the snapshot".to_owned(),
            (false, false) => "deletes the copies".to_owned(),
            (true, _) => "deletes the snapshot".to_owned(),
        });
        for copy in copies {
            if self.nodes.is_some() {
                objects::delete(&pods, &copy.claim, "delete Pod").await?;
            }
            objects::delete(&claims, &copy.claim, "delete PersistentVolumeClaim").await?;
        }
        if snapshot.is_some() {
            objects::delete(&self.snapshots(), NAME, "delete VolumeSnapshot").await?;
        }
        for copy in copies {
            objects::wait_for_deletion(&pods, &copy.claim).await?;
            objects::wait_for_deletion(&claims, &copy.claim).await?;
            objects::wait_for_deletion(&volumes, copy.name.as_str()).await?;
            ensure_empty(
                "the driver's state of the copy",
                &self.state_keys_of(&copy.handle).unwrap_or_default(),
            )?;
        }
        if let Some(snapshot) = snapshot {
            self.check_deleted_snapshot(snapshot).await?;
        }
        Ok(())
    }

    /// Waits until the snapshot is deleted, and checks that the API and the driver have none.
    async fn check_deleted_snapshot(&self, snapshot: &DemoSnapshot) -> Result<(), DemoError> {
        let contents: Api<VolumeSnapshotContent> = Api::all(self.client.clone());
        objects::wait_for_deletion(&self.snapshots(), NAME).await?;
        objects::wait_for_deletion(&contents, &snapshot.content).await?;
        let remaining = objects::list(&contents, "list VolumeSnapshotContents").await?;
        let remaining: Vec<String> = remaining.iter().map(|content| content.name_any()).collect();
        ensure_empty("the list of VolumeSnapshotContents", &remaining)?;
        let keys = self.state_keys_of(&snapshot.handle).unwrap_or_default();
        ensure_empty("the driver's state of the snapshot", &keys)?;
        match self.get_snapshot(&snapshot.handle).await {
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unimplemented) => {}
            Err(source) => return Err(DemoError::Driver { call: "GetSnapshot", source }),
            Ok(found) => {
                return ensure("the driver's snapshot", found.handle.as_str(), "nothing", false);
            }
        }
        objects::delete(&self.dynamic_api::<VolumeSnapshotClass>(), NAME, "delete VolumeSnapshotClass")
            .await?;
        self.log_step("finds no copy and no snapshot".to_owned());
        Ok(())
    }

    fn snapshots(&self) -> Api<VolumeSnapshot> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// API of a cluster-wide kind whose type has only some of the fields.
    fn dynamic_api<K: kube::Resource<DynamicType = ()>>(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()))
    }
}
