//! Constructors of what a backend returns.

use std::collections::BTreeMap;

use crate::{
    AccessMode, AccessType, Attachment, CapacityRange, CreateRequest, Description, KeyValues, Placement,
    Volume, VolumeCapability,
};

impl AccessMode {
    /// The mode as the contract spells it, such as `single-node-writer`: fit to be kept.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "single-node-writer",
            Self::SingleNodeReaderOnly => "single-node-reader-only",
            Self::MultiNodeReaderOnly => "multi-node-reader-only",
            Self::MultiNodeSingleWriter => "multi-node-single-writer",
            Self::MultiNodeMultiWriter => "multi-node-multi-writer",
            Self::SingleNodeSingleWriter => "single-node-single-writer",
            Self::SingleNodeMultiWriter => "single-node-multi-writer",
        }
    }

    /// Whether the volume is used on several nodes at a time.
    pub const fn is_multi_node(self) -> bool {
        match self {
            Self::SingleNodeWriter
            | Self::SingleNodeReaderOnly
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter => false,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter => true,
        }
    }
}

impl AccessType {
    /// The type as the contract spells it, without its options: `block` or `filesystem`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Filesystem(_) => "filesystem",
        }
    }
}

impl VolumeCapability {
    /// The whole capability as one line of words: the mode, the type, and what was said of the filesystem,
    /// quoted as JSON quotes. Two are the same exactly when their lines are, and a line means the same in
    /// every version of the SDK: what a volume was created for can be kept like this, and compared.
    ///
    /// ```
    /// use cofferdam_guest::{AccessMode, AccessType, FilesystemAccess, VolumeCapability};
    ///
    /// let block = VolumeCapability { mode: AccessMode::SingleNodeWriter, access: AccessType::Block };
    /// assert_eq!(block.canonical_string(), "single-node-writer block");
    /// let access = FilesystemAccess {
    ///     fs_type: Some("ext4".to_owned()),
    ///     mount_flags: vec!["noatime".to_owned(), "context=\"a\"".to_owned()],
    ///     mount_group: None,
    /// };
    /// let mounted = VolumeCapability { access: AccessType::Filesystem(access), ..block };
    /// assert_eq!(
    ///     mounted.canonical_string(),
    ///     r#"single-node-writer filesystem fs-type="ext4" mount-flag="noatime" mount-flag="context=\"a\"""#
    /// );
    /// ```
    pub fn canonical_string(&self) -> String {
        let mut text = format!("{} {}", self.mode.as_str(), self.access.as_str());
        if let AccessType::Filesystem(access) = &self.access {
            let flags = access.mount_flags.iter().map(|flag| ("mount-flag", flag));
            let options = access.fs_type.iter().map(|kind| ("fs-type", kind)).chain(flags);
            for (key, value) in options.chain(access.mount_group.iter().map(|group| ("mount-group", group))) {
                text.push_str(&format!(" {key}={}", serde_json::Value::from(value.as_str())));
            }
        }
        text
    }
}

impl Description {
    /// A backend without topology, limits and features, that runs anywhere.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        }
    }
}

impl CreateRequest {
    /// The simplest request, for tests: a raw device of at least so many bytes, used on one node.
    pub fn new(name: impl Into<String>, required_bytes: u64) -> Self {
        Self {
            name: name.into(),
            capacity: CapacityRange { required_bytes: Some(required_bytes), limit_bytes: None },
            capabilities: vec![VolumeCapability {
                mode: AccessMode::SingleNodeWriter,
                access: AccessType::Block,
            }],
            parameters: Vec::new(),
            mutable_parameters: Vec::new(),
            topology: None,
            owner: None,
        }
    }
}

impl Volume {
    /// A volume that is reached from everywhere and needs neither attributes nor an attachment.
    pub fn new(handle: impl Into<String>, capacity_bytes: u64) -> Self {
        Self {
            handle: handle.into(),
            capacity_bytes: Some(capacity_bytes),
            context: Vec::new(),
            topology: Vec::new(),
            attachment: None,
        }
    }
}

/// The kinds that nodes know, in their first version. Whether a node accepts one is its operator's to say.
///
/// A `path` is relative: names parted by `/`, none of them empty, `.` or `..`. It begins at the root that the
/// node's operator has given this driver for the kind, and no link is followed on the way.
///
/// ```
/// use cofferdam_guest::Attachment;
///
/// let attachment = Attachment::local_device("wwn-0x5000c500a0b1c2d3");
/// assert_eq!(attachment.kind, "local-device");
/// assert_eq!(attachment.fields, [("stable-id".to_owned(), "wwn-0x5000c500a0b1c2d3".to_owned())]);
/// ```
impl Attachment {
    /// There is nothing to do on a node.
    pub fn none() -> Self {
        Self::with_fields("none", &[])
    }

    /// A directory of the node, by its path below the driver's root there.
    pub fn directory(path: &str) -> Self {
        Self::with_fields("directory", &[("path", path)])
    }

    /// A file of the node that is used as a block device, by its path below the driver's root there.
    pub fn image(path: &str) -> Self {
        Self::with_fields("image", &[("path", path)])
    }

    /// A filesystem in the node's memory, of a size in bytes.
    pub fn tmpfs(size_bytes: u64) -> Self {
        Self::with_fields("tmpfs", &[("size", &size_bytes.to_string())])
    }

    /// A block device of the node, by the name that it has in `/dev/disk/by-id`: one that stays with the
    /// device.
    pub fn local_device(stable_id: &str) -> Self {
        Self::with_fields("local-device", &[("stable-id", stable_id)])
    }

    fn with_fields(kind: &str, fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self { kind: kind.to_owned(), version: 1, fields: fields.collect() }
    }
}

/// Pairs as a map: the contract says that keys are unique and that their order means nothing.
pub fn to_map(pairs: KeyValues) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}
