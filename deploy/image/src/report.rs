//! Sizes of layers, their parts, and images.

use std::fmt;

use crate::{Layer, Result, layer::Part};

/// Sizes of what was written, and the digest of the index. The text form is a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The layers, in the order in which images have them.
    pub layers: Vec<LayerReport>,
    /// The images.
    pub images: Vec<ImageReport>,
    /// Digest of the index, such as `sha256:…`.
    pub digest: String,
}

/// Sizes of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerReport {
    /// The layer's title.
    pub title: String,
    /// Digest of the compressed layer, such as `sha256:…`.
    pub digest: String,
    /// Size of the compressed layer, in bytes.
    pub compressed: u64,
    /// Content of the layer.
    pub parts: Vec<PartReport>,
}

/// Sizes of a part of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReport {
    /// The package, or what the files are.
    pub name: String,
    /// Number of files, links and listed directories.
    pub files: usize,
    /// Sum of the files' sizes, in bytes.
    pub size: u64,
    /// Size of a compressed layer with this part alone, in bytes.
    pub compressed: u64,
}

/// Sizes of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReport {
    /// Name and tag.
    pub name: String,
    /// Digest of the manifest, such as `sha256:…`.
    pub digest: String,
    /// Sum of the files' sizes, in bytes.
    pub size: u64,
    /// Sum of the sizes of the compressed layers, in bytes.
    pub compressed: u64,
}

impl LayerReport {
    pub(crate) fn new(title: &str, layer: &Layer, parts: &[Part], created: u64) -> Result<Self> {
        let compressed = |part: &Part| match parts {
            [_] => Ok(layer.compressed_size()),
            _ => Layer::new(&part.name, &part.tree, created).map(|layer| layer.compressed_size()),
        };
        let part_report = |part: &Part| {
            let (name, files, size) = (part.name.clone(), part.tree.len(), part.tree.size());
            Ok(PartReport { name, files, size, compressed: compressed(part)? })
        };
        let parts = parts.iter().map(part_report).collect::<Result<_>>()?;
        Ok(Self {
            title: title.to_owned(),
            digest: layer.digest(),
            compressed: layer.compressed_size(),
            parts,
        })
    }

    /// Sum of the files' sizes, in bytes.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<40} {:>6} {:>12} {:>12}", "PART", "FILES", "KIB", "COMPRESSED")?;
        let mut row = |name: &str, files: Option<usize>, size: u64, compressed: u64| {
            let files = files.map(|files| files.to_string()).unwrap_or_default();
            writeln!(f, "{name:<40} {files:>6} {:>12} {:>12}", kib(size), kib(compressed))
        };
        for layer in &self.layers {
            let files = layer.parts.iter().map(|part| part.files).sum();
            row(&format!("layer {}", layer.title), Some(files), layer.size(), layer.compressed)?;
            for part in &layer.parts {
                row(&format!("  {}", part.name), Some(part.files), part.size, part.compressed)?;
            }
        }
        for image in &self.images {
            row(&format!("image {}", image.name), None, image.size, image.compressed)?;
        }
        write!(f, "index {}", self.digest)
    }
}

/// Kibibytes, rounded up.
const fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}
