//! Kind `nvme-tcp`: a namespace of an NVMe subsystem.

use cofferdam_domain::storage::VolumeCapability;

use super::{Connector, StageContext, device};
use crate::{
    connection::NodeConnection,
    error::{NodeError, StepContext as _},
    locks::KeyLocks,
    mounter::Mounter,
    nvme::{
        ControllerState, NvmeDisk, NvmeNamespace, controllers_of, missing_portals, removable_controllers,
        select_disk, unused_state,
    },
    path::KubeletPath,
    record::VolumeRecord,
};

/// Connects this namespace, and stages its disk.
pub(crate) struct NvmeConnector(pub(crate) NvmeNamespace);

impl NvmeConnector {
    /// Connects the portals that have no controller yet. One connected portal is enough. Returns true if a portal was
    /// connected before.
    fn connect(&self, mounter: &dyn Mounter) -> Result<bool, NodeError> {
        let namespace = &self.0;
        let controllers = mounter.nvme_controllers().step("list the NVMe controllers")?;
        let missing = missing_portals(&controllers, namespace);
        let reused = namespace.portals.len() - missing.len();
        let mut connected = reused;
        let mut result = Ok(reused > 0);
        for portal in missing {
            match mounter.nvme_connect(&namespace.nqn, portal).step("connect the volume's NVMe subsystem") {
                Ok(()) => connected += 1,
                Err(error) => result = Err(error),
            }
        }
        if connected > 0 { Ok(reused > 0) } else { result }
    }

    /// Returns an error if no controller of the subsystem responds: operations on its disks would wait.
    fn check_responsive(&self, mounter: &dyn Mounter) -> Result<(), NodeError> {
        let controllers = mounter.nvme_controllers().step("list the NVMe controllers")?;
        match unused_state(&controllers, &self.0.nqn) {
            None => Ok(()),
            Some(state) => Err(NodeError::FailedPrecondition(format!(
                "the NVMe subsystem {} does not respond: {state}",
                self.0.nqn
            ))),
        }
    }

    /// Makes the controllers read their namespaces again unless the disk is there. The kernel learns of a namespace that
    /// was allowed after the connection from an asynchronous event of the subsystem, which can be late, or lost with a
    /// path.
    fn rescan_unless_found(&self, mounter: &dyn Mounter) -> Result<(), NodeError> {
        let disks = mounter.nvme_disks(None).step("list the NVMe disks")?;
        match select_disk(&disks, &self.0) {
            Ok(None) => rescan(mounter, &self.0),
            Ok(Some(_)) | Err(_) => Ok(()),
        }
    }

    /// Returns the disk of the namespace. If it `is_awaited`, waits a few seconds for it.
    fn find_disk(&self, mounter: &dyn Mounter, is_awaited: bool) -> Result<NvmeDisk, NodeError> {
        let disks = mounter.nvme_disks(is_awaited.then_some(&self.0)).step("list the NVMe disks")?;
        match select_disk(&disks, &self.0) {
            Ok(Some(disk)) => Ok(disk.clone()),
            Ok(None) => Err(NodeError::FailedPrecondition(format!(
                "this node does not see {}: expected the driver to allow it to this node",
                self.0
            ))),
            Err(error) => Err(NodeError::FailedPrecondition(error.to_string())),
        }
    }

    /// Rejects a disk whose other identifier the connection info of another volume in use has.
    fn check_unshared(context: &StageContext<'_>, disk: &NvmeDisk) -> Result<(), NodeError> {
        let others = context.mounter.records().step("read the volumes' records")?.readable;
        for other in others.iter().filter(|other| other.volume != context.record.volume) {
            let is_shared = recorded_namespace(other).is_some_and(|other| disk.has_id(other.id));
            if is_shared && (context.is_in_use)(other)? {
                return Err(NodeError::FailedPrecondition(format!(
                    "another volume of this node uses the namespace of {}",
                    disk.device
                )));
            }
        }
        Ok(())
    }

    fn check_not_replaced(&self, mounter: &dyn Mounter, disk: &NvmeDisk) -> Result<(), NodeError> {
        if self.find_disk(mounter, false)?.device == disk.device {
            return Ok(());
        }
        Err(NodeError::FailedPrecondition(format!("{} was replaced during the call", disk.device)))
    }
}

