//! The fixture of the suite `pods`: a cluster with Cofferdam's roles and a real node. Helpers for claims and
//! pods, which the suite `node-shutdown` also uses.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Event, Namespace, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, LogParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    account::{Account, CLUSTER_ROLES},
    backend::{BackendFixture, NodeRoles},
    control_plane::{ControlPlane, ControlPlaneOptions, UNREPLACED_CONTROLLERS},
    image,
    node::{KubeletNode, mount_disk},
    process::{self, ManagedProcess},
    run::SuiteRun,
    snapshot_crds,
    wait::until,
};

/// Time limit of a wait, such as for the start or deletion of a pod.
pub(super) const TIMEOUT: Duration = Duration::from_secs(240);
/// Name of the node of [`PodFixture`].
pub(super) const NODE: &str = "node-1";
/// End of a script whose pod keeps running until it is terminated. Prints the line `done` first.
pub(super) const RUN_UNTIL_TERMINATED: &str = "echo done; trap exit TERM; sleep 3600 & wait";
/// Mount path of the volume in every pod; device path of a block volume.
pub(super) const MOUNT_PATH: &str = "/volume";

/// A StorageClass of the driver `memory` or `pool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VolumeClass {
    /// Name of the StorageClass.
    pub(super) name: &'static str,
    /// The driver: `memory` or `pool`.
    backend: &'static str,
    /// Value of the StorageClass parameter `kind`. Empty if the class does not have the parameter.
    kind: &'static str,
    /// True for the volume binding mode `Immediate`, false for `WaitForFirstConsumer`.
    pub(super) is_immediate: bool,
}

/// tmpfs volumes of the driver `memory`, attached by Cofferdam's attacher.
pub(super) const MEMORY: VolumeClass =
    VolumeClass { name: "memory", backend: "memory", kind: "", is_immediate: true };
/// Volumes of the driver `pool` that are directories of the node.
pub(super) const DIRECTORY: VolumeClass =
    VolumeClass { name: "directory", backend: "pool", kind: "directory", is_immediate: false };
/// Volumes of the driver `pool` that are disk image files of the node, which the role `node` maps to loop
/// devices. The file system, if any, is ext4.
pub(super) const IMAGE: VolumeClass =
    VolumeClass { name: "image", backend: "pool", kind: "image", is_immediate: false };

/// As [`IMAGE`], with the file system xfs.
pub(super) const XFS: VolumeClass =
    VolumeClass { name: "xfs", backend: "pool", kind: "image", is_immediate: false };

/// A cluster with one node and Cofferdam's roles.
pub(super) struct PodFixture<'a> {
    pub(super) run: &'a SuiteRun,
    pub(super) plane: ControlPlane,
    pub(super) node: KubeletNode,
    pub(super) memory: NodeRoles,
    pub(super) pool: NodeRoles,
    roles: Vec<ManagedProcess>,
}

