//! What a driver may have done on this node. It denies by default: what the operator does not name is
//! refused.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer, de};

use crate::{
    attachment::Attachment,
    error::NodeError,
    executor::{Directory, Executor, Image, LocalDevice, Memory, Nothing},
    machine::{Attributes, Filesystem},
    path::Beneath,
};

/// A kind of attachment that the node can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory that the node has already.
    Directory,
    /// A file that the node has already, used as a block device.
    Image,
    /// Memory.
    Tmpfs,
    /// A block device that the node has already.
    LocalDevice,
    /// Nothing.
    None,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Directory, Self::Image, Self::Tmpfs, Self::LocalDevice, Self::None];

    /// The name in an attachment.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Image => "image",
            Self::Tmpfs => "tmpfs",
            Self::LocalDevice => "local-device",
            Self::None => "none",
        }
    }

    /// The kind of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A pattern of stable ids: a text in which `*` stands for anything, also nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern.
    ///
    /// # Errors
    /// When it would match every device, which nobody means who writes a pattern.
    pub fn new(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        if text.trim_matches('*').is_empty() {
            return Err(format!("the pattern {text:?} matches every device: expected more of a stable id"));
        }
        if text.contains('/') {
            return Err(format!("the pattern {text:?} has a /: expected names in /dev/disk/by-id"));
        }
        Ok(Self(text))
    }

    fn matches(&self, id: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| id.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part).and_then(|at| rest.get(at + part.len()..)) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// What a pod may have without a PersistentVolume. Its author chooses the attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InlinePolicy {
    /// Largest memory of one volume in bytes; absent refuses inline volumes.
    pub tmpfs_most: Option<u64>,
}

/// What one driver may have done on this node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Policy {
    /// Kinds of attachments that are executed.
    #[serde(default)]
    pub attachments: BTreeSet<Kind>,
    /// Where the paths of `directory` begin: an absolute path.
    pub directory_root: Option<String>,
    /// Where the paths of `image` begin: an absolute path.
    pub image_root: Option<String>,
    /// Stable ids of `local-device`.
    #[serde(default)]
    pub stable_ids: Vec<Pattern>,
    /// Largest `tmpfs` in bytes.
    pub tmpfs_most: Option<u64>,
    /// Filesystems that are mounted from devices, and made on blank ones; the first one unless a volume names
    /// another.
    #[serde(default = "ext4")]
    pub filesystems: BTreeSet<Filesystem>,
    /// Whether programs in a volume may change their user when they start.
    #[serde(default)]
    pub allow_suid: bool,
    /// Whether device nodes in a volume are devices.
    #[serde(default)]
    pub allow_devices: bool,
    /// Inline volumes of pods.
    #[serde(default)]
    pub inline: InlinePolicy,
}

fn ext4() -> BTreeSet<Filesystem> {
    [Filesystem::Ext4].into()
}

impl Default for Policy {
    /// Denies everything.
    fn default() -> Self {
        Self {
            attachments: BTreeSet::new(),
            directory_root: None,
            image_root: None,
            stable_ids: Vec::new(),
            tmpfs_most: None,
            filesystems: ext4(),
            allow_suid: false,
            allow_devices: false,
            inline: InlinePolicy::default(),
        }
    }
}

impl Policy {
    /// Checks what no single value can tell.
    ///
    /// # Errors
    /// A kind that is named without what it needs, or a root that is none.
    pub fn check(&self) -> Result<(), String> {
        let has = |kind| self.has(kind);
        let needs = [
            (Kind::Directory, "directory-root", self.directory_root.is_some()),
            (Kind::Image, "image-root", self.image_root.is_some()),
            (Kind::LocalDevice, "stable-ids", !self.stable_ids.is_empty()),
            (Kind::Tmpfs, "tmpfs-most", self.tmpfs_most.is_some()),
        ];
        for (kind, key, given) in needs {
            if has(kind) && !given {
                return Err(format!("attachments names {kind}: expected {key} beside it"));
            }
            if given && !has(kind) {
                return Err(format!("{key} is given: expected {kind} in attachments"));
            }
        }
        if (has(Kind::Image) || has(Kind::LocalDevice)) && self.filesystems.is_empty() {
            return Err("filesystems is empty: expected ext4, xfs, or both".to_owned());
        }
        for root in self.directory_root.iter().chain(&self.image_root) {
            let names = root.strip_prefix('/').map(|path| path.trim_end_matches('/'));
            if names.is_none_or(|names| crate::path::RelativePath::parse(names).is_err()) {
                return Err(format!("the root {root:?} is none: expected an absolute path, not /"));
            }
        }
        Ok(())
    }

