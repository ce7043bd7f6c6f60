//! Names the differences between two image layouts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::Path,
};

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::{ImageError, Result, oci::REF_NAME, sha256};

/// Compares two layouts by the digests of their indexes. Returns a line for each difference: an image that
/// one of them does not have, a configuration, and each file of a layer. No lines mean equal indexes.
///
/// # Errors
/// A file of a layout cannot be read or is invalid.
pub fn compare(first: &Path, second: &Path) -> Result<Vec<String>> {
    let layouts = [first, second];
    let [a, b] = layouts.map(|layout| read(&layout.join("index.json")));
    let (a, b) = (a?, b?);
    if a == b {
        return Ok(Vec::new());
    }
    let (a, b) = (images(first, &a)?, images(second, &b)?);
    let mut differences = BTreeSet::new();
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) => compare_images(layouts, name, [a, b], &mut differences)?,
            (Some(_), None) => differences.extend([format!("{name} is only in {}", first.display())]),
            _ => differences.extend([format!("{name} is only in {}", second.display())]),
        }
    }
    if differences.is_empty() {
        differences.insert("index.json has other annotations".to_owned());
    }
    Ok(differences.into_iter().collect())
}

/// The digest of each image's manifest.
fn images(layout: &Path, index: &[u8]) -> Result<BTreeMap<String, String>> {
    let path = layout.join("index.json");
    let index = parse(&path, index)?;
    let manifests = index.get("manifests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let entry = |manifest: &Value| {
        let name = manifest.get("annotations").and_then(|annotations| annotations.get(REF_NAME));
        Some((name?.as_str()?.to_owned(), manifest.get("digest")?.as_str()?.to_owned()))
    };
    let entries: Option<BTreeMap<_, _>> = manifests.iter().map(entry).collect();
    entries.ok_or_else(|| ImageError::Layout {
        path,
        problem: format!("a manifest has no digest or no {REF_NAME}"),
    })
}

fn compare_images(
    layouts: [&Path; 2],
    name: &str,
    digests: [&String; 2],
    differences: &mut BTreeSet<String>,
) -> Result<()> {
    let [a, b] =
        [(layouts[0], digests[0]), (layouts[1], digests[1])].map(|(layout, digest)| manifest(layout, digest));
    let ((a_config, a_layers), (b_config, b_layers)) = (a?, b?);
    if a_layers.len() != b_layers.len() {
        differences.insert(format!("{name}: {} layers and {} layers", a_layers.len(), b_layers.len()));
    }
    let mut layers_differ = false;
    for (number, (a, b)) in a_layers.iter().zip(&b_layers).enumerate() {
        if a == b {
            continue;
        }
        layers_differ = true;
        let [a, b] = [(layouts[0], a), (layouts[1], b)].map(|(layout, digest)| layer_files(layout, digest));
        let (a, b) = (a?, b?);
        let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let mut changed = paths.into_iter().filter(|path| a.get(*path) != b.get(*path)).peekable();
        let layer = number.saturating_add(1);
        if changed.peek().is_none() {
            differences.insert(format!("layer {layer}: the same files, compressed in another way"));
        }
        for path in changed {
            let text = |file: Option<&String>| file.cloned().unwrap_or_else(|| "absent".to_owned());
            differences.insert(format!(
                "layer {layer}: {path}: {} and {}",
                text(a.get(path)),
                text(b.get(path))
            ));
        }
    }
    if a_config != b_config && !layers_differ {
        differences.insert(format!("{name}: the configuration differs"));
    } else if digests[0] != digests[1] && !layers_differ {
        differences.insert(format!("{name}: the annotations of the manifest differ"));
    }
    Ok(())
}

/// The digests of the configuration and of the layers.
fn manifest(layout: &Path, digest: &str) -> Result<(String, Vec<String>)> {
    let path = blob(layout, digest);
    let manifest = parse(&path, &read(&path)?)?;
    let digest = |descriptor: &Value| descriptor.get("digest").and_then(Value::as_str).map(str::to_owned);
    let config = manifest.get("config").and_then(digest);
    let layers = manifest.get("layers").and_then(Value::as_array);
    let layers = layers.and_then(|layers| layers.iter().map(digest).collect::<Option<Vec<_>>>());
    let problem = "expected the digests of a configuration and of layers".to_owned();
    config.zip(layers).ok_or(ImageError::Layout { path, problem })
}

/// Type, mode, time, size and the start of the digest of each file.
fn layer_files(layout: &Path, digest: &str) -> Result<BTreeMap<String, String>> {
    let path = blob(layout, digest);
    let invalid =
        |error: std::io::Error| ImageError::Layout { path: path.clone(), problem: error.to_string() };
    let data = read(&path)?;
    let mut archive = tar::Archive::new(GzDecoder::new(&data[..]));
    let mut files = BTreeMap::new();
    for entry in archive.entries().map_err(invalid)? {
        let mut entry = entry.map_err(invalid)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let link = entry.link_name_bytes().map(|link| format!(" to {}", String::from_utf8_lossy(&link)));
        let header = entry.header();
        let (mode, time) = (header.mode().map_err(invalid)?, header.mtime().map_err(invalid)?);
        let kind = format!("{:?}", header.entry_type()).to_lowercase();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(invalid)?;
        let size = content.len();
        let digest: String = sha256(&content).chars().take(12).collect();
        let link = link.unwrap_or_default();
        files.insert(
            name,
            format!("{kind}{link} (mode {mode:o}, time {time}, {size} bytes, sha256 {digest})"),
        );
    }
    Ok(files)
}

fn blob(layout: &Path, digest: &str) -> std::path::PathBuf {
    layout.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(ImageError::read(path))
}

fn parse(path: &Path, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text)
        .map_err(|error| ImageError::Layout { path: path.to_owned(), problem: error.to_string() })
}