impl<'a> PodFixture<'a> {
    pub(super) async fn new(run: &'a SuiteRun) -> Result<Self> {
        let options = ControlPlaneOptions {
            controllers: Some(UNREPLACED_CONTROLLERS.to_owned()),
            has_scheduler: true,
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(run, options).await?;
        let node = KubeletNode::start_on_disk(run, &plane, NODE).await?;
        snapshot_crds::install(plane.client()).await?;
        // Files of XFS share blocks, so the pool copies an image of a mounted volume at one moment.
        let disk = run.scratch().join("pool-disk");
        mount_disk("mkfs.xfs", &disk, POOL_BYTES, &pool_directory(run)).await?;
        let (memory, pool) = (BackendFixture::memory(run, NODE)?, BackendFixture::pool(run, NODE)?);
        let central = [CLUSTER_ROLES.as_slice(), &["snapshot-controller"]].concat();
        let account = Account::with_name(run, &plane, "central", &central, &[]).await?;
        let mut roles = vec![memory.start_roles(run, &account, &[]).await?];
        let local = ["provisioner", "resizer", "snapshotter"];
        let account = Account::with_flags(run, &plane, &local, &["--drivers=node"]).await?;
        // Node-local storage: the roles run on the node.
        roles.push(pool.start_roles(run, &account, &[format!("--node-name={NODE}")]).await?);
        create_driver_objects(&plane, &memory, &pool).await?;
        let root = node.root().to_owned();
        let (memory, pool) = (
            memory.start_node_roles(run, NODE, &root).await?,
            pool.start_node_roles(run, NODE, &root).await?,
        );
        Ok(Self { run, plane, node, memory, pool, roles })
    }

    /// Creates the namespace of a test.
    pub(super) async fn create_namespace(&self, name: &str) -> Result<TestNamespace> {
        let client = self.plane.client().clone();
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(TestNamespace::existing(client, name))
    }

    /// Waits until a claim is Bound, and then until the role `node` has no record of its volume: no pod of
    /// the node uses the volume, and it is not staged.
    pub(super) async fn wait_unstaged(
        &self,
        class: VolumeClass,
        namespace: &TestNamespace,
        claim: &str,
    ) -> Result<()> {
        let roles = if class.backend == "memory" { &self.memory } else { &self.pool };
        let handle = namespace
            .wait_bound(claim)
            .await?
            .spec
            .and_then(|spec| spec.csi)
            .context("no CSI volume")?
            .volume_handle;
        until(&format!("the volume of {claim} is unstaged"), TIMEOUT, async || {
            let records = roles.volume_records()?;
            ensure!(
                !records.iter().any(|record| record.contains(&format!("{handle:?}"))),
                "it is on the node"
            );
            Ok(())
        })
        .await
    }

    /// Stops everything, the node roles first. Checks that kubelet has unregistered the drivers, and no
    /// socket of the node roles is left.
    pub(super) async fn stop(mut self) -> Result<()> {
        for process in [&mut self.memory.process, &mut self.pool.process] {
            process.stop().await?;
        }
        until("kubelet has forgotten the drivers", TIMEOUT, async || {
            let node = Api::<CSINode>::all(self.plane.client().clone()).get(NODE).await?;
            ensure!(node.spec.drivers.is_empty(), "it knows {:?}", node.spec.drivers);
            Ok(())
        })
        .await?;
        for process in &mut self.roles {
            process.stop().await?;
        }
        for socket in
            [&self.memory, &self.pool].into_iter().flat_map(|roles| [&roles.socket, &roles.registration])
        {
            ensure!(!socket.exists(), "{} is left", socket.display());
        }
        process::run_to_completion("umount", &[&pool_directory(self.run).display().to_string()]).await?;
        self.node.stop().await?;
        self.plane.stop().await
    }
}

/// Size of the disk of the pool. The file is sparse.
const POOL_BYTES: u64 = 16 << 30;

/// The directory with the volumes of the driver `pool`.
pub(super) fn pool_directory(run: &SuiteRun) -> PathBuf {
    run.scratch().join("pool/volumes")
}

/// Creates the CSIDrivers of both drivers and all StorageClasses of this module. Only `memory` requires
/// attachment and allows inline volumes.
async fn create_driver_objects(
    plane: &ControlPlane,
    memory: &BackendFixture,
    pool: &BackendFixture,
) -> Result<()> {
    for (backend, attached) in [(memory, true), (pool, false)] {
        let modes: &[&str] = if attached { &["Persistent", "Ephemeral"] } else { &["Persistent"] };
        let driver: CSIDriver = serde_json::from_value(json!({
            "metadata": { "name": backend.driver() },
            "spec": {
                "attachRequired": attached,
                "podInfoOnMount": true,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": modes,
            },
        }))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &driver).await?;
    }
    for class in [MEMORY, DIRECTORY, IMAGE, XFS] {
        let driver = if class.backend == "memory" { memory.driver() } else { pool.driver() };
        let parameters = match class {
            XFS => json!({ "kind": class.kind, "csi.storage.k8s.io/fstype": "xfs" }),
            _ if class.kind.is_empty() => json!({}),
            _ => json!({ "kind": class.kind }),
        };
        let object: StorageClass = serde_json::from_value(json!({
            "metadata": { "name": class.name },
            "provisioner": driver,
            "parameters": parameters,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": if class.is_immediate { "Immediate" } else { "WaitForFirstConsumer" },
            "allowVolumeExpansion": true,
        }))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

/// A namespace of a test.
#[derive(Clone)]
pub(super) struct TestNamespace {
    client: Client,
    name: String,
}

/// The volume of a pod, its mount or device in the container, and the pod's security context.
#[derive(Clone, Debug)]
pub(super) struct ContainerVolume {
    volume: Value,
    mount: Value,
    is_block: bool,
    security_context: Value,
}

impl ContainerVolume {
    /// A claim, mounted at [`MOUNT_PATH`].
    pub(super) fn claim(name: &str) -> Self {
        Self {
            volume: json!({ "name": "volume", "persistentVolumeClaim": { "claimName": name } }),
            mount: json!({ "name": "volume", "mountPath": MOUNT_PATH }),
            is_block: false,
            security_context: Value::Null,
        }
    }

    /// A claim, as a block device at [`MOUNT_PATH`].
    pub(super) fn block_device(name: &str) -> Self {
        let device = json!({ "name": "volume", "devicePath": MOUNT_PATH });
        Self { mount: device, is_block: true, ..Self::claim(name) }
    }

    /// A CSI inline volume with these attributes, mounted at [`MOUNT_PATH`].
    pub(super) fn inline(driver: &str, attributes: Value) -> Self {
        let volume = json!({ "name": "volume", "csi": { "driver": driver, "volumeAttributes": attributes } });
        Self { volume, ..Self::claim("") }
    }

    /// A generic ephemeral volume of 64 MiB, mounted at [`MOUNT_PATH`].
    pub(super) fn ephemeral(class: VolumeClass) -> Self {
        let spec = claim_spec(class, "Filesystem", "ReadWriteOnce");
        let volume = json!({ "name": "volume", "ephemeral": { "volumeClaimTemplate": { "spec": spec } } });
        Self { volume, ..Self::claim("") }
    }

    /// Sets a field of the container's entry in `volumeMounts`, or in `volumeDevices` for a block device.
    pub(super) fn with_mount_field(mut self, field: &str, value: Value) -> Self {
        if let Some(mount) = self.mount.as_object_mut() {
            mount.insert(field.to_owned(), value);
        }
        self
    }

    /// Sets `readOnly` of the source `persistentVolumeClaim`. Volumes of other sources do not change.
    pub(super) fn read_only(mut self) -> Self {
        if let Some(claim) = self.volume.get_mut("persistentVolumeClaim").and_then(Value::as_object_mut) {
            claim.insert("readOnly".to_owned(), json!(true));
        }
        self
    }

    /// Sets `runAsUser` and `runAsGroup` of the pod to `user`, and its `fsGroup` to `group`.
    pub(super) fn with_user(mut self, user: u32, group: u32) -> Self {
        self.security_context = json!({ "runAsUser": user, "runAsGroup": user, "fsGroup": group });
        self
    }

    fn pod_object(&self, name: &str, script: &str) -> Result<Pod> {
        let field = if self.is_block { "volumeDevices" } else { "volumeMounts" };
        let mut container = json!({
            "name": "shell",
            "image": image::SHELL_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-ec", script],
        });
        if let Some(container) = container.as_object_mut() {
            container.insert(field.to_owned(), json!([self.mount]));
        }
        Ok(serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "restartPolicy": "Never",
                "securityContext": self.security_context,
                "containers": [container],
                "volumes": [self.volume],
            },
        }))?)
    }
}

