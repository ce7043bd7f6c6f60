//! Conversion of requests to CSI's messages.

use cofferdam_domain::storage::{
    AccessType, CapacityRange, CsiAccessMode, ErrorKind, PageRequest, Secrets, Segments, StorageError,
    TopologyRequirement, VolumeCapability,
};

use crate::v1::{
    self,
    volume_capability::{
        AccessMode, AccessType as CsiAccessType, BlockVolume, MountVolume, access_mode::Mode,
    },
};

/// Secrets in plain text, for a message to the driver.
pub(crate) fn secrets(secrets: &Secrets) -> std::collections::BTreeMap<String, String> {
    secrets.iter().map(|(name, secret)| (name.to_owned(), secret.expose().to_owned())).collect()
}

/// A volume capability. To a driver without SINGLE_NODE_MULTI_WRITER, SINGLE_NODE_WRITER is sent in place of
/// SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
pub(crate) fn volume_capability(
    capability: VolumeCapability,
    has_multi_writer: bool,
) -> v1::VolumeCapability {
    let mode = match capability.access_mode {
        CsiAccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        CsiAccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
        CsiAccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        CsiAccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
        CsiAccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        CsiAccessMode::SingleNodeSingleWriter if has_multi_writer => Mode::SingleNodeSingleWriter,
        CsiAccessMode::SingleNodeMultiWriter if has_multi_writer => Mode::SingleNodeMultiWriter,
        CsiAccessMode::SingleNodeSingleWriter | CsiAccessMode::SingleNodeMultiWriter => {
            Mode::SingleNodeWriter
        }
    };
    let access = match capability.access_type {
        AccessType::Block => CsiAccessType::Block(BlockVolume {}),
        AccessType::Filesystem { fs_type, mount_flags, mount_group } => CsiAccessType::Mount(MountVolume {
            fs_type: fs_type.unwrap_or_default(),
            mount_flags,
            volume_mount_group: mount_group.unwrap_or_default(),
        }),
    };
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

/// A number of bytes as CSI's signed integer; 0 for `None`.
fn to_csi_bytes(field: &str, bytes: Option<u64>) -> Result<i64, StorageError> {
    i64::try_from(bytes.unwrap_or_default()).map_err(|_| {
        let bytes = bytes.unwrap_or_default();
        let message = format!("{field} is {bytes} bytes; expected at most {}", i64::MAX);
        StorageError::with_known_effect(ErrorKind::InvalidArgument, message)
    })
}

/// The capacity range of a request.
///
/// # Errors
/// A size that CSI cannot express.
pub(crate) fn capacity_range(range: CapacityRange) -> Result<v1::CapacityRange, StorageError> {
    Ok(v1::CapacityRange {
        required_bytes: to_csi_bytes("the required capacity", range.required)?,
        limit_bytes: to_csi_bytes("the capacity limit", range.limit)?,
    })
}

/// Converts topology segments to CSI's topology.
pub(crate) fn topology(segments: Segments) -> v1::Topology {
    v1::Topology { segments }
}

/// The topology requirement of a volume.
pub(crate) fn topology_requirement(requirement: TopologyRequirement) -> v1::TopologyRequirement {
    v1::TopologyRequirement {
        requisite: requirement.requisite.into_iter().map(topology).collect(),
        preferred: requirement.preferred.into_iter().map(topology).collect(),
    }
}

/// Maximum entries and starting token of a page. 0 is no maximum, and an empty token is the first page.
pub(crate) fn page_request(page: &PageRequest) -> (i32, String) {
    let limit = page.max_entries.map_or(0, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
    (limit, page.starting_token.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_unknown_to_the_driver_are_not_sent() {
        use CsiAccessMode as M;
        #[rustfmt::skip] // one row a mode: sent to a driver without and with SINGLE_NODE_MULTI_WRITER
        let table = [
            (M::SingleNodeWriter,       1, 1),
            (M::SingleNodeReaderOnly,   2, 2),
            (M::MultiNodeReaderOnly,    3, 3),
            (M::MultiNodeSingleWriter,  4, 4),
            (M::MultiNodeMultiWriter,   5, 5),
            (M::SingleNodeSingleWriter, 1, 6),
            (M::SingleNodeMultiWriter,  1, 7),
        ];
        for (mode, without_capability, with_capability) in table {
            for (has_multi_writer, expected) in [(false, without_capability), (true, with_capability)] {
                let sent = volume_capability(
                    VolumeCapability { access_mode: mode, access_type: AccessType::Block },
                    has_multi_writer,
                );
                assert_eq!(sent.access_mode.unwrap().mode, expected, "{mode:?} {has_multi_writer}");
            }
        }
    }

    #[test]
    fn sizes_above_i64_max_are_rejected() {
        let range = |required, limit| capacity_range(CapacityRange { required, limit });
        let sent = range(Some(5), None).unwrap();
        assert_eq!((sent.required_bytes, sent.limit_bytes), (5, 0));
        for rejected in [range(Some(1 << 63), None), range(None, Some(u64::MAX))] {
            assert_eq!(rejected.unwrap_err().kind, ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn page_limit_is_clamped_to_i32_max() {
        let sent = |limit| page_request(&PageRequest { starting_token: None, max_entries: limit });
        assert_eq!(sent(None), (0, String::new()));
        assert_eq!(sent(Some(7)).0, 7);
        assert_eq!(sent(Some(u32::MAX)).0, i32::MAX);
    }
}