    /// Whether a kind is executed.
    pub fn has(&self, kind: Kind) -> bool {
        self.attachments.contains(&kind)
    }

    /// What every mount takes away.
    pub(crate) fn least(&self) -> Attributes {
        Attributes { no_suid: !self.allow_suid, no_devices: !self.allow_devices, ..Attributes::default() }
    }

    /// Who executes an attachment: the registry of kinds, and the place where each of them is denied or not.
    ///
    /// # Errors
    /// [`NodeError::Denied`] for what the operator did not name.
    pub(crate) fn executor(&self, attachment: Attachment) -> Result<Box<dyn Executor>, NodeError> {
        let kind = attachment.kind();
        let denied = |what: String| NodeError::Denied(format!("{what} is not allowed on this node"));
        if !self.attachments.contains(&kind) {
            return Err(denied(format!("the attachment {kind}")));
        }
        let beneath = |root: &Option<String>, path| match root {
            Some(root) => Ok(Beneath { root: root.trim_end_matches('/').to_owned(), path }),
            None => Err(denied(format!("the attachment {kind} without a root"))),
        };
        Ok(match attachment {
            Attachment::Directory { path } => Box::new(Directory(beneath(&self.directory_root, path)?)),
            Attachment::Image { path } => Box::new(Image(beneath(&self.image_root, path)?)),
            Attachment::Tmpfs { size } => {
                let most = self.tmpfs_most.unwrap_or_default();
                if size > most {
                    return Err(denied(format!("memory of {size} bytes, above {most},")));
                }
                Box::new(Memory { size, most })
            }
            Attachment::LocalDevice { stable_id } => {
                if !self.stable_ids.iter().any(|pattern| pattern.matches(&stable_id)) {
                    return Err(denied(format!("the device {stable_id:?}")));
                }
                Box::new(LocalDevice(stable_id))
            }
            Attachment::None => Box::new(Nothing),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("wwn-0x5",      "wwn-0x5",         true),
            ("wwn-0x5",      "wwn-0x55",        false),
            ("wwn-*",        "wwn-0x5",         true),
            ("wwn-*",        "wwn-",            true),
            ("wwn-*",        "awwn-1",          false),
            ("*-data",       "nvme-a-data",     true),
            ("*-data",       "nvme-a-data-1",   false),
            ("a*b*c",        "a1b2c",           true),
            ("a*b*c",        "ac",              false),
            ("a*b*b",        "ab",              false),
            ("a*a",          "a",               false),
            ("a*ab",         "ab",              false),
        ];
        for (pattern, id, expected) in table {
            assert_eq!(Pattern::new(pattern).unwrap().matches(id), expected, "{pattern} {id}");
        }
        for bad in ["", "*", "**", "../*"] {
            assert!(Pattern::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_policy_names_a_kind_and_what_it_needs_or_neither() {
        let ok = |policy: Policy| policy.check().is_ok();
        assert!(ok(Policy::default()));
        let directory = |root: Option<&str>| Policy {
            attachments: [Kind::Directory].into(),
            directory_root: root.map(str::to_owned),
            ..Policy::default()
        };
        assert!(ok(directory(Some("/srv/pool"))) && ok(directory(Some("/srv/pool/"))));
        for root in [None, Some("/"), Some("srv"), Some("/srv/../etc"), Some("")] {
            assert!(!ok(directory(root)), "{root:?}");
        }
        assert!(!ok(Policy { image_root: Some("/srv".to_owned()), ..Policy::default() }));
        for kind in [Kind::Image, Kind::Tmpfs, Kind::LocalDevice] {
            assert!(!ok(Policy { attachments: [kind].into(), ..Policy::default() }), "{kind}");
        }
        assert!(ok(Policy { attachments: [Kind::None].into(), ..Policy::default() }));
    }
}
