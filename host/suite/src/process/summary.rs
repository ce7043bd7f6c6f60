//! One-line summaries of arguments.

use std::collections::BTreeSet;

use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{
        AccessType, CapacityQuery, CapacityRange, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CsiAccessMode, ExpandVolume, PageRequest, Parameters, PublishVolume, ValidateVolume,
        VolumeCapability,
    },
};

/// A value with a one-line summary.
pub(super) trait ArgumentSummary {
    fn summary(&self) -> String;
}

macro_rules! handles {
    ($($handle:ty),*) => {
        $(impl ArgumentSummary for $handle {
            fn summary(&self) -> String {
                format!("{:?}", self.as_str())
            }
        })*
    };
}
handles!(VolumeHandle, SnapshotHandle, GroupSnapshotHandle);

impl<T: ArgumentSummary> ArgumentSummary for BTreeSet<T> {
    fn summary(&self) -> String {
        self.iter().map(ArgumentSummary::summary).collect::<Vec<_>>().join(" ")
    }
}

impl ArgumentSummary for CapacityRange {
    fn summary(&self) -> String {
        match (self.required, self.limit) {
            (Some(required), Some(limit)) => format!("{required} to {limit} bytes"),
            (Some(required), None) => format!("at least {required} bytes"),
            (None, Some(limit)) => format!("at most {limit} bytes"),
            (None, None) => "any size".to_owned(),
        }
    }
}

const fn mode_name(mode: CsiAccessMode) -> &'static str {
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

impl ArgumentSummary for VolumeCapability {
    fn summary(&self) -> String {
        let mode = mode_name(self.access_mode);
        match &self.access_type {
            AccessType::Block => format!("{mode} block"),
            AccessType::Filesystem { fs_type, mount_flags, mount_group } => {
                let mut summary = format!("{mode} filesystem");
                for (what, value) in [("of type", fs_type), ("of group", mount_group)] {
                    if let Some(value) = value {
                        summary.push_str(&format!(" {what} {value:?}"));
                    }
                }
                if !mount_flags.is_empty() {
                    summary.push_str(&format!(" mounted {mount_flags:?}"));
                }
                summary
            }
        }
    }
}

fn format_capabilities(capabilities: &[VolumeCapability]) -> String {
    if capabilities.is_empty() {
        return "for no use".to_owned();
    }
    format!("for {}", capabilities.iter().map(ArgumentSummary::summary).collect::<Vec<_>>().join(" and "))
}

/// `, <what> <parameters>`, or an empty text without parameters.
fn format_parameters(what: &str, parameters: &Parameters) -> String {
    if parameters.is_empty() { String::new() } else { format!(", {what} {parameters:?}") }
}

impl ArgumentSummary for CreateVolume {
    fn summary(&self) -> String {
        let topology =
            self.topology.as_ref().map(|topology| format!(", reachable from {:?}", topology.requisite));
        format!(
            "{:?}, {}, {}{}{}{}",
            self.name,
            self.capacity.summary(),
            format_capabilities(&self.capabilities),
            format_parameters("parameters", &self.parameters),
            format_parameters("mutable parameters", &self.mutable_parameters),
            topology.unwrap_or_default(),
        )
    }
}

impl ArgumentSummary for ValidateVolume {
    fn summary(&self) -> String {
        let parameters = format_parameters("parameters", &self.parameters);
        format!("{}, {}{parameters}", self.handle.summary(), format_capabilities(&self.capabilities))
    }
}

impl ArgumentSummary for PublishVolume {
    fn summary(&self) -> String {
        let how = if self.read_only { ", for reading only" } else { "" };
        format!(
            "{}, node {:?}, for {}{how}",
            self.handle.summary(),
            self.node_id.as_str(),
            self.capability.summary()
        )
    }
}

impl ArgumentSummary for ExpandVolume {
    fn summary(&self) -> String {
        format!("{}, {}", self.handle.summary(), self.capacity.summary())
    }
}

impl ArgumentSummary for CreateSnapshot {
    fn summary(&self) -> String {
        format!(
            "{:?}, source {}{}",
            self.name,
            self.source.summary(),
            format_parameters("parameters", &self.parameters)
        )
    }
}

impl ArgumentSummary for CreateGroupSnapshot {
    fn summary(&self) -> String {
        format!(
            "{:?}, sources {}{}",
            self.name,
            self.sources.summary(),
            format_parameters("parameters", &self.parameters)
        )
    }
}

impl ArgumentSummary for PageRequest {
    fn summary(&self) -> String {
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

impl ArgumentSummary for CapacityQuery {
    fn summary(&self) -> String {
        let topology = self.topology.as_ref().map(|topology| format!(", reachable from {topology:?}"));
        let parameters = format_parameters("parameters", &self.parameters);
        format!("{}{parameters}{}", format_capabilities(&self.capabilities), topology.unwrap_or_default())
    }
}
