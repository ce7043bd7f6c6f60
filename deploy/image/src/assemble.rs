//! The images of a release.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    Architecture, Entry, FileTree, Image, ImageError, Layer, Layout, Package, PackageCache, Pins, Report,
    Result,
    elf::ElfFile,
    layer::Part,
    libraries::Selection,
    report::{ImageReport, LayerReport},
    sbom::{Bom, Crate, read_crates},
    tree::MERGED,
};

/// The Go programs that the program replaces: the name by which it is called selects one.
pub const SIDECARS: [&str; 7] = [
    "csi-attacher",
    "csi-node-driver-registrar",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "livenessprobe",
    SNAPSHOT_CONTROLLER,
];
/// The program without the socket of a driver.
const SNAPSHOT_CONTROLLER: &str = "snapshot-controller";
/// Path of the program.
const PROGRAM: &str = "usr/bin/cofferdam";
/// User and group of images that need no root.
const NONROOT: &str = "65532:65532";
const ROOT: &str = "0:0";
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
/// Directory of the certificate authorities in the package ca-certificates.
const AUTHORITIES: &str = "usr/share/ca-certificates/";
/// The file of all certificate authorities, at the path where TLS libraries look for it.
const AUTHORITIES_BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// Packages of the images.
#[derive(Clone, Debug)]
pub struct Packages {
    /// Architecture of the packages.
    pub architecture: Architecture,
    /// Packages of all images.
    pub controller: Vec<Package>,
    /// Files of all images that no program names as a library.
    pub controller_files: Vec<String>,
    /// Further packages of the node's image.
    pub node: Vec<Package>,
    /// Tools of the node's image.
    pub node_programs: Vec<String>,
    /// Files of the node's image that no program names as a library.
    pub node_files: Vec<String>,
}

impl Packages {
    /// Reads the pinned packages from a cache, which downloads those that it does not have.
    ///
    /// # Errors
    /// Those of [`PackageCache::get`].
    pub fn load(pins: &Pins, cache: &PackageCache) -> Result<Self> {
        let load = |packages: &[crate::PinnedPackage]| packages.iter().map(|pin| cache.get(pin)).collect();
        let controller: Result<_> = load(&pins.controller.packages);
        let node: Result<_> = load(&pins.node.packages);
        Ok(Self {
            architecture: pins.architecture,
            controller: controller?,
            controller_files: pins.controller.files.clone(),
            node: node?,
            node_programs: pins.node.programs.clone(),
            node_files: pins.node.files.clone(),
        })
    }
}

/// Handling of the list of crates in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrateList {
    /// It does. A program without a list, which `cargo auditable` writes, is an error.
    Required,
    /// It does not.
    Omitted,
}

/// Input of the images of a release.
#[derive(Clone, Debug)]
pub struct Release {
    /// Path of the program, for messages.
    pub binary_name: String,
    /// The program.
    pub binary: Vec<u8>,
    /// Handling of its list of crates.
    pub crates: CrateList,
    /// Debian packages.
    pub packages: Packages,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Version, which is the tag of the images.
    pub version: String,
    /// Prefix of the images' names in containerd, such as `localhost`.
    pub repository: String,
    /// URL of the source code.
    pub source: Option<String>,
    /// Directory of the layout.
    pub output: PathBuf,
}

/// Writes the images of a release and their bills of materials, and returns the sizes of all parts.
///
/// # Errors
/// Those of [`ReleaseLayers::new`], or a file cannot be written.
pub fn assemble(release: &Release) -> Result<Report> {
    let layers = ReleaseLayers::new(release)?;
    let mut layout = Layout::create(&release.output, release.packages.architecture, release.created)?;
    let images = layers.add_images(&mut layout, release)?;
    let digest = layout.finish()?;
    Ok(Report { layers: layers.reports().to_vec(), images, digest })
}

/// The layers of a release's images. They do not depend on the release's version.
#[derive(Debug)]
pub struct ReleaseLayers {
    libraries: Layer,
    program: Layer,
    tools: Layer,
    /// Sizes, in the order of the fields.
    reports: [LayerReport; 3],
    /// Crates of the program.
    crates: Vec<Crate>,
}

