//! Tables of mounts and swap areas, and messages of mounts.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _};

use cofferdam_node::{
    Device, MountAttributes,
    fuzzing::{self, MountEntry, MountTable},
};

use crate::message::assert_printable;

/// Escapes a field as the kernel does.
fn escape(field: &[u8]) -> Vec<u8> {
    let escape_byte = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    field.iter().flat_map(escape_byte).collect()
}

/// Decodes the escapes of the kernel in a field.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), field);
    loop {
        match rest {
            [] => return bytes,
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..] => {
                bytes.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = after;
            }
            [first, after @ ..] => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
}

/// The line of a mount, as the kernel writes it.
fn kernel_line(entry: &MountEntry) -> Vec<u8> {
    let mount = &entry.mount;
    let MountAttributes { read_only, no_suid, no_devices, no_exec } = mount.attributes;
    let access = |read_only| if read_only { "ro" } else { "rw" };
    let mut options = access(read_only).to_owned();
    for (is_set, option) in [(no_suid, ",nosuid"), (no_devices, ",nodev"), (no_exec, ",noexec")] {
        options.push_str(if is_set { option } else { "" });
    }
    let (major, minor) = mount.device;
    let fields = [
        format!("36 35 {major}:{minor}").into_bytes(),
        escape(entry.fs_root.as_bytes()),
        escape(entry.mount_path.as_bytes()),
        format!("{options},relatime shared:1 - {}", mount.fs_type).into_bytes(),
        escape(mount.source.as_bytes()),
        format!("{},seclabel\n", access(mount.filesystem_read_only)).into_bytes(),
    ];
    fields.join(&b' ')
}

pub(super) fn mountinfo(content: &[u8]) {
    let table = MountTable::parse(content);
    let entries = table.entries();
    let of_lines = content.split(|byte| *byte == b'\n').flat_map(line_entry);
    assert_eq!(entries, of_lines.collect::<Vec<_>>(), "a line depends on another one");
    let rendered: Vec<u8> = entries.iter().flat_map(kernel_line).collect();
    assert_eq!(MountTable::parse(&rendered).entries(), entries);
    for entry in &entries {
        check_path(&table, &entries, entry, content.len());
        check_users(&table, &entries, entry);
        check_refs(&table, &entries, entry);
    }
}

/// The mount of one line. Its path and its root are the decoded fields of the line.
fn line_entry(line: &[u8]) -> Option<MountEntry> {
    let entries = MountTable::parse(line).entries();
    assert!(entries.len() <= 1, "{entries:?}");
    let entry = entries.into_iter().next()?;
    let paths = line.split(|byte| *byte == b' ').skip(3).take(2).map(unescape);
    assert!(paths.eq([entry.fs_root.as_bytes(), entry.mount_path.as_bytes()]), "{entry:?}");
    Some(entry)
}

/// The mounts at a path are those of its lines, unless one of these lines cannot be read.
fn check_path(table: &MountTable, entries: &[MountEntry], entry: &MountEntry, max_line_bytes: usize) {
    match table.at(&entry.mount_path) {
        Ok(found) => {
            let expected = entries.iter().filter(|other| other.mount_path == entry.mount_path);
            assert!(found.iter().eq(expected), "{found:?}");
        }
        Err(error) => assert_printable(&error.to_string(), 100 + 10 * max_line_bytes),
    }
}

/// Every mount of a device is a use of it.
fn check_users(table: &MountTable, entries: &[MountEntry], entry: &MountEntry) {
    let device = Device { name: "sda".to_owned(), number: entry.mount.device };
    let users = table.users(&device);
    let mounts = entries.iter().filter(|other| other.mount.device == device.number).count();
    assert_eq!(users.iter().filter(|user| user.starts_with("mounted at ")).count(), mounts, "{users:?}");
}

/// Other mounts of a file or directory are those of the same filesystem and the same root.
fn check_refs(table: &MountTable, entries: &[MountEntry], entry: &MountEntry) {
    let path = entry.mount_path.as_bytes();
    let root_length = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let (root, relative_path) = path.split_at(root_length);
    let Ok(relative_path) = std::str::from_utf8(relative_path) else { return };
    let (Ok(refs), Ok(found)) =
        (table.mount_refs(&entry.mount_path, relative_path), table.at(&entry.mount_path))
    else {
        return;
    };
    let top = found.last();
    assert!(top.is_some(), "nothing is mounted at the path of a line");
    for path in refs {
        let is_ref = |other: &&MountEntry| {
            other.mount_path.to_string_lossy() == path
                && other.mount_path != entry.mount_path
                && other.mount_path.as_bytes().starts_with(root)
                && top.is_some_and(|top| {
                    (&other.fs_root, other.mount.device) == (&top.fs_root, top.mount.device)
                })
        };
        assert!(entries.iter().any(|other| is_ref(&other)), "{path:?} is no mount of {top:?}");
    }
}

pub(super) fn swaps(content: &[u8]) {
    let paths = fuzzing::swap_paths(content);
    let fields = content.split(|byte| *byte == b'\n').skip(1);
    let fields = fields.filter_map(|line| line.split(|byte| matches!(byte, b' ' | b'\t')).next());
    let expected = fields.filter(|field| !field.is_empty()).map(unescape);
    assert!(expected.eq(paths.iter().map(|path| path.as_bytes())), "{paths:?}");
    let line =
        |path: &OsString| [&escape(path.as_bytes()), b"\tpartition\t1024\t\t0\t\t-2\n".as_slice()].concat();
    let lines: Vec<u8> = paths.iter().flat_map(line).collect();
    assert_eq!(fuzzing::swap_paths(&[b"Filename\tType\n", lines.as_slice()].concat()), paths);
}

pub(super) fn kernel_message(content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    let message = fuzzing::kernel_message(content);
    assert!(text.contains(&message));
    for level in ["e", "w", "i"] {
        let line = format!("{level} {text}");
        assert_eq!(fuzzing::kernel_message(line.as_bytes()), text.trim());
    }
}