impl TestNamespace {
    /// An existing namespace.
    pub(super) fn existing(client: Client, namespace: &str) -> Self {
        Self { client, name: namespace.to_owned() }
    }

    /// The namespace's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        self.api()
    }

    pub(super) fn stateful_sets(&self) -> Api<StatefulSet> {
        self.api()
    }

    pub(super) fn claims(&self) -> Api<PersistentVolumeClaim> {
        self.api()
    }

    /// Creates an object.
    pub(super) async fn create<K>(&self, object: Value) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        Ok(self.api::<K>().create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    /// Creates a ReadWriteOnce claim for 64 MiB with the volume mode Filesystem.
    pub(super) async fn create_claim(&self, name: &str, class: VolumeClass) -> Result<()> {
        self.create_claim_with_modes(name, class, "Filesystem", "ReadWriteOnce").await
    }

    /// Creates a claim for 64 MiB with a volume mode and an access mode.
    pub(super) async fn create_claim_with_modes(
        &self,
        name: &str,
        class: VolumeClass,
        mode: &str,
        access: &str,
    ) -> Result<()> {
        self.create_claim_from_spec(name, claim_spec(class, mode, access)).await
    }

    /// As [`create_claim`](Self::create_claim), with another size.
    pub(super) async fn create_claim_of_size(
        &self,
        name: &str,
        class: VolumeClass,
        size: &str,
    ) -> Result<()> {
        let mut spec = claim_spec(class, "Filesystem", "ReadWriteOnce");
        if let Some(resources) = spec.get_mut("resources") {
            *resources = json!({ "requests": { "storage": size } });
        }
        self.create_claim_from_spec(name, spec).await
    }

    /// Creates a ReadWriteOnce claim for 64 MiB of a StorageClass with a `dataSource`, which may be null.
    pub(super) async fn create_claim_with_source(
        &self,
        name: &str,
        class: &str,
        source: Value,
    ) -> Result<()> {
        let spec = json!({
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
            "dataSource": source,
        });
        self.create_claim_from_spec(name, spec).await
    }

    async fn create_claim_from_spec(&self, name: &str, spec: Value) -> Result<()> {
        self.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": name }, "spec": spec })).await?;
        Ok(())
    }

    /// Waits until a claim is Bound, and returns its PersistentVolume.
    pub(super) async fn wait_bound(&self, name: &str) -> Result<PersistentVolume> {
        let volume = until(&format!("claim {name} is Bound"), TIMEOUT, async || {
            let claim = self.claims().get(name).await?;
            let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Bound", "it is {phase}: {}", self.event_text(name).await?);
            claim.spec.and_then(|spec| spec.volume_name).context("it names no volume")
        })
        .await?;
        Ok(Api::all(self.client.clone()).get(&volume).await?)
    }

    /// Creates a pod that runs a script.
    pub(super) async fn create_pod(&self, name: &str, volume: &ContainerVolume, script: &str) -> Result<()> {
        self.pods().create(&PostParams::default(), &volume.pod_object(name, script)?).await?;
        Ok(())
    }

    /// Creates a pod that runs a script, waits until it succeeds, and deletes it. Returns its log.
    pub(super) async fn run_pod(&self, name: &str, volume: &ContainerVolume, script: &str) -> Result<String> {
        self.create_pod(name, volume, script).await?;
        let output = self.wait_output(name).await?;
        self.delete_pod(name).await?;
        Ok(output)
    }

    /// Waits until a pod succeeds, and returns its log.
    pub(super) async fn wait_output(&self, name: &str) -> Result<String> {
        self.wait_phase(name, "Succeeded").await?;
        Ok(self.pods().logs(name, &LogParams::default()).await?.trim().to_owned())
    }

    /// Creates a pod that runs a script and keeps running. Waits until the script is done, and returns its
    /// output.
    pub(super) async fn start_pod(
        &self,
        name: &str,
        volume: &ContainerVolume,
        script: &str,
    ) -> Result<String> {
        self.create_pod(name, volume, &format!("{script}\n{RUN_UNTIL_TERMINATED}")).await?;
        self.wait_script_done(name).await
    }

    /// Waits until a pod that keeps running has run its script, and returns the script's output.
    pub(super) async fn wait_script_done(&self, name: &str) -> Result<String> {
        self.wait_phase(name, "Running").await?;
        until(&format!("pod {name} has done its work"), TIMEOUT, async || {
            let log = self.pods().logs(name, &LogParams::default()).await?;
            let log = log.trim().strip_suffix("done").with_context(|| format!("it said {log:?}"))?;
            Ok(log.trim().to_owned())
        })
        .await
    }

    /// Waits until a pod is in this phase. A failed pod is an error at once, unless `expected` is `Failed`.
    pub(super) async fn wait_phase(&self, name: &str, expected: &str) -> Result<()> {
        let mut failed = None;
        until(&format!("pod {name} is {expected}"), TIMEOUT, async || {
            let pod = self.pods().get(name).await?;
            let status = pod.status.context("no status")?;
            let phase = status.phase.as_deref().unwrap_or_default();
            if phase == "Failed" && expected != "Failed" {
                let log = self.pods().logs(name, &LogParams::default()).await.unwrap_or_default();
                failed = Some(format!("pod {name} has failed: {:?}: {log}", status.container_statuses));
                return Ok(());
            }
            ensure!(phase == expected, "it is {phase}: {}", self.event_text(name).await?);
            Ok(())
        })
        .await?;
        if let Some(failed) = failed {
            bail!("{failed}");
        }
        Ok(())
    }

    /// Reasons and messages of the namespace's events about objects of this name, in the order in which the
    /// events were created.
    pub(super) async fn event_text(&self, name: &str) -> Result<String> {
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let mut events = self.api::<Event>().list(&params).await?.items;
        events.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        let texts = events.into_iter().map(|event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        });
        Ok(texts.collect::<Vec<_>>().join("; "))
    }

    /// Deletes a pod, and waits until it is removed.
    pub(super) async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        self.wait_pod_deleted(name).await
    }

    /// Waits until a pod is removed.
    pub(super) async fn wait_pod_deleted(&self, name: &str) -> Result<()> {
        until(&format!("pod {name} is gone"), TIMEOUT, async || {
            ensure!(
                self.pods().get_opt(name).await?.is_none(),
                "it is there: {}",
                self.event_text(name).await?
            );
            Ok(())
        })
        .await
    }

    /// Deletes all claims of the namespace. Waits until they, their PersistentVolumes and the
    /// VolumeAttachments of these are removed.
    pub(super) async fn delete_claims(&self) -> Result<()> {
        let mut volumes = Vec::new();
        for claim in self.claims().list(&ListParams::default()).await?.items {
            self.claims().delete(&claim.name_any(), &DeleteParams::default()).await?;
            volumes.extend(claim.spec.and_then(|spec| spec.volume_name));
        }
        until("claims, volumes and attachments are gone", TIMEOUT, async || {
            let claims = self.claims().list(&ListParams::default()).await?.items;
            ensure!(claims.is_empty(), "claims: {:?}", names(&claims));
            let mut remaining =
                Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await?.items;
            remaining.retain(|volume| volumes.contains(&volume.name_any()));
            let attachments =
                Api::<VolumeAttachment>::all(self.client.clone()).list(&ListParams::default()).await?;
            let attached = attachments.items.iter().filter(|attachment| {
                let name = attachment.spec.source.persistent_volume_name.as_ref();
                name.is_some_and(|name| volumes.contains(name))
            });
            let attached = attached.count();
            ensure!(
                remaining.is_empty() && attached == 0,
                "volumes: {:?}, attached {attached}",
                names(&remaining)
            );
            Ok(())
        })
        .await
    }
}

/// The spec of a claim for 64 MiB.
pub(super) fn claim_spec(class: VolumeClass, mode: &str, access: &str) -> Value {
    json!({
        "storageClassName": class.name,
        "volumeMode": mode,
        "accessModes": [access],
        "resources": { "requests": { "storage": "64Mi" } },
    })
}

fn names<K: Resource>(objects: &[K]) -> Vec<String> {
    objects.iter().map(kube::ResourceExt::name_any).collect()
}
