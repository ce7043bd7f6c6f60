//! Container images from the machine's static busybox, because there is no registry.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{peers::BUSYBOX, process};

/// An image with the shell and the applets of busybox.
pub const SHELL_IMAGE: &str = "conformance.cofferdam.dev/busybox:1";
/// The sandbox (pause) image of pods.
pub const PAUSE_IMAGE: &str = "conformance.cofferdam.dev/pause:1";
/// Applets of busybox in the image.
const APPLETS: [&str; 31] = [
    "sh",
    "cat",
    "cp",
    "date",
    "dd",
    "df",
    "echo",
    "env",
    "false",
    "head",
    "ls",
    "mkdir",
    "mount",
    "mv",
    "rm",
    "sleep",
    "stat",
    "sync",
    "test",
    "touch",
    "true",
    "umount",
    "wc",
    "md5sum",
    "chmod",
    "cut",
    "grep",
    "readlink",
    "sha256sum",
    "tail",
    "tr",
];

/// Writes both images as one docker-archive, and returns its path.
///
/// # Errors
/// If busybox is missing, a file cannot be written, or `tar` fails.
pub async fn write_archive(directory: &Path) -> Result<PathBuf> {
    // Process 1 of a container has no default handler of SIGTERM.
    let pause = ["/bin/sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait; done"];
    write_images(directory, &[(SHELL_IMAGE, &["/bin/sh"]), (PAUSE_IMAGE, &pause)]).await
}

/// Writes the image with a shell under other names as one docker-archive, and returns its path.
///
/// # Errors
/// As [`write_archive`].
pub(crate) async fn write_shell_archive(directory: &Path, names: &[&str]) -> Result<PathBuf> {
    let images: Vec<(&str, &[&str])> = names.iter().map(|name| (*name, &["/bin/sh"][..])).collect();
    write_images(directory, &images).await
}

/// Writes images with these names and commands.
async fn write_images(directory: &Path, images: &[(&str, &[&str])]) -> Result<PathBuf> {
    let (root, parts) = (directory.join("root"), directory.join("parts"));
    fs::create_dir_all(root.join("bin"))?;
    fs::create_dir_all(root.join("tmp"))?;
    fs::create_dir_all(&parts)?;
    let busybox = root.join("bin/busybox");
    fs::copy(BUSYBOX, &busybox)
        .with_context(|| format!("cannot copy {BUSYBOX}, which `make peers` installs"))?;
    fs::set_permissions(&busybox, fs::Permissions::from_mode(0o755))?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    create_tar(&root, &parts.join("layer.tar")).await?;
    let layer = hex(&fs::read(parts.join("layer.tar"))?);
    let entries = images.iter().map(|(name, command)| write_image_config(&parts, name, &layer, command));
    let entries: Vec<Value> = entries.collect::<Result<_>>()?;
    fs::write(parts.join("manifest.json"), Value::from(entries).to_string())?;
    let archive = directory.join("images.tar");
    create_tar(&parts, &archive).await?;
    Ok(archive)
}

/// Writes an image's configuration, and returns the image's entry of the archive's `manifest.json`.
fn write_image_config(parts: &Path, name: &str, layer: &str, command: &[&str]) -> Result<Value> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let configuration = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Cmd": command, "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
    })
    .to_string();
    let file = format!("{}.json", hex(configuration.as_bytes()));
    fs::write(parts.join(&file), configuration)?;
    Ok(json!({ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }))
}

async fn create_tar(directory: &Path, archive: &Path) -> Result<()> {
    let (directory, archive) = (directory.display().to_string(), archive.display().to_string());
    let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
    let mut arguments = owner.to_vec();
    arguments.extend(["--create", "--file", &archive, "--directory", &directory, "."]);
    // Entries have no prefix "./", because `manifest.json` names the files without it.
    arguments.extend(["--transform", "s,^\\./,,"]);
    process::run_to_completion("tar", &arguments).await?;
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
