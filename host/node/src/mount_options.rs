//! Mount options. Only the options listed here are allowed.

use crate::{error::NodeError, filesystem::Filesystem, mount_point::MountAttributes, nfs::NfsVersion};

/// Parsed mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Per-mount attributes.
    pub attributes: MountAttributes,
    /// Access time updates; `None` for the default, `relatime`.
    pub access_times: Option<AccessTimes>,
    /// Filesystem-specific options and their values.
    pub data: Vec<(String, Option<String>)>,
}

/// Access time updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// `noatime`
    Never,
    /// `relatime`
    Relative,
    /// `strictatime`
    Strict,
}

/// Maximum length of an SELinux context in bytes.
const MAX_LABEL_BYTES: usize = 512;

/// The value that an option takes.
#[derive(Clone, Copy)]
enum OptionValue {
    /// No value.
    None,
    /// A decimal number of at most 10 digits.
    Number,
    /// One of the listed values.
    OneOf(&'static [&'static str]),
    /// An SELinux label.
    SelinuxLabel,
}

/// Options of all filesystems on block devices.
const DEVICE_OPTIONS: [(&str, OptionValue); 5] = [
    ("discard", OptionValue::None),
    ("nodiscard", OptionValue::None),
    ("lazytime", OptionValue::None),
    ("nolazytime", OptionValue::None),
    // kubelet adds it for SELinux-labelled pods.
    ("context", OptionValue::SelinuxLabel),
];
const EXT4_OPTIONS: [(&str, OptionValue); 8] = [
    ("commit", OptionValue::Number),
    // Not "panic": corrupt volume content must not crash the node.
    ("errors", OptionValue::OneOf(&["continue", "remount-ro"])),
    ("data", OptionValue::OneOf(&["ordered", "writeback", "journal"])),
    ("barrier", OptionValue::None),
    ("delalloc", OptionValue::None),
    ("nodelalloc", OptionValue::None),
    ("acl", OptionValue::None),
    ("user_xattr", OptionValue::None),
];
const XFS_OPTIONS: [(&str, OptionValue); 7] = [
    ("allocsize", OptionValue::Number),
    ("inode64", OptionValue::None),
    ("largeio", OptionValue::None),
    ("logbufs", OptionValue::Number),
    ("logbsize", OptionValue::Number),
    ("noquota", OptionValue::None),
    ("swalloc", OptionValue::None),
];
const TMPFS_OPTIONS: [(&str, OptionValue); 1] = [("context", OptionValue::SelinuxLabel)];

/// Options of NFS. Not those that name another server, port or protocol than the connection info, such as
/// `addr`, `mountaddr`, `port`, `proto` and `vers`.
const NFS_OPTIONS: [(&str, OptionValue); 17] = [
    ("hard", OptionValue::None),
    ("soft", OptionValue::None),
    ("softerr", OptionValue::None),
    ("timeo", OptionValue::Number),
    ("retrans", OptionValue::Number),
    ("rsize", OptionValue::Number),
    ("wsize", OptionValue::Number),
    ("nconnect", OptionValue::Number),
    ("acregmin", OptionValue::Number),
    ("acregmax", OptionValue::Number),
    ("acdirmin", OptionValue::Number),
    ("acdirmax", OptionValue::Number),
    ("actimeo", OptionValue::Number),
    ("noac", OptionValue::None),
    ("lookupcache", OptionValue::OneOf(&["all", "none", "pos", "positive"])),
    ("noresvport", OptionValue::None),
    ("context", OptionValue::SelinuxLabel),
];
const NFS3_OPTIONS: [(&str, OptionValue); 3] = [
    // Locks are local to the node with or without it.
    ("nolock", OptionValue::None),
    ("rdirplus", OptionValue::None),
    ("nordirplus", OptionValue::None),
];

/// The type of a mount. It selects the allowed options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountType {
    /// A filesystem on a block device.
    Device(Filesystem),
    /// A tmpfs.
    Tmpfs,
    /// An NFS export.
    Nfs(NfsVersion),
    /// A bind mount.
    Bind,
}

