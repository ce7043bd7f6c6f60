//! Converts flags to the arguments of a function. Flags that the function does not use are an error.

use std::collections::BTreeSet;

use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{
        AccessType, CapacityRange, CreateVolume, PageRequest, Parameters, SnapshotOwner, TopologyRequirement,
        VolumeCapability,
    },
};

use super::error::BackendCommandError;
use crate::cli::backend::{AccessModeArg, ArgumentFlags};

/// The flags of a call. Each method takes the flags of its argument; [`Arguments::reject_unused`] rejects
/// those that no method took.
#[derive(Debug)]
pub(crate) struct Arguments {
    function: String,
    remaining: ArgumentFlags,
}

type Pairs = Vec<(String, String)>;

impl Arguments {
    pub(crate) fn new(function: String, flags: ArgumentFlags) -> Self {
        Self { function, remaining: flags }
    }

    fn missing(&self, flag: &str) -> BackendCommandError {
        BackendCommandError::Argument(format!("{} needs {flag}", self.function))
    }

    pub(crate) fn name(&mut self) -> Result<String, BackendCommandError> {
        let flag =
            if self.function.contains("snapshots.") { "--snapshot-name NAME" } else { "--volume-name NAME" };
        self.remaining.volume_name.take().ok_or_else(|| self.missing(flag))
    }

    pub(crate) fn handle(&mut self) -> Result<String, BackendCommandError> {
        self.remaining.handle.take().ok_or_else(|| self.missing("--handle HANDLE"))
    }

    pub(crate) fn source(&mut self) -> Result<String, BackendCommandError> {
        let missing = self.missing("--source HANDLE, once");
        let mut sources = std::mem::take(&mut self.remaining.source);
        match (sources.pop(), sources.is_empty()) {
            (Some(source), true) => Ok(source),
            (Some(_) | None, _) => Err(missing),
        }
    }

    pub(crate) fn sources(&mut self) -> BTreeSet<VolumeHandle> {
        std::mem::take(&mut self.remaining.source).into_iter().map(VolumeHandle::from).collect()
    }

    pub(crate) fn members(&mut self) -> BTreeSet<SnapshotHandle> {
        std::mem::take(&mut self.remaining.members).into_iter().map(SnapshotHandle::from).collect()
    }

    pub(crate) fn snapshot_owner(&mut self) -> Option<SnapshotOwner> {
        self.remaining.snapshot_owner.take()
    }

    pub(crate) fn node(&mut self) -> Result<String, BackendCommandError> {
        self.remaining.node.take().ok_or_else(|| self.missing("--node NODE"))
    }

    pub(crate) fn optional_node(&mut self) -> Option<String> {
        self.remaining.node.take()
    }

    pub(crate) fn read_only(&mut self) -> bool {
        std::mem::take(&mut self.remaining.read_only)
    }

    pub(crate) fn capacity(&mut self) -> CapacityRange {
        CapacityRange { required: self.remaining.size.take(), limit: self.remaining.size_limit.take() }
    }

    /// The capabilities of `--capability`; without that flag, the one of `--access-mode`, `--block` and the
    /// filesystem flags.
    pub(crate) fn capabilities(&mut self) -> Vec<VolumeCapability> {
        let capabilities = std::mem::take(&mut self.remaining.capabilities);
        if capabilities.is_empty() { vec![self.capability_from_flags()] } else { capabilities }
    }

    /// The capability, as in [`Self::capabilities`]; more than one is an error.
    pub(crate) fn capability(&mut self) -> Result<VolumeCapability, BackendCommandError> {
        let several_error =
            BackendCommandError::Argument(format!("{} takes one --capability", self.function));
        let mut capabilities = self.capabilities();
        match (capabilities.pop(), capabilities.is_empty()) {
            (Some(capability), true) => Ok(capability),
            (Some(_) | None, _) => Err(several_error),
        }
    }

    fn capability_from_flags(&mut self) -> VolumeCapability {
        let flags = &mut self.remaining;
        let mode = flags.access_mode.take().unwrap_or(AccessModeArg::SingleNodeWriter);
        let access = if std::mem::take(&mut flags.block) {
            AccessType::Block
        } else {
            AccessType::Filesystem {
                fs_type: flags.fs_type.take(),
                mount_flags: std::mem::take(&mut flags.mount_flag),
                mount_group: flags.mount_group.take(),
            }
        };
        VolumeCapability { access_mode: mode.into(), access_type: access }
    }

    /// The capabilities; empty if no flag of a capability is set.
    pub(crate) fn optional_capabilities(&mut self) -> Vec<VolumeCapability> {
        let flags = &self.remaining;
        let is_given = flags.access_mode.is_some()
            || flags.block
            || flags.fs_type.is_some()
            || !flags.mount_flag.is_empty()
            || flags.mount_group.is_some()
            || !flags.capabilities.is_empty();
        if is_given { self.capabilities() } else { Vec::new() }
    }

