//! Arguments of calls, for people: what matters of them, in one line.

use std::collections::BTreeSet;

use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{
        AccessType, CapacityQuery, CapacityRange, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CsiAccessMode, ExpandVolume, PageRequest, Parameters, PublishVolume, ValidateVolume,
        VolumeCapability,
    },
};

/// Something that can be said in one line.
pub(super) trait Words {
    fn words(&self) -> String;
}

macro_rules! handles {
    ($($handle:ty),*) => {
        $(impl Words for $handle {
            fn words(&self) -> String {
                format!("{:?}", self.as_str())
            }
        })*
    };
}
handles!(VolumeHandle, SnapshotHandle, GroupSnapshotHandle);

impl<T: Words> Words for BTreeSet<T> {
    fn words(&self) -> String {
        self.iter().map(Words::words).collect::<Vec<_>>().join(" ")
    }
}

impl Words for CapacityRange {
    fn words(&self) -> String {
        match (self.required, self.limit) {
            (Some(required), Some(limit)) => format!("{required} to {limit} bytes"),
            (Some(required), None) => format!("at least {required} bytes"),
            (None, Some(limit)) => format!("at most {limit} bytes"),
            (None, None) => "any size".to_owned(),
        }
    }
}

const fn mode(mode: CsiAccessMode) -> &'static str {
    match mode {
        CsiAccessMode::SingleNodeWriter => "single-node-writer",
        CsiAccessMode::SingleNodeReaderOnly => "single-node-reader-only",
        CsiAccessMode::MultiNodeReaderOnly => "multi-node-reader-only",
        CsiAccessMode::MultiNodeSingleWriter => "multi-node-single-writer",
        CsiAccessMode::MultiNodeMultiWriter => "multi-node-multi-writer",
        CsiAccessMode::SingleNodeSingleWriter => "single-node-single-writer",
        CsiAccessMode::SingleNodeMultiWriter => "single-node-multi-writer",
    }
}

impl Words for VolumeCapability {
    fn words(&self) -> String {
        let mode = mode(self.access_mode);
        match &self.access_type {
            AccessType::Block => format!("{mode} block"),
            AccessType::Filesystem { fs_type, mount_flags, mount_group } => {
                let mut words = format!("{mode} filesystem");
                for (what, value) in [("of type", fs_type), ("of group", mount_group)] {
                    if let Some(value) = value {
                        words.push_str(&format!(" {what} {value:?}"));
                    }
                }
                if !mount_flags.is_empty() {
                    words.push_str(&format!(" mounted {mount_flags:?}"));
                }
                words
            }
        }
    }
}

fn uses(capabilities: &[VolumeCapability]) -> String {
    if capabilities.is_empty() {
        return "for no use".to_owned();
    }
    format!("for {}", capabilities.iter().map(Words::words).collect::<Vec<_>>().join(" and "))
}

/// Parameters, when there are any.
fn with(what: &str, parameters: &Parameters) -> String {
    if parameters.is_empty() { String::new() } else { format!(", {what} {parameters:?}") }
}

impl Words for CreateVolume {
    fn words(&self) -> String {
        let topology =
            self.topology.as_ref().map(|topology| format!(", reachable from {:?}", topology.requisite));
        format!(
            "{:?}, {}, {}{}{}{}",
            self.name,
            self.capacity.words(),
            uses(&self.capabilities),
            with("parameters", &self.parameters),
            with("mutable parameters", &self.mutable_parameters),
            topology.unwrap_or_default(),
        )
    }
}

impl Words for ValidateVolume {
    fn words(&self) -> String {
        let parameters = with("parameters", &self.parameters);
        format!("{}, {}{parameters}", self.handle.words(), uses(&self.capabilities))
    }
}

impl Words for PublishVolume {
    fn words(&self) -> String {
        let how = if self.read_only { ", for reading only" } else { "" };
        format!(
            "{}, node {:?}, for {}{how}",
            self.handle.words(),
            self.node_id.as_str(),
            self.capability.words()
        )
    }
}

impl Words for ExpandVolume {
    fn words(&self) -> String {
        format!("{}, {}", self.handle.words(), self.capacity.words())
    }
}

impl Words for CreateSnapshot {
    fn words(&self) -> String {
        format!("{:?}, source {}{}", self.name, self.source.words(), with("parameters", &self.parameters))
    }
}

impl Words for CreateGroupSnapshot {
    fn words(&self) -> String {
        format!("{:?}, sources {}{}", self.name, self.sources.words(), with("parameters", &self.parameters))
    }
}

impl Words for PageRequest {
    fn words(&self) -> String {
        let after = self
            .starting_token
            .as_ref()
            .map_or_else(|| "from the beginning".to_owned(), |after| format!("after {after:?}"));
        match self.max_entries {
            Some(limit) => format!("{after}, at most {limit}"),
            None => after,
        }
    }
}

impl Words for CapacityQuery {
    fn words(&self) -> String {
        let topology = self.topology.as_ref().map(|topology| format!(", reachable from {topology:?}"));
        let parameters = with("parameters", &self.parameters);
        format!("{}{parameters}{}", uses(&self.capabilities), topology.unwrap_or_default())
    }
}
