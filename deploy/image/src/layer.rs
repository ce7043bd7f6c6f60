//! Layers: tar archives, compressed by gzip, with the same bytes for the same files.

use std::io::{self, Write};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::{Entry, FileTree, ImageError, Result, sha256};

/// A compressed layer.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) data: Vec<u8>,
    pub(crate) digest: String,
    pub(crate) diff_id: String,
    pub(crate) title: String,
}

/// A part of a layer, such as the files of one package.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) tree: FileTree,
}

impl Layer {
    /// Writes the files of a tree, with their parent directories. `created` is the modification time of every
    /// entry, in seconds since 1970, and `title` the layer's entry in the image's history.
    ///
    /// # Errors
    /// A path is too long for a tar archive.
    pub fn new(title: &str, tree: &FileTree, created: u64) -> Result<Self> {
        let failed = ImageError::write(format!("the layer {title}"));
        let (data, diff_id) = write_tar(tree, created).map_err(failed)?;
        Ok(Self { digest: sha256(&data), data, diff_id, title: title.to_owned() })
    }

    /// The digest of the compressed layer, such as `sha256:…`.
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.digest)
    }

    /// Size of the compressed layer, in bytes.
    pub fn compressed_size(&self) -> u64 {
        self.data.len() as u64
    }
}

/// The compressed archive, and the digest of the archive before compression.
fn write_tar(tree: &FileTree, created: u64) -> io::Result<(Vec<u8>, String)> {
    // The header of gzip has neither a file name nor a time.
    let encoder = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    let mut builder = tar::Builder::new(DigestWriter { inner: encoder, digest: Sha256::new() });
    let mut written = std::collections::BTreeSet::new();
    for (path, entry) in tree.iter() {
        for (end, _) in path.match_indices('/') {
            let parent = path.get(..end).unwrap_or_default();
            if written.insert(parent.to_owned()) {
                append_directory(&mut builder, parent, created)?;
            }
        }
        match entry {
            Entry::Directory => {
                if written.insert(path.to_owned()) {
                    append_directory(&mut builder, path, created)?;
                }
            }
            Entry::File { executable, data } => {
                let mut header = header(EntryType::Regular, if *executable { 0o755 } else { 0o644 }, created);
                header.set_size(data.len() as u64);
                builder.append_data(&mut header, path, &data[..])?;
            }
            Entry::Symlink { target } => {
                let mut header = header(EntryType::Symlink, 0o777, created);
                builder.append_link(&mut header, path, target)?;
            }
        }
    }
    let writer = builder.into_inner()?;
    Ok((writer.inner.finish()?, format!("{:x}", writer.digest.finalize())))
}

fn append_directory(builder: &mut tar::Builder<impl Write>, path: &str, created: u64) -> io::Result<()> {
    let mut header = header(EntryType::Directory, 0o755, created);
    builder.append_data(&mut header, format!("{path}/"), io::empty())
}

/// A header with owner 0:0 and without names of users.
fn header(kind: EntryType, mode: u32, created: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(created);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// Computes the digest of what it passes on.
struct DigestWriter {
    inner: GzEncoder<Vec<u8>>,
    digest: Sha256,
}

impl Write for DigestWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(data)?;
        self.digest.update(data.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
