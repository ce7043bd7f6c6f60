//! Parser of `/proc/<pid>/mountinfo`.

use super::paths::Result;
use crate::{
    error::MounterError,
    mount_point::{MountAttributes, MountPoint},
};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountInfoEntry {
    /// The mount path.
    pub(super) mount_path: String,
    /// The root of the mount within its filesystem.
    pub(super) fs_root: String,
    pub(super) mount: MountPoint,
}

/// Reads all mounts of this process's namespace. Later entries are on top of earlier ones at the same path.
pub(super) fn read() -> Result<Vec<MountInfoEntry>> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(|error| MounterError::Failed(format!("mountinfo: {error}")))?;
    text.lines().map(|line| parse(line).ok_or_else(|| parse_error(line))).collect()
}

fn parse_error(line: &str) -> MounterError {
    MounterError::Failed(format!("mountinfo has an invalid line: {line:?}"))
}

fn parse(line: &str) -> Option<MountInfoEntry> {
    let (mount_fields, filesystem_fields) = line.split_once(" - ")?;
    let mut mount_fields = mount_fields.split(' ').skip(2);
    let (device, root, mount_path, options) =
        (mount_fields.next()?, mount_fields.next()?, mount_fields.next()?, mount_fields.next()?);
    let mut filesystem_fields = filesystem_fields.split(' ');
    let (fs_type, source) = (filesystem_fields.next()?, filesystem_fields.next()?);
    let super_options = filesystem_fields.next().unwrap_or_default();
    let (major, minor) = device.split_once(':')?;
    let has = |name| options.split(',').any(|option| option == name);
    let mount = MountPoint {
        fs_type: fs_type.to_owned(),
        source: unescape(source),
        device: (major.parse().ok()?, minor.parse().ok()?),
        attributes: MountAttributes {
            read_only: has("ro"),
            no_suid: has("nosuid"),
            no_devices: has("nodev"),
            no_exec: has("noexec"),
        },
        filesystem_read_only: super_options.split(',').any(|option| option == "ro"),
    };
    Some(MountInfoEntry { mount_path: unescape(mount_path), fs_root: unescape(root), mount })
}

/// Decodes octal escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = octal.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let line = parse(
            "36 35 98:0 /mnt1 /a\\040b/c ro,nosuid,noatime master:1 shared:2 - ext3 \
             /dev/root rw,errors=continue",
        );
        let line = line.unwrap();
        assert_eq!((line.mount_path.as_str(), line.fs_root.as_str()), ("/a b/c", "/mnt1"));
        assert_eq!((line.mount.fs_type.as_str(), line.mount.device), ("ext3", (98, 0)));
        assert!(line.mount.attributes.read_only && line.mount.attributes.no_suid);
        assert!(!line.mount.attributes.no_devices && !line.mount.filesystem_read_only);
        assert!(
            parse("36 35 98:0 / / rw - tmpfs  ro").unwrap().mount.filesystem_read_only,
            "an empty source"
        );
        for bad in ["", "a - b", "36 35 98 / / rw - ext4 x rw"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(unescape(r"a\134b\0"), r"a\b\0");
    }

    #[test]
    fn own_mountinfo_contains_the_root_mount() {
        assert!(read().unwrap().iter().any(|line| line.mount_path == "/"));
    }
}
