//! Selects the files that programs need from packages: libraries, dynamic loaders and the targets of links.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Architecture, Entry, FileTree, ImageError, Package, Result,
    elf::ElfFile,
    tree::{link_target, normalize_merged},
};

/// Maximum number of symbolic links that lead to one file, as in Linux.
const MAX_LINKS: usize = 40;
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Files selected from packages.
#[derive(Clone, Debug)]
pub(crate) struct Selection<'a> {
    architecture: Architecture,
    packages: Vec<&'a Package>,
    /// The index of the package of each selected path.
    selected: BTreeMap<String, usize>,
}

impl<'a> Selection<'a> {
    pub(crate) fn new(architecture: Architecture, packages: impl Iterator<Item = &'a Package>) -> Self {
        Self { architecture, packages: packages.collect(), selected: BTreeMap::new() }
    }

    /// Selects a tool, which must be an ELF file, and everything that it needs.
    pub(crate) fn add_program(&mut self, path: &str) -> Result<()> {
        let (package, data) = self.add_links(path)?;
        if let Some(line) = data.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            return Err(ImageError::Script {
                file: path.to_owned(),
                package: package.pin.name.clone(),
                interpreter: String::from_utf8_lossy(line).trim().to_owned(),
            });
        }
        self.add_needed(path, data)
    }

    /// Selects a file and, if it is an ELF file, everything that it needs.
    pub(crate) fn add_file(&mut self, path: &str) -> Result<()> {
        let (_, data) = self.add_links(path)?;
        if data.starts_with(ELF_MAGIC) { self.add_needed(path, data) } else { Ok(()) }
    }

    /// Selects what the ELF file `file` needs. The file itself need not be in a package.
    pub(crate) fn add_needed(&mut self, file: &str, data: &[u8]) -> Result<()> {
        let mut read = BTreeSet::new();
        let mut waiting = vec![(file.to_owned(), ElfFile::parse(file, data)?)];
        while let Some((file, elf)) = waiting.pop() {
            if elf.architecture != self.architecture {
                let (actual, expected) = (elf.architecture, self.architecture);
                return Err(ImageError::Architecture { file, actual, expected });
            }
            if let Some(loader) = &elf.interpreter {
                let (_, data) = self.add_links(loader)?;
                if read.insert(loader.clone()) {
                    waiting.push((loader.clone(), ElfFile::parse(loader, data)?));
                }
            }
            for library in &elf.needed {
                let path = self.library(&file, library)?;
                let (package, data) = self.add_links(&path)?;
                let found = ElfFile::parse(&path, data)?;
                let versions = elf.needed_versions.iter().filter(|(of, _)| of == library);
                if let Some((_, version)) =
                    versions.into_iter().find(|(_, v)| !found.defined_versions.contains(v))
                {
                    return Err(ImageError::OldLibrary {
                        file,
                        symbol_version: version.clone(),
                        library: library.clone(),
                        package: package.pin.name.clone(),
                        package_version: package.pin.version.clone(),
                    });
                }
                if read.insert(path.clone()) {
                    waiting.push((path, found));
                }
            }
        }
        Ok(())
    }

    /// Selects the copyright file of every package that has a selected file.
    pub(crate) fn add_copyrights(&mut self) -> Result<()> {
        let used: BTreeSet<usize> = self.selected.values().copied().collect();
        for index in used {
            let Some(package) = self.packages.get(index) else { continue };
            let documents = format!("usr/share/doc/{}", package.pin.name);
            match self.find(&documents) {
                // Packages of one source may share a directory.
                Some((index, Entry::Symlink { target })) => {
                    let target = link_target(&documents, target)?;
                    self.selected.insert(documents, index);
                    self.add_links(&format!("{target}/copyright"))?;
                }
                _ => {
                    self.add_links(&format!("{documents}/copyright"))?;
                }
            }
        }
        Ok(())
    }

    /// The selected files of each package, in the order of the packages, without the paths of `base`.
    pub(crate) fn by_package(&self, base: Option<&Self>) -> Result<Vec<(&'a Package, FileTree)>> {
        let mut trees: Vec<FileTree> = self.packages.iter().map(|_| FileTree::new()).collect();
        for (path, index) in &self.selected {
            if base.is_some_and(|base| base.selected.contains_key(path)) {
                continue;
            }
            if let (Some(tree), Some((_, entry))) = (trees.get_mut(*index), self.find(path)) {
                tree.insert(path, entry.clone())?;
            }
        }
        Ok(self.packages.iter().copied().zip(trees).collect())
    }

    fn find(&self, path: &str) -> Option<(usize, &'a Entry)> {
        let mut packages = self.packages.iter().enumerate();
        packages.find_map(|(index, package)| Some((index, package.files.get(path)?)))
    }

    /// Selects the links from `path` on and the file that they lead to. Returns the file and its package.
    fn add_links(&mut self, path: &str) -> Result<(&'a Package, &'a [u8])> {
        let missing = |selection: &Self| ImageError::MissingFile {
            file: path.to_owned(),
            packages: selection.package_names(),
        };
        let mut next = normalize_merged(path)?;
        for _ in 0..=MAX_LINKS {
            let (index, entry) = self.find(&next).ok_or_else(|| missing(self))?;
            self.selected.insert(next.clone(), index);
            match entry {
                Entry::Directory => break,
                Entry::Symlink { target } => next = link_target(&next, target)?,
                Entry::File { data, .. } => {
                    return self
                        .packages
                        .get(index)
                        .map(|package| (*package, &data[..]))
                        .ok_or_else(|| missing(self));
                }
            }
        }
        Err(missing(self))
    }

    /// The path of a library, in the directories that the dynamic loader searches by default.
    fn library(&self, file: &str, library: &str) -> Result<String> {
        let directories =
            [format!("usr/lib/{}", self.architecture.triplet()), "usr/lib".into(), "usr/lib64".into()];
        let mut paths = directories.iter().map(|directory| format!("{directory}/{library}"));
        paths.find(|path| self.find(path).is_some()).ok_or_else(|| ImageError::MissingLibrary {
            file: file.to_owned(),
            library: library.to_owned(),
            packages: self.package_names(),
        })
    }

    fn package_names(&self) -> String {
        let names: Vec<&str> = self.packages.iter().map(|package| package.pin.name.as_str()).collect();
        names.join(", ")
    }
}