impl MountType {
    fn allowed_options(self) -> impl Iterator<Item = (&'static str, OptionValue)> {
        let (common, specific): (&[_], &[_]) = match self {
            Self::Device(Filesystem::Ext4) => (&DEVICE_OPTIONS, &EXT4_OPTIONS),
            Self::Device(Filesystem::Xfs) => (&DEVICE_OPTIONS, &XFS_OPTIONS),
            Self::Tmpfs => (&TMPFS_OPTIONS, &[]),
            Self::Nfs(NfsVersion::V3) => (&NFS_OPTIONS, &NFS3_OPTIONS),
            Self::Nfs(NfsVersion::V4_1 | NfsVersion::V4_2) => (&NFS_OPTIONS, &[]),
            Self::Bind => (&[], &[]),
        };
        common.iter().chain(specific).copied()
    }
}

impl MountOptions {
    /// Parses the mount flags of a capability. `base_attributes` are set regardless of the flags.
    ///
    /// # Errors
    /// [`NodeError::Denied`] for an option, or a value of an option, that is not allowed.
    pub(crate) fn from_flags(
        flags: &[String],
        mount_type: MountType,
        base_attributes: MountAttributes,
    ) -> Result<Self, NodeError> {
        let mut options = Self { attributes: base_attributes, ..Self::default() };
        // PersistentVolumes migrated from in-tree plugins have several options in one flag.
        for flag in flags.iter().flat_map(|flag| UnquotedCommas(flag)).filter(|flag| !flag.is_empty()) {
            if !options.apply_generic(flag) {
                options.data.push(filesystem_option(flag, mount_type)?);
            }
        }
        Ok(options)
    }

    /// Applies a filesystem-independent option and returns true. `rw`, `async`, `defaults`, `_netdev` and
    /// `nofail` are accepted without an effect. Returns false for a filesystem-specific or unknown option.
    fn apply_generic(&mut self, flag: &str) -> bool {
        let attributes = &mut self.attributes;
        match flag {
            "ro" => attributes.read_only = true,
            "nosuid" => attributes.no_suid = true,
            "nodev" => attributes.no_devices = true,
            "noexec" => attributes.no_exec = true,
            "noatime" => self.access_times = Some(AccessTimes::Never),
            "relatime" => self.access_times = Some(AccessTimes::Relative),
            "strictatime" => self.access_times = Some(AccessTimes::Strict),
            "rw" | "async" | "defaults" | "_netdev" | "nofail" => {}
            _ => return false,
        }
        true
    }
}

/// Parses a filesystem-specific option.
fn filesystem_option(flag: &str, mount_type: MountType) -> Result<(String, Option<String>), NodeError> {
    let denied = || {
        let truncated: String = flag.chars().take(64).collect();
        NodeError::Denied(format!("the mount option {truncated:?} is not allowed on this node"))
    };
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (flag, None),
    };
    let (_, value_kind) =
        mount_type.allowed_options().find(|(allowed, _)| *allowed == name).ok_or_else(denied)?;
    let value = match (value_kind, value) {
        (OptionValue::None, None) => None,
        (OptionValue::Number, Some(value)) if value.len() <= 10 && is_number(value) => Some(value.to_owned()),
        (OptionValue::OneOf(values), Some(value)) if values.contains(&value) => Some(value.to_owned()),
        (OptionValue::SelinuxLabel, Some(value)) => {
            let label = value.trim_matches('"');
            if label.len() > MAX_LABEL_BYTES || !is_selinux_label(label) {
                return Err(denied());
            }
            Some(label.to_owned())
        }
        (OptionValue::None | OptionValue::Number | OptionValue::OneOf(_) | OptionValue::SelinuxLabel, _) => {
            return Err(denied());
        }
    };
    Ok((name.to_owned(), value))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Checks the form `user:role:type`, optionally with `:level`. The level may contain commas.
