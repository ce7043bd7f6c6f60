//! Parser of `/proc/<pid>/mountinfo`.
//!
//! Paths are bytes. The kernel escapes only blanks, tabs, line feeds, backslashes and `#` in them, and a pod
//! without privileges can have kubelet mount a directory whose name is not UTF-8 (`subPath`). One line that
//! cannot be read therefore must not fail queries about other paths.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt as _,
};

use super::paths::Result;
use crate::{
    error::MounterError,
    mount_point::{MountAttributes, MountPoint},
};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountInfoEntry {
    /// The mount path.
    pub(super) mount_path: OsString,
    /// The root of the mount within its filesystem.
    pub(super) fs_root: OsString,
    pub(super) mount: MountPoint,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnreadableLine {
    /// The mount path, if the line has this field.
    mount_path: Option<OsString>,
    line: Vec<u8>,
}

/// All mounts of a mount namespace. Later entries are on top of earlier ones at the same path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountTable {
    entries: Vec<MountInfoEntry>,
    unreadable_lines: Vec<UnreadableLine>,
}

impl MountTable {
    /// Reads all mounts of this process's namespace.
    pub(super) fn read() -> Result<Self> {
        let bytes = std::fs::read("/proc/thread-self/mountinfo")
            .map_err(|error| MounterError::Failed(format!("mountinfo: {error}")))?;
        Ok(Self::parse(&bytes))
    }

    /// Parses a table.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut table = Self::default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match parse_line(line) {
                Some(entry) => table.entries.push(entry),
                None => table.unreadable_lines.push(UnreadableLine {
                    mount_path: line.split(|byte| *byte == b' ').nth(4).map(unescape),
                    line: line.to_owned(),
                }),
            }
        }
        table
    }

    /// Returns all entries, except those whose lines cannot be read.
    pub(super) fn entries(&self) -> &[MountInfoEntry] {
        &self.entries
    }

    /// Returns the mounts at a path. The last one is on top.
    ///
    /// # Errors
    /// A line of this path cannot be read. Such lines of other paths are ignored.
    pub(super) fn at(&self, path: &OsStr) -> Result<Vec<&MountInfoEntry>> {
        let unreadable = self.unreadable_lines.iter().find(|line| line.mount_path.as_deref() == Some(path));
        if let Some(UnreadableLine { line, .. }) = unreadable {
            let line = String::from_utf8_lossy(line);
            return Err(MounterError::Failed(format!("mountinfo has an invalid line: {line:?}")));
        }
        Ok(self.entries.iter().filter(|entry| entry.mount_path == path).collect())
    }
}

fn parse_line(line: &[u8]) -> Option<MountInfoEntry> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let (device, root, mount_path, options) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    // A field "-" ends the optional fields.
    fields.find(|field| *field == b"-")?;
    let (fs_type, source) = (fields.next()?, fields.next()?);
    let super_options = fields.next().unwrap_or_default();
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let mount = MountPoint {
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: unescape(source).to_string_lossy().into_owned(),
        device: (major.parse().ok()?, minor.parse().ok()?),
        attributes: MountAttributes {
            read_only: has_option(options, b"ro"),
            no_suid: has_option(options, b"nosuid"),
            no_devices: has_option(options, b"nodev"),
            no_exec: has_option(options, b"noexec"),
        },
        filesystem_read_only: has_option(super_options, b"ro"),
    };
    Some(MountInfoEntry { mount_path: unescape(mount_path), fs_root: unescape(root), mount })
}

fn has_option(options: &[u8], name: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|option| option == name)
}

/// Decodes octal escapes, which `/proc/swaps` has too.
pub(super) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match after.split_first_chunk::<3>() {
            Some((digits, after))
                if *first == b'\\'
                    && let Some(byte) = octal_byte(*digits) =>
            {
                bytes.push(byte);
                rest = after;
            }
            Some(_) | None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Parses a byte of three octal digits.
fn octal_byte(digits: [u8; 3]) -> Option<u8> {
    let digit = |digit: u8| matches!(digit, b'0'..=b'7').then(|| u32::from(digit - b'0'));
    let [high, middle, low] = digits;
    u8::try_from((digit(high)? << 6) | (digit(middle)? << 3) | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let line = parse_line(
            b"36 35 98:0 /mnt1 /a\\040b/c ro,nosuid,noatime master:1 shared:2 - ext3 \
              /dev/root rw,errors=continue",
        );
        let line = line.unwrap();
        assert_eq!((line.mount_path.to_str(), line.fs_root.to_str()), (Some("/a b/c"), Some("/mnt1")));
        assert_eq!((line.mount.fs_type.as_str(), line.mount.device), ("ext3", (98, 0)));
        assert_eq!(line.mount.source, "/dev/root");
        assert!(line.mount.attributes.read_only && line.mount.attributes.no_suid);
        assert!(!line.mount.attributes.no_devices && !line.mount.filesystem_read_only);
        assert!(
            parse_line(b"36 35 98:0 / / rw - tmpfs  ro").unwrap().mount.filesystem_read_only,
            "an empty source"
        );
        for bad in ["", "a - b", "36 35 98 / / rw - ext4 x rw", "36 35 98:0 / / rw shared:1 ext4 x rw"] {
            assert_eq!(parse_line(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(unescape(br"a\134b\0"), r"a\b\0");
        assert_eq!(unescape(br"\+12\-01\777"), r"\+12\-01\777", "no octal escapes of a byte");
    }

    #[test]
    fn paths_that_are_not_utf8_are_parsed_as_bytes() {
        let table = MountTable::parse(
            b"36 35 98:0 /\xff /mnt rw - ext4 /dev/x rw\n37 35 0:9 / /a rw - tmpfs t rw\n\
              38 35 0:9 / /\xfe\\040b rw - tmpfs t rw\n",
        );
        let paths: Vec<&[u8]> = table.entries().iter().map(|entry| entry.mount_path.as_bytes()).collect();
        assert_eq!(paths, [&b"/mnt"[..], b"/a", b"/\xfe b"]);
        assert_eq!(table.entries()[0].fs_root.as_bytes(), b"/\xff");
        assert_eq!(table.at(OsStr::new("/a")).unwrap().len(), 1);
        assert_eq!(table.at(OsStr::from_bytes(b"/\xfe b")).unwrap().len(), 1);
        // Bytes, not the characters that replace them in messages.
        assert_eq!(table.at(OsStr::new("/\u{fffd} b")).unwrap().len(), 0);
    }

    #[test]
    fn an_unreadable_line_fails_only_queries_about_its_path() {
        let table = MountTable::parse(
            b"36 35 98:0 / /a rw - ext4 /dev/x rw\n37 35 none / /b\\040c rw - ext4 /dev/x rw\nshort\n\
              38 35 98:0 / /a rw,nosuid - ext4 /dev/x rw\n",
        );
        assert_eq!(table.entries().len(), 2);
        let at_a = table.at(OsStr::new("/a")).unwrap();
        assert!(at_a.last().unwrap().mount.attributes.no_suid, "the last one is on top");
        let error = table.at(OsStr::new("/b c")).unwrap_err().to_string();
        assert!(error.contains("37 35 none"), "{error}");
    }

    #[test]
    fn own_mountinfo_contains_the_root_mount() {
        let table = MountTable::read().unwrap();
        assert_eq!(table.unreadable_lines, []);
        assert!(!table.at(OsStr::new("/")).unwrap().is_empty());
    }
}
