//! References among the modules of one crate, without test modules and generated modules.
//!
//! A module is a source file, with its inline modules. It refers to another if it imports from it or names it
//! in a path that begins with `crate`, `self` or `super`. A re-export (`pub use`, `pub(crate) use`) is not a
//! reference: a parent that re-exports items of its children does not depend on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Item, UseTree, Visibility};

use crate::StructureError;

/// A module's path below the crate root; the root is the empty path.
pub type ModulePath = Vec<String>;
/// Each module with the modules that it refers to.
pub type References = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// Reads the modules of the crate whose sources are in `src`.
///
/// # Errors
/// A file or directory cannot be read, or a file is not valid Rust.
pub fn references(src: &Path) -> Result<References, StructureError> {
    let files = files(src)?;
    let mut all = References::new();
    for (module, file) in &files {
        let text = fs::read_to_string(file).map_err(StructureError::read(file))?;
        let parsed =
            syn::parse_file(&text).map_err(|source| StructureError::Source { path: file.clone(), source })?;
        let mut paths = Vec::new();
        collect_items(&parsed.items, &mut paths);
        let targets = paths.iter().filter_map(|path| resolve(module, path, &files));
        all.insert(module.clone(), targets.filter(|target| target != module).collect());
    }
    Ok(all)
}

/// Groups of modules that refer to each other, directly or through others of the group: the strongly
/// connected components with more than one module.
pub fn cycles(references: &References) -> Vec<Vec<ModulePath>> {
    let mut graph = DiGraphMap::<&ModulePath, ()>::new();
    for (module, targets) in references {
        graph.extend(targets.iter().map(|target| (module, target)));
    }
    let components = tarjan_scc(&graph).into_iter().filter(|component| component.len() > 1);
    let mut cycles: Vec<Vec<ModulePath>> =
        components.map(|component| component.into_iter().cloned().collect()).collect();
    cycles.iter_mut().for_each(|cycle| cycle.sort());
    cycles.sort();
    cycles
}

fn files(src: &Path) -> Result<BTreeMap<ModulePath, PathBuf>, StructureError> {
    let mut found = BTreeMap::new();
    let mut open = vec![src.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory).map_err(StructureError::read(&directory))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let is_test = name == "tests" || name.ends_with("_tests") || name == "generated";
            if is_test {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(src).unwrap_or(&path).with_extension("");
                let mut module: ModulePath =
                    relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
                    module.pop();
                }
                found.insert(module, path);
            }
        }
    }
    Ok(found)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "every other item is searched for paths")]
fn collect_items(items: &[Item], paths: &mut Vec<Vec<String>>) {
    for item in items {
        match item {
            Item::Use(item) if matches!(item.vis, Visibility::Inherited) => {
                collect_use(&item.tree, &mut Vec::new(), paths);
            }
            Item::Use(_) => {}
            Item::Mod(item) => {
                let is_test = item.attrs.iter().any(|attribute| is_cfg_test(&attribute.meta));
                if let Some((_, items)) = item.content.as_ref().filter(|_| !is_test) {
                    collect_items(items, paths);
                }
            }
            other => collect_tokens(other.to_token_stream(), paths),
        }
    }
}

fn is_cfg_test(meta: &syn::Meta) -> bool {
    let syn::Meta::List(list) = meta else { return false };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

fn collect_use(tree: &UseTree, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect_use(&path.tree, prefix, paths);
            prefix.pop();
        }
        UseTree::Name(name) => paths.push([prefix.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(rename) => paths.push([prefix.as_slice(), &[rename.ident.to_string()]].concat()),
        UseTree::Glob(_) => paths.push(prefix.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect_use(tree, prefix, paths)),
    }
}

/// Paths that begin with `crate`, `super` or `self`, wherever they are: also in macro bodies.
fn collect_tokens(tokens: TokenStream, paths: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                collect_tokens(group.stream(), paths);
                finish(&mut path, &mut colons, paths);
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
            TokenTree::Ident(ident) if colons == 2 => {
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Ident(ident) => {
                finish(&mut path, &mut colons, paths);
                let ident = ident.to_string();
                if matches!(ident.as_str(), "crate" | "super" | "self") {
                    path.push(ident);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => finish(&mut path, &mut colons, paths),
        }
    }
    finish(&mut path, &mut colons, paths);
}

fn finish(path: &mut Vec<String>, colons: &mut usize, paths: &mut Vec<Vec<String>>) {
    if path.len() > 1 {
        paths.push(std::mem::take(path));
    }
    path.clear();
    *colons = 0;
}

/// The module that a path leads to: the longest prefix that is a module of this crate. `None` if the path
/// begins neither with `crate`, `self` or `super` nor with a child module.
fn resolve(
    module: &ModulePath,
    path: &[String],
    files: &BTreeMap<ModulePath, PathBuf>,
) -> Option<ModulePath> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first().map(String::as_str)? {
        "crate" => {
            base.clear();
            rest = path.get(1..)?;
        }
        "self" => rest = path.get(1..)?,
        "super" => {
            while let Some(("super", tail)) = rest.split_first().map(|(first, tail)| (first.as_str(), tail)) {
                base.pop();
                rest = tail;
            }
        }
        child => {
            let child: ModulePath = [module.as_slice(), &[child.to_owned()]].concat();
            files.get(&child)?;
        }
    }
    (0..=rest.len()).rev().find_map(|length| {
        let candidate: ModulePath = [base.as_slice(), rest.get(..length)?].concat();
        files.contains_key(&candidate).then_some(candidate)
    })
}
