//! Files of a layer or a package, in memory.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::{self, Read},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    sync::Arc,
};

use tar::EntryType;

use crate::{ImageError, Result};

/// Directories of the root that are symbolic links into `/usr`, as Debian has them since release 12.
pub(crate) const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// A file, a directory or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory with the mode 0755. Parents of other entries need no entry of their own.
    Directory,
    /// A regular file.
    File {
        /// `true`: mode 0755; `false`: mode 0644.
        executable: bool,
        /// The content.
        data: Arc<[u8]>,
    },
    /// A symbolic link.
    Symlink {
        /// The target, as stored.
        target: String,
    },
}

impl Entry {
    /// A regular file.
    pub fn file(data: impl Into<Arc<[u8]>>) -> Self {
        Self::File { executable: false, data: data.into() }
    }

    /// An executable file.
    pub fn program(data: impl Into<Arc<[u8]>>) -> Self {
        Self::File { executable: true, data: data.into() }
    }

    /// A symbolic link.
    pub fn symlink(target: impl Into<String>) -> Self {
        Self::Symlink { target: target.into() }
    }
}

/// Entries by path. A path is relative to the root and has no part `.` or `..`, such as `usr/bin/cofferdam`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTree(BTreeMap<String, Entry>);

impl FileTree {
    /// A tree without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry in place of an earlier one. A leading `/` is removed from `path`.
    ///
    /// # Errors
    /// [`ImageError::Entry`] if `path` leaves the root, or is the root.
    pub fn insert(&mut self, path: &str, entry: Entry) -> Result<()> {
        self.0.insert(normalize(path)?, entry);
        Ok(())
    }

    /// The entry of a path.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.0.get(path)
    }

    /// All entries, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sum of the sizes of all files, in bytes.
    pub fn size(&self) -> u64 {
        let sizes = self.0.values().map(|entry| match entry {
            Entry::File { data, .. } => data.len() as u64,
            Entry::Directory | Entry::Symlink { .. } => 0,
        });
        sizes.sum()
    }

    /// Reads a directory with everything below it. Owners and times are not kept, and of modes only whether
    /// the owner may execute the file.
    ///
    /// # Errors
    /// A file cannot be read, has a name that is not UTF-8, or is a device, a socket or a pipe.
    pub fn read_directory(directory: &Path) -> Result<Self> {
        let mut tree = Self::new();
        let mut waiting = vec![(directory.to_owned(), String::new())];
        while let Some((directory, prefix)) = waiting.pop() {
            for entry in fs::read_dir(&directory).map_err(ImageError::read(&directory))? {
                let entry = entry.map_err(ImageError::read(&directory))?;
                let path = entry.path();
                let name = entry.file_name().into_string().map_err(|name| ImageError::Entry {
                    path: name.to_string_lossy().into_owned(),
                    problem: "the name is not UTF-8",
                })?;
                let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                let metadata = fs::symlink_metadata(&path).map_err(ImageError::read(&path))?;
                let kind = metadata.file_type();
                let entry = if kind.is_dir() {
                    waiting.push((path, name.clone()));
                    Entry::Directory
                } else if kind.is_symlink() {
                    let target = fs::read_link(&path).map_err(ImageError::read(&path))?;
                    Entry::symlink(target.to_string_lossy())
                } else if kind.is_file() {
                    let data = fs::read(&path).map_err(ImageError::read(&path))?;
                    let executable = metadata.permissions().mode() & 0o100 != 0;
                    Entry::File { executable, data: data.into() }
                } else {
                    return Err(ImageError::Entry { path: name, problem: UNSUPPORTED });
                };
                tree.insert(&name, entry)?;
            }
        }
        Ok(tree)
    }

    /// Writes all entries into a directory, which exists. Files that have the path of an entry are replaced.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_directory(&self, directory: &Path) -> Result<()> {
        for (path, entry) in self.iter() {
            let path = directory.join(path);
            write_entry(&path, entry).map_err(ImageError::write(&path))?;
        }
        Ok(())
    }

    /// Reads a tar archive of a Debian package. Paths in `/bin`, `/lib`, `/lib64` and `/sbin` become paths in
    /// `/usr`, and a hard link becomes a copy.
    ///
    /// # Errors
    /// `name` cannot be read, or has an entry of another type.
    pub(crate) fn read_package(archive: impl Read, name: &str) -> Result<Self> {
        let mut tree = Self::new();
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries().map_err(ImageError::read(name))? {
            let mut entry = entry.map_err(ImageError::read(name))?;
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let link = entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned());
            let kind = entry.header().entry_type();
            let added = if kind.is_dir() {
                continue;
            } else if kind.is_file() {
                let mode = entry.header().mode().map_err(ImageError::read(name))?;
                let mut data = Vec::new();
                entry.read_to_end(&mut data).map_err(ImageError::read(name))?;
                Entry::File { executable: mode & 0o100 != 0, data: data.into() }
            } else if kind == EntryType::Symlink {
                Entry::symlink(link.unwrap_or_default())
            } else if kind == EntryType::Link {
                let target = normalize_merged(&link.unwrap_or_default())?;
                let target = tree.get(&target).cloned();
                target.ok_or(ImageError::Entry { path: path.clone(), problem: "a hard link to nothing" })?
            } else {
                return Err(ImageError::Entry { path, problem: UNSUPPORTED });
            };
            tree.0.insert(normalize_merged(&path)?, added);
        }
        Ok(tree)
    }
}