impl ReleaseLayers {
    /// Compresses the layers.
    ///
    /// # Errors
    /// The program or a tool is for another architecture, needs what no package has, or is a script; a
    /// package is not needed; or the program has no list of crates.
    pub fn new(release: &Release) -> Result<Self> {
        let Release { packages, created, .. } = release;
        let program = ElfFile::parse(&release.binary_name, &release.binary)?;
        if program.architecture != packages.architecture {
            let (actual, expected) = (program.architecture, packages.architecture);
            return Err(ImageError::Architecture { file: release.binary_name.clone(), actual, expected });
        }
        let crates: Vec<Crate> = match release.crates {
            CrateList::Required => read_crates(&release.binary_name, &release.binary)?,
            CrateList::Omitted => Vec::new(),
        };

        let mut controller = Selection::new(packages.architecture, packages.controller.iter());
        controller.add_needed(&release.binary_name, &release.binary)?;
        for file in &packages.controller_files {
            controller.add_file(file)?;
        }
        for (path, _) in packages.controller.iter().flat_map(|package| package.files.iter()) {
            if is_authority(path) {
                controller.add_file(path)?;
            }
        }
        controller.add_copyrights()?;
        let mut node =
            Selection::new(packages.architecture, packages.controller.iter().chain(&packages.node));
        for program in &packages.node_programs {
            node.add_program(program)?;
        }
        for file in &packages.node_files {
            node.add_file(file)?;
        }
        node.add_copyrights()?;

        let mut base = vec![Part { name: "users, directories".to_owned(), tree: base_files()? }];
        base.extend(package_parts(controller.by_package(None)?, 0)?);
        let tools = package_parts(node.by_package(Some(&controller))?, packages.controller.len())?;
        let binary = vec![Part { name: "cofferdam".to_owned(), tree: binary_files(&release.binary)? }];

        let (libraries, libraries_report) = layer("libraries", &base, *created)?;
        let (program, program_report) = layer("program", &binary, *created)?;
        let (tools, tools_report) = layer("node tools", &tools, *created)?;
        let reports = [libraries_report, program_report, tools_report];
        Ok(Self { libraries, program, tools, reports, crates })
    }

    /// Sizes of the layers.
    pub const fn reports(&self) -> &[LayerReport] {
        &self.reports
    }

    /// Adds the images of the release to a layout, and returns their sizes. Its bills of materials replace
    /// those of another version in the layout.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_images(&self, layout: &mut Layout, release: &Release) -> Result<Vec<ImageReport>> {
        let Release { packages, version, .. } = release;
        let [libraries_report, program_report, tools_report] = &self.reports;
        let mut images = Vec::new();
        for (name, title, entrypoint, user) in image_list() {
            let mut image = Image {
                name: format!("{name}:{version}"),
                containerd_name: containerd_name(&release.repository, name, version),
                entrypoint: vec![entrypoint],
                environment: vec![PATH.to_owned()],
                user: user.to_owned(),
                labels: labels(title, version, layout.created()),
                ..Image::default()
            };
            if let Some(source) = &release.source {
                image.labels.insert("org.opencontainers.image.source".to_owned(), source.clone());
            }
            let mut layers = vec![&self.libraries, &self.program];
            if name == NODE {
                layers.push(&self.tools);
            }
            let digest = layout.add_image(&image, &layers)?;
            let compressed = layers.iter().map(|layer| layer.compressed_size()).sum();
            if [CONTROLLER, NODE].contains(&name) {
                let mut of_image: Vec<&Package> = packages.controller.iter().collect();
                if name == NODE {
                    of_image.extend(&packages.node);
                }
                let bom = Bom {
                    name,
                    version,
                    digest: &digest,
                    created: layout.created(),
                    architecture: packages.architecture,
                    crates: &self.crates,
                    packages: &of_image,
                };
                layout.write(&format!("sbom/{name}.cdx.json"), &bom.to_json())?;
            }
            let size =
                [libraries_report, program_report].into_iter().chain((name == NODE).then_some(tools_report));
            images.push(ImageReport {
                name: image.name,
                digest,
                size: size.map(LayerReport::size).sum(),
                compressed,
            });
        }
        Ok(images)
    }
}

const CONTROLLER: &str = "cofferdam";
const NODE: &str = "cofferdam-node";

/// Name, title, entry point and user of each image.
///
/// The sidecars of a driver run as root, like the images that they replace: the sockets of drivers belong to
/// root.
fn image_list() -> Vec<(&'static str, &'static str, String, &'static str)> {
    let program = format!("/{PROGRAM}");
    let mut images = vec![
        (CONTROLLER, "Cofferdam", program.clone(), NONROOT),
        (NODE, "Cofferdam with the tools of the node role", program, ROOT),
    ];
    images.extend(SIDECARS.map(|name| {
        let user = if name == SNAPSHOT_CONTROLLER { NONROOT } else { ROOT };
        (name, name, format!("/{name}"), user)
    }));
    images
}