fn is_selinux_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b',');
    text.split(':').count() >= 3 && text.bytes().all(inner)
}

/// Splits a text at commas outside of double quotes.
struct UnquotedCommas<'a>(&'a str);

impl<'a> Iterator for UnquotedCommas<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let mut quoted = false;
        let end = self.0.find(|c| {
            quoted ^= c == '"';
            c == ',' && !quoted
        });
        let (part, rest) = end.and_then(|end| self.0.split_at_checked(end)).unwrap_or((self.0, ""));
        self.0 = rest.strip_prefix(',').unwrap_or(rest);
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[&str], mount_type: MountType) -> Result<MountOptions, NodeError> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        MountOptions::from_flags(
            &flags,
            mount_type,
            MountAttributes { no_devices: true, ..MountAttributes::default() },
        )
    }

    #[test]
    fn mount_options_not_on_the_allow_list_are_denied() {
        let ext4 = MountType::Device(Filesystem::Ext4);
        let options = read(
            &["ro,noatime", "commit=30", r#"context="system_u:object_r:container_file_t:s0:c1,c2""#],
            ext4,
        )
        .unwrap();
        assert_eq!(
            options,
            MountOptions {
                attributes: MountAttributes {
                    read_only: true,
                    no_devices: true,
                    ..MountAttributes::default()
                },
                access_times: Some(AccessTimes::Never),
                data: vec![
                    ("commit".to_owned(), Some("30".to_owned())),
                    ("context".to_owned(), Some("system_u:object_r:container_file_t:s0:c1,c2".to_owned())),
                ],
            }
        );
        assert_eq!(read(&["inode64"], MountType::Device(Filesystem::Xfs)).unwrap().data.len(), 1);
        for bad in [
            "suid",
            "dev",
            "exec",
            "bind",
            "rbind",
            "remount",
            "loop",
            "move",
            "shared",
            "nouuid",
            "errors=panic",
            "errors",
            "commit=",
            "commit=-1",
            "commit=1e3",
            "commit=99999999999",
            "context=x",
            "fscontext=a:b:c",
            "context=a:b:c d",
            "data=journal_data",
            "usrjquota=/etc/shadow",
            "journal_path=/dev/sda",
            "journal_dev=8",
            "X-mount.mkdir",
            "uid=0",
            "size=1",
            "inode64",
            "ro=1",
            "discard=1",
        ] {
            assert!(matches!(read(&[bad], ext4), Err(NodeError::Denied(_))), "{bad}");
        }
        for (bad, mount_type) in [
            ("discard", MountType::Bind),
            ("context=a:b:c", MountType::Bind),
            ("size=9g", MountType::Tmpfs),
            ("mode=7777", MountType::Tmpfs),
            ("addr=10.0.0.1", MountType::Nfs(NfsVersion::V4_2)),
            ("vers=3", MountType::Nfs(NfsVersion::V4_2)),
            ("port=22", MountType::Nfs(NfsVersion::V3)),
            ("mountaddr=10.0.0.1", MountType::Nfs(NfsVersion::V3)),
            ("sec=none", MountType::Nfs(NfsVersion::V3)),
            ("nolock", MountType::Nfs(NfsVersion::V4_2)),
            ("nconnect=16,addr=10.0.0.1", MountType::Nfs(NfsVersion::V4_2)),
            ("timeo=-1", MountType::Nfs(NfsVersion::V4_2)),
        ] {
            assert!(matches!(read(&[bad], mount_type), Err(NodeError::Denied(_))), "{bad} {mount_type:?}");
        }
        assert!(read(&["rw", "nosuid", "relatime"], MountType::Bind).unwrap().data.is_empty());
        let nfs = read(&["hard,nconnect=4", "lookupcache=pos"], MountType::Nfs(NfsVersion::V4_1)).unwrap();
        assert_eq!(nfs.data.len(), 3);
        assert_eq!(read(&["nolock"], MountType::Nfs(NfsVersion::V3)).unwrap().data.len(), 1);
    }
}