fn write_entry(path: &Path, entry: &Entry) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match entry {
        Entry::Directory => fs::create_dir_all(path),
        Entry::File { executable, data } => {
            fs::write(path, data)?;
            fs::set_permissions(path, Permissions::from_mode(if *executable { 0o755 } else { 0o644 }))
        }
        Entry::Symlink { target } => match symlink(target, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                symlink(target, path)
            }
            result => result,
        },
    }
}

const UNSUPPORTED: &str = "neither a file, a directory nor a symbolic link";

/// The path that a symbolic link at `path` leads to, with `/usr` merged.
pub(crate) fn link_target(path: &str, target: &str) -> Result<String> {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    if target.starts_with('/') {
        normalize_merged(target)
    } else {
        normalize_merged(&format!("{directory}/{target}"))
    }
}

/// [`normalize`], with `/usr` merged.
pub(crate) fn normalize_merged(path: &str) -> Result<String> {
    let path = normalize(path)?;
    let first = path.split('/').next().unwrap_or_default();
    Ok(if MERGED.contains(&first) && path.len() > first.len() { format!("usr/{path}") } else { path })
}

/// The path without leading `/`, and without parts `.` and `..`.
fn normalize(path: &str) -> Result<String> {
    let outside = || ImageError::Entry { path: path.to_owned(), problem: "outside of the root directory" };
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or_else(outside)?;
            }
            part => parts.push(part),
        }
    }
    if parts.is_empty() { Err(outside()) } else { Ok(parts.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_root_and_in_usr() {
        assert_eq!(
            normalize_merged("./lib64/ld-linux-x86-64.so.2").unwrap(),
            "usr/lib64/ld-linux-x86-64.so.2"
        );
        assert_eq!(normalize_merged("/etc/../usr//lib/./x").unwrap(), "usr/lib/x");
        assert_eq!(normalize_merged("/libexec/x").unwrap(), "libexec/x");
        assert_eq!(link_target("etc/os-release", "../usr/lib/os-release").unwrap(), "usr/lib/os-release");
        let error = normalize_merged("../etc/passwd").unwrap_err().to_string();
        assert_eq!(error, "../etc/passwd: outside of the root directory");
    }

    #[test]
    fn a_package_has_its_hard_links_as_files() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o755);
        builder.append_data(&mut header, "./sbin/mke2fs", &b"elf"[..]).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Link);
        header.set_size(0);
        builder.append_link(&mut header, "./sbin/mkfs.ext4", "./sbin/mke2fs").unwrap();
        let archive = builder.into_inner().unwrap();
        let tree = FileTree::read_package(&archive[..], "e2fsprogs").unwrap();
        assert_eq!(tree.get("usr/sbin/mkfs.ext4"), Some(&Entry::program(*b"elf")));
        assert_eq!((tree.len(), tree.size()), (2, 6));
    }
}