fn containerd_name(repository: &str, name: &str, version: &str) -> String {
    match repository.trim_end_matches('/') {
        "" => format!("{name}:{version}"),
        repository => format!("{repository}/{name}:{version}"),
    }
}

fn labels(title: &str, version: &str, created: &str) -> BTreeMap<String, String> {
    let labels = [("created", created), ("licenses", "Apache-2.0"), ("title", title), ("version", version)];
    labels.map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned())).into()
}

/// Users, the order of name resolution, and the directories of a merged `/usr`.
fn base_files() -> Result<FileTree> {
    let mut tree = FileTree::new();
    for name in MERGED {
        tree.insert(name, Entry::symlink(format!("usr/{name}")))?;
        tree.insert(&format!("usr/{name}"), Entry::Directory)?;
    }
    let nonroot = "nonroot:x:65532:65532:nonroot:/nonexistent:/usr/sbin/nologin\n";
    let passwd = format!("root:x:0:0:root:/root:/usr/sbin/nologin\n{nonroot}");
    tree.insert("etc/passwd", Entry::file(passwd.into_bytes()))?;
    tree.insert("etc/group", Entry::file(*b"root:x:0:\nnonroot:x:65532:\n"))?;
    tree.insert("etc/nsswitch.conf", Entry::file(*b"passwd: files\ngroup: files\nhosts: files dns\n"))?;
    Ok(tree)
}

/// The program, and the names of the sidecars in the root directory, where their images have them.
fn binary_files(binary: &[u8]) -> Result<FileTree> {
    let mut tree = FileTree::new();
    tree.insert(PROGRAM, Entry::program(binary))?;
    for name in SIDECARS {
        tree.insert(name, Entry::symlink(PROGRAM))?;
    }
    Ok(tree)
}

/// A part for each package with files, and the packages' paragraphs for scanners. From the package `first`
/// on, each must have files: those before belong to another layer, too.
fn package_parts(packages: Vec<(&Package, FileTree)>, first: usize) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for (index, (package, mut tree)) in packages.into_iter().enumerate() {
        let name = package.pin.name.clone();
        if tree.is_empty() {
            if index < first {
                continue;
            }
            return Err(ImageError::UnusedPackage(name));
        }
        if tree.iter().any(|(path, _)| is_authority(path)) {
            tree = bundle_authorities(&tree)?;
        }
        if index >= first {
            let control = Entry::file(package.control.as_bytes());
            tree.insert(&format!("var/lib/dpkg/status.d/{name}"), control)?;
        }
        parts.push(Part { name, tree });
    }
    Ok(parts)
}

fn is_authority(path: &str) -> bool {
    path.starts_with(AUTHORITIES) && path.ends_with(".crt")
}

/// All certificates in one file, as update-ca-certificates writes it, in place of a file for each.
fn bundle_authorities(tree: &FileTree) -> Result<FileTree> {
    let mut bundled = FileTree::new();
    let mut bundle = Vec::new();
    for (path, entry) in tree.iter() {
        match entry {
            Entry::File { data, .. } if is_authority(path) => {
                bundle.extend_from_slice(data);
                if !bundle.ends_with(b"\n") {
                    bundle.push(b'\n');
                }
            }
            Entry::File { .. } | Entry::Directory | Entry::Symlink { .. } => {
                bundled.insert(path, entry.clone())?
            }
        }
    }
    bundled.insert(AUTHORITIES_BUNDLE, Entry::file(bundle))?;
    Ok(bundled)
}

/// A layer with all parts, and its sizes.
fn layer(title: &str, parts: &[Part], created: u64) -> Result<(Layer, LayerReport)> {
    let mut tree = FileTree::new();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for part in parts {
        for (path, entry) in part.tree.iter() {
            if tree.get(path).is_some_and(|earlier| earlier != entry) {
                return Err(ImageError::Conflict {
                    path: path.to_owned(),
                    first: owners.get(path).copied().unwrap_or_default().to_owned(),
                    second: part.name.clone(),
                });
            }
            owners.insert(path, &part.name);
            tree.insert(path, entry.clone())?;
        }
    }
    let layer = Layer::new(title, &tree, created)?;
    let report = LayerReport::new(title, &layer, parts, created)?;
    Ok((layer, report))
}