impl Connector for NvmeConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        device::check_capability(capability)
    }

    fn identify(&self, _: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let mounter = context.mounter;
        // 1. Connect. The record names the portals, so that another volume does not disconnect them.
        let is_reused = context.subsystem_locks.run(self.0.nqn.as_str(), || self.connect(mounter))?;
        // 2. Find the disk.
        if is_reused {
            self.rescan_unless_found(mounter)?;
        }
        let disk = self.find_disk(mounter, true)?;
        self.check_responsive(mounter)?;
        // 3. Hold it, so that its name and number stay those of this namespace.
        let _hold = mounter.hold_device(&disk.device).step("open the volume's device")?;
        self.check_not_replaced(mounter, &disk)?;
        // 4. Check that nothing else uses it.
        let users = mounter.device_users(&disk.device, true).step("find the users of the volume's device")?;
        device::check_unused(context, &disk.device, &self.0.to_string(), &users)?;
        Self::check_unshared(context, &disk)?;
        // 5. Record its size.
        device::record_size(context, &disk.device, disk.size)?;
        // 6. Mount it, or bind its node.
        device::stage(context, &disk.device)
    }

    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let mut disk = self.find_disk(mounter, false)?;
        self.check_responsive(mounter)?;
        if let Some(required) = required.filter(|required| *required > disk.size) {
            rescan(mounter, &self.0)?;
            mounter
                .wait_for_nvme_size(&disk.device, required)
                .step("read the size of the volume's device")?;
            disk = self.find_disk(mounter, false)?;
        }
        device::check_new_size(mounter, record, &disk.device, disk.size, required)?;
        device::grow_volume(mounter, record, &disk.device, path)?;
        Ok(Some(disk.size))
    }
}

/// Makes the controllers that respond read their namespaces again.
fn rescan(mounter: &dyn Mounter, namespace: &NvmeNamespace) -> Result<(), NodeError> {
    let controllers = mounter.nvme_controllers().step("list the NVMe controllers")?;
    let live = controllers_of(&controllers, &namespace.nqn)
        .filter(|controller| controller.state == ControllerState::Live);
    for controller in live {
        mounter.nvme_rescan(controller).step("read the namespaces of the volume's NVMe subsystem")?;
    }
    Ok(())
}

/// Returns the namespace in a volume's record; `None` if the volume is of another kind.
fn recorded_namespace(record: &VolumeRecord) -> Option<NvmeNamespace> {
    match NodeConnection::parse(record.connection_info.as_ref()?) {
        Ok(NodeConnection::NvmeTcp(namespace)) => Some(namespace),
        Ok(_) | Err(_) => None,
    }
}

/// Disconnects the controllers of a volume's subsystem that no other volume names. Keeps them while a disk of
/// the subsystem is in use, because the kernel would disconnect it nevertheless.
pub(super) fn disconnect(
    mounter: &dyn Mounter,
    subsystem_locks: &KeyLocks,
    record: &VolumeRecord,
) -> Result<(), NodeError> {
    let Some(namespace) = recorded_namespace(record) else { return Ok(()) };
    subsystem_locks.run(namespace.nqn.as_str(), || {
        // A volume is recorded before it waits for the lock to connect.
        let records = mounter.records().step("read the volumes' records")?.readable;
        let others: Vec<NvmeNamespace> = records
            .iter()
            .filter(|other| other.volume != record.volume)
            .filter_map(recorded_namespace)
            .collect();
        let controllers = mounter.nvme_controllers().step("list the NVMe controllers")?;
        let removable = removable_controllers(&controllers, &namespace.nqn, &others);
        if removable.is_empty()
            || is_in_use(mounter, &namespace, unused_state(&controllers, &namespace.nqn).is_none())?
        {
            return Ok(());
        }
        for controller in removable {
            mounter.nvme_disconnect(controller).step("disconnect the volume's NVMe subsystem")?;
        }
        Ok(())
    })
}

/// Returns true if a disk of the subsystem has a user. If the subsystem does not respond, its disks are not
/// opened.
fn is_in_use(
    mounter: &dyn Mounter,
    namespace: &NvmeNamespace,
    is_responsive: bool,
) -> Result<bool, NodeError> {
    let disks = mounter.nvme_disks(None).step("list the NVMe disks")?;
    for disk in disks.iter().filter(|disk| disk.nqn == namespace.nqn.as_str()) {
        let users = mounter.device_users(&disk.device, is_responsive);
        if !users.step("find the users of the subsystem's devices")?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
