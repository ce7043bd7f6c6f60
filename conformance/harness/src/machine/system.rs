//! The files of all machines: the emulator, the kernel and the root disk, out of pinned Debian packages. They
//! are unpacked once into the cache, and nothing is installed on this machine.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use cofferdam_image::{Entry, FileTree, PackageCache, PinnedPackage};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::{
    peers,
    process::{self, CommandSpec},
    run::SuiteRun,
};

const PACKAGES: &str = include_str!("../../../machines/packages.toml");
const INIT: &str = include_str!("../../../machines/init");
const START: &str = include_str!("../../../machines/start");
/// Files of `/etc`.
const ETC: [(&str, &str); 4] = [
    ("hosts", include_str!("../../../machines/hosts")),
    ("inittab", include_str!("../../../machines/inittab")),
    ("passwd", include_str!("../../../machines/passwd")),
    ("group", include_str!("../../../machines/group")),
];
/// Modules that the root and the network need. The kernel loads others from the root.
const EARLY_MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "overlay"];
/// Changes with the files that [`unpack`] writes out of the same packages.
const LAYOUT: &str = "2";
/// Size of the root disk in bytes, and of the disk of the programs. Both are sparse.
const DISK_BYTES: u64 = 1 << 30;
/// Directories of packages that machines do not need.
const UNUSED: [&str; 5] = [
    "usr/share/doc/",
    "usr/share/man/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bash-completion/",
];
/// Links from the root into `/usr`, as in Debian since release 12.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Sets of packages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PackageSets {
    /// QEMU and its libraries.
    emulator: Vec<PinnedPackage>,
    /// The kernel and the programs of a machine.
    system: Vec<PinnedPackage>,
}

/// The files of all machines of a run.
#[derive(Clone, Debug)]
pub(crate) struct MachineSystem {
    /// Directory of the cache.
    directory: PathBuf,
    /// Disk with the programs under test.
    programs: PathBuf,
}