    /// The capability, or `None` if no flag of a capability is set; more than one is an error.
    pub(crate) fn optional_capability(&mut self) -> Result<Option<VolumeCapability>, BackendCommandError> {
        let mut capabilities = self.optional_capabilities();
        let capability = capabilities.pop();
        if capabilities.is_empty() {
            Ok(capability)
        } else {
            Err(BackendCommandError::Argument(format!("{} takes one --capability", self.function)))
        }
    }

    pub(crate) fn parameters(&mut self) -> Result<Parameters, BackendCommandError> {
        unique_pairs("--parameter", std::mem::take(&mut self.remaining.parameters))
    }

    pub(crate) fn mutable_parameters(&mut self) -> Result<Parameters, BackendCommandError> {
        unique_pairs("--mutable-parameter", std::mem::take(&mut self.remaining.mutable_parameters))
    }

    pub(crate) fn context(&mut self) -> Result<Parameters, BackendCommandError> {
        unique_pairs("--context", std::mem::take(&mut self.remaining.context))
    }

    pub(crate) fn node_identities(&mut self) -> Result<Parameters, BackendCommandError> {
        unique_pairs("--node-identity", std::mem::take(&mut self.remaining.node_identity))
    }

    pub(crate) fn topologies(&mut self) -> Result<Vec<Parameters>, BackendCommandError> {
        std::mem::take(&mut self.remaining.topology)
            .into_iter()
            .map(|segments| unique_pairs("--topology", segments))
            .collect()
    }

    pub(crate) fn page(&mut self) -> PageRequest {
        PageRequest { starting_token: self.remaining.after.take(), max_entries: self.remaining.limit.take() }
    }

    pub(crate) fn optional_source(&mut self) -> Result<Option<VolumeHandle>, BackendCommandError> {
        if self.remaining.source.is_empty() {
            Ok(None)
        } else {
            self.source().map(|source| Some(source.into()))
        }
    }

    /// The request to create a volume, without its content source.
    pub(crate) fn create_request(&mut self) -> Result<CreateVolume, BackendCommandError> {
        let topologies = self.topologies()?;
        let topology = (!topologies.is_empty())
            .then(|| TopologyRequirement { requisite: topologies.clone(), preferred: topologies.clone() });
        Ok(CreateVolume {
            name: self.name()?,
            capacity: self.capacity(),
            capabilities: self.capabilities(),
            parameters: self.parameters()?,
            mutable_parameters: self.mutable_parameters()?,
            topology,
            owner: self.remaining.owner.take(),
            source: None,
        })
    }

    /// Rejects flags that the function does not have.
    pub(crate) fn reject_unused(self) -> Result<(), BackendCommandError> {
        let ArgumentFlags {
            volume_name,
            handle,
            source,
            members,
            size,
            size_limit,
            access_mode,
            block,
            fs_type,
            mount_flag,
            mount_group,
            capabilities,
            parameters,
            mutable_parameters,
            context,
            node_identity,
            topology,
            owner,
            snapshot_owner,
            node,
            read_only,
            after,
            limit,
        } = &self.remaining;
        let unused = [
            ("--volume-name", volume_name.is_some()),
            ("--handle", handle.is_some()),
            ("--source", !source.is_empty()),
            ("--member", !members.is_empty()),
            ("--size", size.is_some()),
            ("--size-limit", size_limit.is_some()),
            ("--access-mode", access_mode.is_some()),
            ("--block", *block),
            ("--fs-type", fs_type.is_some()),
            ("--mount-flag", !mount_flag.is_empty()),
            ("--mount-group", mount_group.is_some()),
            ("--capability", !capabilities.is_empty()),
            ("--parameter", !parameters.is_empty()),
            ("--mutable-parameter", !mutable_parameters.is_empty()),
            ("--context", !context.is_empty()),
            ("--node-identity", !node_identity.is_empty()),
            ("--topology", !topology.is_empty()),
            ("--owner", owner.is_some()),
            ("--snapshot-owner", snapshot_owner.is_some()),
            ("--node", node.is_some()),
            ("--read-only", *read_only),
            ("--after", after.is_some()),
            ("--limit", limit.is_some()),
        ];
        match unused.into_iter().find(|(_, unused)| *unused) {
            Some((flag, _)) => {
                Err(BackendCommandError::Argument(format!("{} has no argument {flag}", self.function)))
            }
            None => Ok(()),
        }
    }
}

/// Converts pairs to a map; a repeated key is an error.
pub(crate) fn unique_pairs(flag: &str, pairs: Pairs) -> Result<Parameters, BackendCommandError> {
    let mut map = Parameters::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(BackendCommandError::Argument(format!("{flag} {key}=… was set twice")));
        }
        map.insert(key, value);
    }
    Ok(map)
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
