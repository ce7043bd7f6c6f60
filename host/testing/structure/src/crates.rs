//! Dependencies among the crates of the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use crate::StructureError;

/// Directories of the workspace's crates, without samples and generated projects.
///
/// # Errors
/// The workspace's `Cargo.toml` or a directory cannot be read, or the `Cargo.toml` is not TOML or has no
/// members.
pub fn directories(repository: &Path) -> Result<Vec<PathBuf>, StructureError> {
    let (path, manifest) = manifest(repository)?;
    let members = manifest.get("workspace").and_then(|workspace| workspace.get("members"));
    let members = members
        .and_then(Value::as_array)
        .ok_or(StructureError::MissingKey { path, key: "workspace.members" })?;
    let mut found = Vec::new();
    for member in members.iter().filter_map(Value::as_str) {
        match member.strip_suffix("/*") {
            None => found.push(repository.join(member)),
            Some(parent) => {
                let parent = repository.join(parent);
                let entries = fs::read_dir(&parent).map_err(StructureError::read(&parent))?;
                let directories = entries.flatten().map(|entry| entry.path());
                found.extend(directories.filter(|path| path.join("Cargo.toml").is_file()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The crates of the workspace, each with the workspace crates in its table `[dependencies]`. Development,
/// build and target-specific dependencies are excluded.
///
/// # Errors
/// Those of [`directories`], or a crate's `Cargo.toml` cannot be read, is not TOML or has no package name.
pub fn dependencies(repository: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, StructureError> {
    let mut all = BTreeMap::new();
    for directory in directories(repository)? {
        let (path, manifest) = manifest(&directory)?;
        let name = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        let name = name.ok_or(StructureError::MissingKey { path, key: "package.name" })?;
        let dependencies = manifest.get("dependencies").and_then(Value::as_table);
        let names = dependencies.into_iter().flat_map(|table| table.keys().cloned());
        all.insert(name.to_owned(), names.collect::<BTreeSet<String>>());
    }
    let members: BTreeSet<String> = all.keys().cloned().collect();
    for dependencies in all.values_mut() {
        dependencies.retain(|name| members.contains(name));
    }
    Ok(all)
}

fn manifest(directory: &Path) -> Result<(PathBuf, Table), StructureError> {
    let path = directory.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(StructureError::read(&path))?;
    match text.parse() {
        Ok(table) => Ok((path, table)),
        Err(source) => Err(StructureError::Manifest { path, source }),
    }
}