impl MachineSystem {
    /// As [`prepare_with`](Self::prepare_with), with csi-sanity.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    pub(crate) async fn prepare(run: &SuiteRun) -> Result<Self> {
        Self::prepare_with(run, &[run.peers().program("csi-sanity")?]).await
    }

    /// Unpacks the packages unless the cache has them, and writes the disk of the programs: `cofferdam`, this
    /// program, and further files. Programs that are not static use Debian's C library.
    ///
    /// # Errors
    /// If apt has no version of a package, a download fails, a module is missing, or a file cannot be
    /// written.
    pub(crate) async fn prepare_with(run: &SuiteRun, files: &[PathBuf]) -> Result<Self> {
        let etc = ETC.map(|(_, text)| text);
        let sources = [LAYOUT, PACKAGES, INIT, START].into_iter().chain(etc).collect::<String>();
        let digest: String =
            Sha256::digest(sources).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let cache = peers::cache()?.join("machines");
        let directory = cache.join(&digest);
        fs::create_dir_all(&cache)?;
        let lock = File::create(cache.join("lock"))?;
        lock.lock()?;
        if !directory.exists() {
            let unfinished = cache.join(format!("{digest}.unfinished"));
            let _ = fs::remove_dir_all(&unfinished);
            unpack(&unfinished).await?;
            fs::rename(&unfinished, &directory)?;
        }
        drop(lock);
        let programs = run.scratch().join("programs.img");
        let staged = run.scratch().join("programs");
        fs::create_dir_all(&staged)?;
        let programs_under_test = [run.program().to_owned(), std::env::current_exe()?];
        for file in programs_under_test.iter().chain(files) {
            fs::copy(file, staged.join(file.file_name().unwrap_or_default()))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
        write_disk(&staged, &programs).await?;
        fs::remove_dir_all(&staged)?;
        Ok(Self { directory, programs })
    }

    /// The emulator with its own libraries, without arguments. `name` is the name of the process.
    pub(super) fn emulator(&self, name: &str) -> CommandSpec {
        let root = self.directory.join("emulator");
        let path = |path: &str| root.join(path).display().to_string();
        let libraries = path("usr/lib/x86_64-linux-gnu");
        CommandSpec::new(name, path("usr/lib64/ld-linux-x86-64.so.2"))
            .args(["--library-path", &libraries, &path("usr/bin/qemu-system-x86_64")])
            .args(["-L", &path("usr/share/qemu"), "-L", &path("usr/share/seabios")])
            .env("QEMU_MODULE_DIR", format!("{libraries}/qemu"))
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    pub(super) fn initial_ram_disk(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// The disks of every machine: root and programs.
    pub(super) fn disks(&self) -> [PathBuf; 2] {
        [self.directory.join("root.img"), self.programs.clone()]
    }
}

/// Writes the files of all machines into a directory.
async fn unpack(directory: &Path) -> Result<()> {
    let sets: PackageSets = toml::from_str(PACKAGES).context("conformance/machines/packages.toml")?;
    let cache = PackageCache::new(peers::cache()?.join("packages"));
    let emulator = directory.join("emulator");
    fs::create_dir_all(&emulator)?;
    files(&cache, &sets.emulator)?.write_directory(&emulator)?;

    let root = directory.join("root");
    fs::create_dir_all(&root)?;
    let mut tree = files(&cache, &sets.system)?;
    tree.insert("etc/machine/start", Entry::program(START.as_bytes()))?;
    for (name, text) in ETC {
        tree.insert(&format!("etc/{name}"), Entry::file(text.as_bytes()))?;
    }
    for name in ["dev", "proc", "sys", "run", "tmp", "var/lib/nfs", "opt/programs"] {
        tree.insert(name, Entry::Directory)?;
    }
    for name in MERGED {
        tree.insert(name, Entry::symlink(format!("usr/{name}")))?;
    }
    // The kernel runs both at these paths.
    for name in ["init", "modprobe"] {
        tree.insert(&format!("usr/sbin/{name}"), Entry::symlink("../bin/busybox"))?;
    }
    tree.write_directory(&root)?;
    let busybox = root.join("usr/bin/busybox");
    add_applets(&busybox, &root).await?;
    let modules = index_modules(&busybox, &root).await?;

    fs::copy(kernel(&root)?, directory.join("vmlinuz"))?;
    write_initial_ram_disk(&busybox, &modules, directory).await?;
    write_disk(&root, &directory.join("root.img")).await?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// The files of packages, without documentation.
fn files(cache: &PackageCache, packages: &[PinnedPackage]) -> Result<FileTree> {
    let mut tree = FileTree::new();
    for pin in packages {
        for (path, entry) in cache.get_or_current(pin)?.files().iter() {
            if !UNUSED.iter().any(|unused| path.starts_with(unused)) {
                tree.insert(path, entry.clone())?;
            }
        }
    }
    Ok(tree)
}

/// Adds a link for each applet of busybox that no package has.
async fn add_applets(busybox: &Path, root: &Path) -> Result<()> {
    for applet in process::run_to_completion(busybox, &["--list"]).await?.lines() {
        if ["usr/bin", "usr/sbin"].iter().all(|directory| !root.join(directory).join(applet).exists()) {
            std::os::unix::fs::symlink("busybox", root.join("usr/bin").join(applet))?;
        }
    }
    Ok(())
}

/// Writes the index of the kernel's modules. Returns [`EARLY_MODULES`] with those that they need, each before
/// those that need it.
async fn index_modules(busybox: &Path, root: &Path) -> Result<Vec<PathBuf>> {
    let modules = root.join("usr/lib/modules");
    let entry = fs::read_dir(&modules)?.next().context("no modules of a kernel")??;
    let version = entry.file_name().to_string_lossy().into_owned();
    let base = root.join("usr").display().to_string();
    process::run_to_completion(busybox, &["depmod", "-b", &base, &version]).await?;
    let index = fs::read_to_string(entry.path().join("modules.dep"))?;
    let mut ordered: Vec<PathBuf> = Vec::new();
    for name in EARLY_MODULES {
        let file = format!("/{name}.ko");
        let line =
            index.lines().find(|line| line.split(':').next().is_some_and(|path| path.ends_with(&file)));
        // The kernel has a module that the index does not name.
        let Some(line) = line else {
            let builtin = fs::read_to_string(entry.path().join("modules.builtin"))?;
            ensure!(builtin.contains(&file), "the kernel {version} has no module {name}");
            continue;
        };
        for path in line.replace(':', "").split_whitespace().rev() {
            let path = entry.path().join(path);
            if !ordered.contains(&path) {
                ordered.push(path);
            }
        }
    }
    Ok(ordered)
}

/// The kernel's file.
fn kernel(root: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(root.join("boot"))?.collect::<std::io::Result<Vec<_>>>()?;
    let found = entries.into_iter().find(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"));
    Ok(found.context("the packages have no kernel")?.path())
}

async fn write_initial_ram_disk(busybox: &Path, modules: &[PathBuf], directory: &Path) -> Result<()> {
    let staged = directory.join("initramfs.d");
    for name in ["bin", "modules"] {
        fs::create_dir_all(staged.join(name))?;
    }
    fs::copy(busybox, staged.join("bin/busybox"))?;
    let mut init = FileTree::new();
    init.insert("init", Entry::program(INIT.as_bytes()))?;
    init.write_directory(&staged)?;
    for (number, module) in modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        fs::copy(module, staged.join(format!("modules/{number:02}-{name}")))?;
    }
    let script = r#"cd "$1" && "$0" find . | "$0" cpio -o -H newc -F "$2""#;
    let text = |path: &Path| path.display().to_string();
    let output = text(&directory.join("initramfs"));
    process::run_to_completion("sh", &["-c", script, &text(busybox), &text(&staged), &output]).await?;
    fs::remove_dir_all(&staged)?;
    Ok(())
}

/// Writes a disk with the files of a directory. Machines mount it read-only, so it needs no journal.
async fn write_disk(directory: &Path, image: &Path) -> Result<()> {
    File::create(image)?.set_len(DISK_BYTES)?;
    let text = |path: &Path| path.display().to_string();
    let arguments = ["-q", "-F", "-O", "^has_journal", "-E", "root_owner=0:0", "-d"];
    let arguments: Vec<String> =
        arguments.iter().map(ToString::to_string).chain([text(directory), text(image)]).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    process::run_to_completion("mkfs.ext4", &arguments).await?;
    Ok(())
}
