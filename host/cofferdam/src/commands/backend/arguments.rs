//! From flags to the arguments of a function: each function takes its own, and what is left over is an error.

use std::collections::BTreeSet;

use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{
        AccessType, CapacityRange, CreateVolume, PageRequest, Parameters, TopologyRequirement,
        VolumeCapability,
    },
};

use super::{VendorError, flags::ArgumentFlags};

/// Flags that no function has taken yet.
#[derive(Debug)]
pub(crate) struct Arguments {
    function: String,
    left: ArgumentFlags,
}

type Pairs = Vec<(String, String)>;

impl Arguments {
    pub(crate) fn new(function: String, flags: ArgumentFlags) -> Self {
        Self { function, left: flags }
    }

    fn missing(&self, flag: &str) -> VendorError {
        VendorError::Argument(format!("{} needs {flag}", self.function))
    }

    pub(crate) fn name(&mut self) -> Result<String, VendorError> {
        self.left.volume_name.take().ok_or_else(|| self.missing("--volume-name NAME"))
    }

    pub(crate) fn handle(&mut self) -> Result<String, VendorError> {
        self.left.handle.take().ok_or_else(|| self.missing("--handle HANDLE"))
    }

    pub(crate) fn source(&mut self) -> Result<String, VendorError> {
        let missing = self.missing("--source HANDLE, once");
        let mut sources = std::mem::take(&mut self.left.source);
        match (sources.pop(), sources.is_empty()) {
            (Some(source), true) => Ok(source),
            (Some(_) | None, _) => Err(missing),
        }
    }

    pub(crate) fn sources(&mut self) -> BTreeSet<VolumeHandle> {
        std::mem::take(&mut self.left.source).into_iter().map(VolumeHandle::from).collect()
    }

    pub(crate) fn members(&mut self) -> BTreeSet<SnapshotHandle> {
        std::mem::take(&mut self.left.members).into_iter().map(SnapshotHandle::from).collect()
    }

    pub(crate) fn node(&mut self) -> Result<String, VendorError> {
        self.left.node.take().ok_or_else(|| self.missing("--node NODE"))
    }

    pub(crate) fn node_if_any(&mut self) -> Option<String> {
        self.left.node.take()
    }

    pub(crate) fn read_only(&mut self) -> bool {
        std::mem::take(&mut self.left.read_only)
    }

    pub(crate) fn capacity(&mut self) -> CapacityRange {
        CapacityRange { required: self.left.size.take(), limit: self.left.size_limit.take() }
    }

    /// The ways of use: those that were said, or the one of the flags for a single one.
    pub(crate) fn capabilities(&mut self) -> Vec<VolumeCapability> {
        let said = std::mem::take(&mut self.left.capabilities);
        if said.is_empty() { vec![self.one_of_flags()] } else { said }
    }

    /// The only way of use.
    pub(crate) fn capability(&mut self) -> Result<VolumeCapability, VendorError> {
        let one = VendorError::Argument(format!("{} takes one --capability", self.function));
        let mut said = self.capabilities();
        match (said.pop(), said.is_empty()) {
            (Some(capability), true) => Ok(capability),
            (Some(_) | None, _) => Err(one),
        }
    }

    fn one_of_flags(&mut self) -> VolumeCapability {
        let left = &mut self.left;
        let mode = left.access_mode.take().unwrap_or(super::flags::Mode::SingleNodeWriter);
        let access = if std::mem::take(&mut left.block) {
            AccessType::Block
        } else {
            AccessType::Filesystem {
                fs_type: left.fs_type.take(),
                mount_flags: std::mem::take(&mut left.mount_flag),
                mount_group: left.mount_group.take(),
            }
        };
        VolumeCapability { access_mode: mode.into(), access_type: access }
    }

    /// The ways of use, none when nothing of them was said.
    pub(crate) fn capabilities_if_any(&mut self) -> Vec<VolumeCapability> {
        let left = &self.left;
        let said = left.access_mode.is_some()
            || left.block
            || left.fs_type.is_some()
            || !left.mount_flag.is_empty()
            || left.mount_group.is_some()
            || !left.capabilities.is_empty();
        if said { self.capabilities() } else { Vec::new() }
    }

    /// The only way of use, if anything of it was said.
    pub(crate) fn capability_if_any(&mut self) -> Result<Option<VolumeCapability>, VendorError> {
        let mut said = self.capabilities_if_any();
        let capability = said.pop();
        if said.is_empty() {
            Ok(capability)
        } else {
            Err(VendorError::Argument(format!("{} takes one --capability", self.function)))
        }
    }

    pub(crate) fn parameters(&mut self) -> Result<Parameters, VendorError> {
        once("--parameter", std::mem::take(&mut self.left.parameters))
    }

    pub(crate) fn mutable_parameters(&mut self) -> Result<Parameters, VendorError> {
        once("--mutable-parameter", std::mem::take(&mut self.left.mutable_parameters))
    }

    pub(crate) fn context(&mut self) -> Result<Parameters, VendorError> {
        once("--context", std::mem::take(&mut self.left.context))
    }

    pub(crate) fn node_identities(&mut self) -> Result<Parameters, VendorError> {
        once("--node-identity", std::mem::take(&mut self.left.node_identity))
    }

    pub(crate) fn places(&mut self) -> Result<Vec<Parameters>, VendorError> {
        std::mem::take(&mut self.left.topology).into_iter().map(|place| once("--topology", place)).collect()
    }

    pub(crate) fn page(&mut self) -> PageRequest {
        PageRequest { starting_token: self.left.after.take(), max_entries: self.left.limit.take() }
    }

    pub(crate) fn source_if_any(&mut self) -> Result<Option<VolumeHandle>, VendorError> {
        if self.left.source.is_empty() { Ok(None) } else { self.source().map(|source| Some(source.into())) }
    }

    /// The part of a creation that does not depend on where the content comes from.
    pub(crate) fn creation(&mut self) -> Result<CreateVolume, VendorError> {
        let places = self.places()?;
        let topology = (!places.is_empty())
            .then(|| TopologyRequirement { requisite: places.clone(), preferred: places.clone() });
        Ok(CreateVolume {
            name: self.name()?,
            capacity: self.capacity(),
            capabilities: self.capabilities(),
            parameters: self.parameters()?,
            mutable_parameters: self.mutable_parameters()?,
            topology,
            owner: self.left.owner.take(),
        })
    }

    /// Refuses what the function does not have.
    pub(crate) fn end(self) -> Result<(), VendorError> {
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
            node,
            read_only,
            after,
            limit,
        } = &self.left;
        let left = [
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
            ("--node", node.is_some()),
            ("--read-only", *read_only),
            ("--after", after.is_some()),
            ("--limit", limit.is_some()),
        ];
        match left.into_iter().find(|(_, left)| *left) {
            Some((flag, _)) => {
                Err(VendorError::Argument(format!("{} has no argument {flag}", self.function)))
            }
            None => Ok(()),
        }
    }
}

/// Pairs as a map; a key that stands there twice is an error.
pub(crate) fn once(flag: &str, pairs: Pairs) -> Result<Parameters, VendorError> {
    let mut map = Parameters::new();
    for (key, value) in pairs {
        if map.contains_key(&key) {
            return Err(VendorError::Argument(format!("{flag} {key}=… was given twice")));
        }
        map.insert(key, value);
    }
    Ok(map)
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
