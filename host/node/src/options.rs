//! Mount options, by allow-list: what is not named here is refused.

use crate::{
    error::NodeError,
    machine::{Attributes, Filesystem},
};

/// How something is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Attributes of the mount.
    pub attributes: Attributes,
    /// When times of access are written; absent leaves it to the kernel.
    pub access_times: Option<AccessTimes>,
    /// Options of the filesystem, with their values.
    pub data: Vec<(String, Option<String>)>,
}

/// When times of access are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never.
    Never,
    /// When the file was changed since, or a day has passed.
    Relative,
    /// Always.
    Strict,
}

/// Most bytes of an option: the longest one is an SELinux context.
const MAX_OPTION: usize = 512;

/// What an option may have as its value.
#[derive(Clone, Copy)]
enum Value {
    /// Nothing.
    None,
    /// A decimal number.
    Number,
    /// One of these.
    One(&'static [&'static str]),
    /// An SELinux label.
    Label,
}

/// Options of every filesystem on a device.
const COMMON: [(&str, Value); 5] = [
    ("discard", Value::None),
    ("nodiscard", Value::None),
    ("lazytime", Value::None),
    ("nolazytime", Value::None),
    // Kubelet's own, for pods with SELinux labels.
    ("context", Value::Label),
];
const EXT4: [(&str, Value); 8] = [
    ("commit", Value::Number),
    // Not "panic": a volume's content must not be able to stop the node.
    ("errors", Value::One(&["continue", "remount-ro"])),
    ("data", Value::One(&["ordered", "writeback", "journal"])),
    ("barrier", Value::None),
    ("delalloc", Value::None),
    ("nodelalloc", Value::None),
    ("acl", Value::None),
    ("user_xattr", Value::None),
];
const XFS: [(&str, Value); 7] = [
    ("allocsize", Value::Number),
    ("inode64", Value::None),
    ("largeio", Value::None),
    ("logbufs", Value::Number),
    ("logbsize", Value::Number),
    ("noquota", Value::None),
    ("swalloc", Value::None),
];
const LABEL: [(&str, Value); 1] = [("context", Value::Label)];

/// What is mounted, which decides what an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// A filesystem on a device.
    Device(Filesystem),
    /// Memory.
    Memory,
    /// Something that is mounted already.
    Bind,
}

impl Of {
    fn allowed(self) -> impl Iterator<Item = (&'static str, Value)> {
        let (common, own): (&[_], &[_]) = match self {
            Self::Device(Filesystem::Ext4) => (&COMMON, &EXT4),
            Self::Device(Filesystem::Xfs) => (&COMMON, &XFS),
            Self::Memory => (&LABEL, &[]),
            Self::Bind => (&[], &[]),
        };
        common.iter().chain(own).copied()
    }
}

impl MountOptions {
    /// Reads the options of a capability; `least` is taken away whatever they say.
    ///
    /// # Errors
    /// [`NodeError::Denied`] for an option that is not on the list.
    pub(crate) fn read(flags: &[String], of: Of, least: Attributes) -> Result<Self, NodeError> {
        let mut options = Self { attributes: least, ..Self::default() };
        // PVs of in-tree times hold several options in one text.
        for flag in flags.iter().flat_map(|flag| Parts(flag)).filter(|flag| !flag.is_empty()) {
            if !options.general(flag) {
                options.data.push(particular(flag, of)?);
            }
        }
        Ok(options)
    }

    /// Takes an option that every mount has; those that only grant what is granted anyway change nothing.
    fn general(&mut self, flag: &str) -> bool {
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

/// An option that only some filesystems have.
fn particular(flag: &str, of: Of) -> Result<(String, Option<String>), NodeError> {
    let denied = || {
        let shown: String = flag.chars().take(64).collect();
        NodeError::Denied(format!("the mount option {shown:?} is not on this node's list"))
    };
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (flag, None),
    };
    let (_, shape) = of.allowed().find(|(allowed, _)| *allowed == name).ok_or_else(denied)?;
    let value = match (shape, value) {
        (Value::None, None) => None,
        (Value::Number, Some(value)) if value.len() <= 10 && is_number(value) => Some(value.to_owned()),
        (Value::One(values), Some(value)) if values.contains(&value) => Some(value.to_owned()),
        (Value::Label, Some(value)) => {
            let label = value.trim_matches('"');
            if label.len() > MAX_OPTION || !is_label(label) {
                return Err(denied());
            }
            Some(label.to_owned())
        }
        (Value::None | Value::Number | Value::One(_) | Value::Label, _) => return Err(denied()),
    };
    Ok((name.to_owned(), value))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `user:role:type:level`, whose level has commas.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b',');
    text.split(':').count() >= 3 && text.bytes().all(inner)
}

/// Parts of a text between commas, none of which is within quotes.
struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
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

    fn read(flags: &[&str], of: Of) -> Result<MountOptions, NodeError> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        MountOptions::read(&flags, of, Attributes { no_devices: true, ..Attributes::default() })
    }

    #[test]
    fn what_is_not_on_the_list_is_refused() {
        let ext4 = Of::Device(Filesystem::Ext4);
        let options = read(
            &["ro,noatime", "commit=30", r#"context="system_u:object_r:container_file_t:s0:c1,c2""#],
            ext4,
        )
        .unwrap();
        assert_eq!(
            options,
            MountOptions {
                attributes: Attributes { read_only: true, no_devices: true, ..Attributes::default() },
                access_times: Some(AccessTimes::Never),
                data: vec![
                    ("commit".to_owned(), Some("30".to_owned())),
                    ("context".to_owned(), Some("system_u:object_r:container_file_t:s0:c1,c2".to_owned())),
                ],
            }
        );
        assert_eq!(read(&["inode64"], Of::Device(Filesystem::Xfs)).unwrap().data.len(), 1);
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
        for (bad, of) in [
            ("discard", Of::Bind),
            ("context=a:b:c", Of::Bind),
            ("size=9g", Of::Memory),
            ("mode=7777", Of::Memory),
        ] {
            assert!(matches!(read(&[bad], of), Err(NodeError::Denied(_))), "{bad} {of:?}");
        }
        assert!(read(&["rw", "nosuid", "relatime"], Of::Bind).unwrap().data.is_empty());
    }
}
