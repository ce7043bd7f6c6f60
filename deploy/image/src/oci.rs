//! Writes an OCI image layout.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::{Architecture, FileTree, ImageError, Layer, Result, sha256};

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The annotation with the name that tools for layouts, such as skopeo, use.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with the name that containerd gives an imported image.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The entries of a layout that [`Layout::create`] removes.
const ENTRIES: [&str; 4] = ["oci-layout", "index.json", "blobs", "sbom"];

/// The configuration of an image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Name and tag in the layout, such as `cofferdam:0.1.0`.
    pub name: String,
    /// The full name in containerd, such as `localhost/cofferdam:0.1.0`.
    pub containerd_name: String,
    /// Program and arguments that always run.
    pub entrypoint: Vec<String>,
    /// Arguments, or the program if there is no entry point, that a container may replace.
    pub command: Vec<String>,
    /// Environment variables, as `NAME=value`.
    pub environment: Vec<String>,
    /// User and group, such as `65532:65532`; empty for root.
    pub user: String,
    /// Labels of the configuration, and annotations of the manifest.
    pub labels: BTreeMap<String, String>,
}

/// An image layout that is being written.
#[derive(Debug)]
pub struct Layout {
    directory: PathBuf,
    architecture: Architecture,
    created: String,
    manifests: Vec<Descriptor>,
    written: BTreeSet<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: &'static str,
    digest: String,
    size: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
}

#[derive(Debug, Serialize)]
struct Platform {
    architecture: &'static str,
    os: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u32,
    media_type: &'static str,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    media_type: &'static str,
    manifests: &'a [Descriptor],
}

#[derive(Serialize)]
struct Config<'a> {
    created: &'a str,
    architecture: &'static str,
    os: &'static str,
    config: Process<'a>,
    rootfs: RootFs,
    history: Vec<History<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Process<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    env: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    entrypoint: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cmd: &'a [String],
    working_dir: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct RootFs {
    r#type: &'static str,
    diff_ids: Vec<String>,
}

#[derive(Serialize)]
struct History<'a> {
    created: &'a str,
    created_by: &'a str,
}

impl Layout {
    /// Starts a layout in a directory that is absent or empty, or has an earlier layout, which is replaced.
    /// `created` is in seconds since 1970.
    ///
    /// # Errors
    /// The directory has other files or cannot be written, or `created` is after the year 9999.
    pub fn create(directory: &Path, architecture: Architecture, created: u64) -> Result<Self> {
        let created = timestamp(created)?;
        fs::create_dir_all(directory).map_err(ImageError::write(directory))?;
        let is_empty = fs::read_dir(directory).map_err(ImageError::read(directory))?.next().is_none();
        if !is_empty && !directory.join("oci-layout").is_file() {
            return Err(ImageError::NotALayout(directory.to_owned()));
        }
        // The index first, so that an interrupted build leaves no index of missing blobs.
        for entry in ["index.json", "sbom", "blobs"].map(|entry| directory.join(entry)) {
            let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
            if let Err(error) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(ImageError::write(entry)(error));
            }
        }
        let layout = Self {
            directory: directory.to_owned(),
            architecture,
            created,
            manifests: Vec::new(),
            written: BTreeSet::new(),
        };
        layout.write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(layout)
    }

    /// Writes an image, and returns the digest of its manifest, such as `sha256:…`. Layers that several
    /// images share are written once.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_image(&mut self, image: &Image, layers: &[&Layer]) -> Result<String> {
        let config = Config {
            created: &self.created,
            architecture: self.architecture.name(),
            os: "linux",
            config: Process {
                user: &image.user,
                env: &image.environment,
                entrypoint: &image.entrypoint,
                cmd: &image.command,
                working_dir: "/",
                labels: &image.labels,
            },
            rootfs: RootFs {
                r#type: "layers",
                diff_ids: layers.iter().map(|layer| format!("sha256:{}", layer.diff_id)).collect(),
            },
            history: layers
                .iter()
                .map(|layer| History { created: &self.created, created_by: &layer.title })
                .collect(),
        };
        let config = json(&config);
        let config = self.write_blob(CONFIG_TYPE, &config, &sha256(&config))?;
        let layers = layers.iter().map(|layer| self.write_blob(LAYER_TYPE, &layer.data, &layer.digest));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let annotations = &image.labels;
        let manifest =
            json(&Manifest { schema_version: 2, media_type: MANIFEST_TYPE, config, layers, annotations });
        let mut descriptor = self.write_blob(MANIFEST_TYPE, &manifest, &sha256(&manifest))?;
        descriptor.annotations.insert(REF_NAME.to_owned(), image.name.clone());
        descriptor.annotations.insert(CONTAINERD_NAME.to_owned(), image.containerd_name.clone());
        descriptor.platform = Some(Platform { architecture: self.architecture.name(), os: "linux" });
        let digest = descriptor.digest.clone();
        self.manifests.push(descriptor);
        Ok(digest)
    }

    /// Writes the index, and returns its digest, such as `sha256:…`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<String> {
        let index = json(&Index { schema_version: 2, media_type: INDEX_TYPE, manifests: &self.manifests });
        self.write("index.json", &index)?;
        Ok(format!("sha256:{}", sha256(&index)))
    }

    /// The time of creation in RFC 3339.
    pub(crate) fn created(&self) -> &str {
        &self.created
    }

    /// Writes a file of the layout.
    pub(crate) fn write(&self, path: &str, data: &[u8]) -> Result<()> {
        let path = self.directory.join(path);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(ImageError::write(directory))?;
        }
        fs::write(&path, data).map_err(ImageError::write(&path))
    }

    fn write_blob(&mut self, media_type: &'static str, data: &[u8], digest: &str) -> Result<Descriptor> {
        if self.written.insert(digest.to_owned()) {
            self.write(&format!("blobs/sha256/{digest}"), data)?;
        }
        Ok(Descriptor {
            media_type,
            digest: format!("sha256:{digest}"),
            size: data.len() as u64,
            annotations: BTreeMap::new(),
            platform: None,
        })
    }
}

/// Writes a layout as one tar archive, as `ctr images import` and `skopeo copy oci-archive:…` read it.
///
/// # Errors
/// The layout cannot be read, or the archive cannot be written.
pub fn write_archive(layout: &Path, archive: &Path) -> Result<()> {
    let mut builder = tar::Builder::new(fs::File::create(archive).map_err(ImageError::write(archive))?);
    for name in ENTRIES {
        let path = layout.join(name);
        let tree = if path.is_dir() {
            FileTree::read_directory(&path)?
        } else if path.is_file() {
            let data = fs::read(&path).map_err(ImageError::read(&path))?;
            let mut tree = FileTree::new();
            tree.insert(name, crate::Entry::file(data))?;
            tree
        } else {
            continue;
        };
        for (inner, entry) in tree.iter() {
            if let crate::Entry::File { data, .. } = entry {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o644);
                header.set_size(data.len() as u64);
                let inner = if inner == name { inner.to_owned() } else { format!("{name}/{inner}") };
                builder.append_data(&mut header, inner, &data[..]).map_err(ImageError::write(archive))?;
            }
        }
    }
    let mut file = builder.into_inner().map_err(ImageError::write(archive))?;
    file.flush().map_err(ImageError::write(archive))
}

/// RFC 3339 in UTC.
fn timestamp(created: u64) -> Result<String> {
    let seconds = i64::try_from(created).map_err(|_| ImageError::Time(created))?;
    Timestamp::from_second(seconds).map(|time| time.to_string()).map_err(|_| ImageError::Time(created))
}

/// The serialization cannot fail: keys are text, and no value has a `Serialize` of its own.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
