//! Imports and exports of a component by name, checked before any of its code runs.

use std::collections::BTreeSet;

use cofferdam_domain::storage::Ability;

use crate::{
    contract::{CONTRACT_PACKAGE, CONTRACT_VERSION, Grant, InterfaceVersion},
    error::{LoadError, MissingGrant},
};
use cofferdam_backend::checks::printable;

/// Interfaces that every backend exports.
pub(crate) const MANDATORY_EXPORTS: [&str; 2] = ["identity", "volumes"];

/// Imports and exports of a component, read without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentInterfaces {
    /// Every import, as the component spells it.
    pub imports: Vec<String>,
    /// Every export, as the component spells it.
    pub exports: Vec<String>,
    /// The grants that the imports need.
    pub grants: BTreeSet<Grant>,
    /// The optional interfaces among the exports.
    pub abilities: BTreeSet<Ability>,
}

impl ComponentInterfaces {
    /// Derives the needed grants and the abilities from the names of a component's imports and exports.
    /// `component` is the component's name in errors.
    pub(crate) fn from_names(
        component: &str,
        imports: Vec<String>,
        exports: Vec<String>,
    ) -> Result<Self, LoadError> {
        let grants = required_grants(component, &imports)?;
        let abilities = exported_abilities(component, &exports)?;
        Ok(Self { imports, exports, grants, abilities })
    }

    /// Rejects a component that imports more than its operator grants. The error names every missing grant.
    pub(crate) fn check_grants(&self, component: &str, granted: &BTreeSet<Grant>) -> Result<(), LoadError> {
        let missing: Vec<_> = self
            .grants
            .difference(granted)
            .map(|grant| MissingGrant { import: self.import_of(*grant), grant: *grant })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(LoadError::NotGranted { name: component.to_owned(), missing })
    }

    /// The import that a grant is for, as the component spells it.
    fn import_of(&self, grant: Grant) -> String {
        let is_import =
            |import: &&String| InterfaceName::parse(import).contract_interface() == Some(grant.as_str());
        self.imports.iter().find(is_import).map(|import| printable(import)).unwrap_or_default()
    }

    /// The WASI imports that are linked to inert implementations, as the component spells them.
    pub fn inert_imports(&self) -> impl Iterator<Item = &str> {
        self.imports.iter().map(String::as_str).filter(|import| is_inert(InterfaceName::parse(import)))
    }
}

/// WASI interfaces that the runtimes of guest languages import without needing them. They are linked to inert
/// implementations: no environment, no arguments, no directories, no input; clocks and randomness work;
/// output is logged; `exit` ends the call. Sockets and HTTP are not among them.
pub(crate) const INERT_IMPORTS: [&str; 20] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/stderr",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:cli/terminal-stderr",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// An import's or export's name in its parts: `package/interface@version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceName<'a> {
    path: &'a str,
    version: Option<&'a str>,
}

impl<'a> InterfaceName<'a> {
    fn parse(name: &'a str) -> Self {
        match name.split_once('@') {
            Some((path, version)) => Self { path, version: Some(version) },
            None => Self { path: name, version: None },
        }
    }

    /// The interface, if it is one of the contract's, in any version.
    fn contract_interface(self) -> Option<&'a str> {
        self.path.strip_prefix(CONTRACT_PACKAGE)?.strip_prefix('/')
    }

    /// True if semantic versioning allows this version in place of the host's: the same minor version while
    /// the major version is 0, and the same pre-release. False without a version.
    fn is_compatible(self) -> bool {
        let compatibility_track = |version: &str| {
            let (core, pre) =
                version.split_once('-').map_or((version, None), |(core, pre)| (core, Some(pre.to_owned())));
            let mut parts = core.split('.').map(str::to_owned);
            (parts.next(), parts.next(), pre)
        };
        self.version
            .is_some_and(|version| compatibility_track(version) == compatibility_track(CONTRACT_VERSION))
    }
}

fn unsupported_contract(component: &str, name: &str) -> LoadError {
    LoadError::UnsupportedContract {
        name: component.to_owned(),
        found: InterfaceVersion::new(printable(name)),
    }
}

/// The grants that a component needs. An import that the host does not offer is an error.
fn required_grants(component: &str, imports: &[String]) -> Result<BTreeSet<Grant>, LoadError> {
    let mut grants = BTreeSet::new();
    for import in imports {
        let name = InterfaceName::parse(import);
        let unknown = || LoadError::UnknownImport {
            name: component.to_owned(),
            import: printable(import),
            advice: import_advice(name.path),
        };
        match name.contract_interface() {
            Some(_) if !name.is_compatible() => return Err(unsupported_contract(component, import)),
            Some("types") => {}
            Some(interface) => {
                grants.insert(Grant::from_interface(interface).ok_or_else(unknown)?);
            }
            None if is_inert(name) => {}
            None => return Err(unknown()),
        }
    }
    Ok(grants)
}

/// The abilities of a component. Exports outside of the contract come from tool chains and are ignored. A
/// missing mandatory export is an error. So is an export of the contract in an incompatible version: the
/// ability would be lost silently.
fn exported_abilities(component: &str, exports: &[String]) -> Result<BTreeSet<Ability>, LoadError> {
    let contract_export = |export: &String| {
        let name = InterfaceName::parse(export);
        match name.contract_interface() {
            Some(_) if !name.is_compatible() => Some(Err(unsupported_contract(component, export))),
            interface => interface.map(|interface| Ok(interface.to_owned())),
        }
    };
    let interfaces = exports.iter().filter_map(contract_export).collect::<Result<BTreeSet<_>, _>>()?;
    match MANDATORY_EXPORTS.into_iter().find(|mandatory| !interfaces.contains(*mandatory)) {
        Some(mandatory) => Err(LoadError::MissingExport {
            name: component.to_owned(),
            export: format!("{CONTRACT_PACKAGE}/{mandatory}@{CONTRACT_VERSION}"),
        }),
        None => Ok(interfaces.iter().filter_map(|interface| Ability::from_interface(interface)).collect()),
    }
}

/// True for an inert import in any release of WASI 0.2: the linker matches all of them.
fn is_inert(name: InterfaceName<'_>) -> bool {
    INERT_IMPORTS.contains(&name.path)
        && name.version.is_some_and(|version| version.starts_with("0.2.") && !version.contains('-'))
}

/// Advice for the vendor about an import that the host does not offer.
fn import_advice(path: &str) -> String {
    let hint = match path.split_once('/').map_or(path, |(package, _)| package) {
        "wasi:http" => {
            "use the contract's `http` import; \
             JavaScript: build with `disableFeatures: ['http', 'fetch-event']`"
        }
        "wasi:sockets" => {
            "use the contract's `http` import; Python: build with `componentize-py componentize --stub-wasi`"
        }
        _ => {
            let grants: Vec<_> = Grant::ALL.into_iter().map(Grant::as_str).collect();
            return format!("it offers {CONTRACT_PACKAGE}/{{{}}} and parts of WASI 0.2", grants.join(", "));
        }
    };
    hint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = "cofferdam:storage/identity@0.1.0";
    const VOLUMES: &str = "cofferdam:storage/volumes@0.1.0";

    fn load_result(
        imports: &[&str],
        exports: &[&str],
        granted: &[Grant],
    ) -> Result<ComponentInterfaces, LoadError> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let interfaces = ComponentInterfaces::from_names("x.wasm", owned(imports), owned(exports))?;
        interfaces.check_grants("x.wasm", &granted.iter().copied().collect())?;
        Ok(interfaces)
    }

    fn load_error(imports: &[&str], exports: &[&str]) -> String {
        load_result(imports, exports, &[]).unwrap_err().to_string()
    }

    #[test]
    fn granted_and_inert_imports_are_accepted() {
        let imports =
            ["cofferdam:storage/types@0.1.0", "cofferdam:storage/state@0.1.3", "wasi:cli/stderr@0.2.12"];
        let manifest =
            load_result(&imports, &[IDENTITY, VOLUMES, "init", "exports"], &[Grant::State, Grant::Log])
                .unwrap();
        assert_eq!(manifest.grants, [Grant::State].into());
        assert_eq!(manifest.inert_imports().collect::<Vec<_>>(), ["wasi:cli/stderr@0.2.12"]);
    }

    #[test]
    fn other_imports_are_rejected_by_name() {
        for (import, expected) in [
            ("evil:thing/x@1.0.0", "imports `evil:thing/x@1.0.0`, which this program does not offer"),
            ("wasi:sockets/tcp@0.2.6", "imports `wasi:sockets/tcp@0.2.6`, which this program does not offer"),
            ("wasi:http/types@0.2.6", "which this program does not offer; use the contract's `http` import"),
            ("wasi:cli/stderr@0.3.0", "imports `wasi:cli/stderr@0.3.0`, which this program does not offer"),
            (
                "cofferdam:storage/teapot@0.1.0",
                "imports `cofferdam:storage/teapot@0.1.0`, which this program does not",
            ),
            ("cofferdam:storage/log@0.2.0", "speaks `cofferdam:storage/log@0.2.0`; this program speaks"),
            ("cofferdam:storage/log@0.1.0-rc.1", "speaks `cofferdam:storage/log@0.1.0-rc.1`; this program"),
            ("cofferdam:storage/log", "speaks `cofferdam:storage/log`; this program speaks"),
            (
                "cofferdam:storage/log@0.1.0",
                "imports `cofferdam:storage/log@0.1.0`, which is not granted to it",
            ),
        ] {
            let error = load_error(&[import], &[IDENTITY, VOLUMES]);
            assert!(
                error.starts_with("x.wasm: ") && error.contains(expected) && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn exported_interfaces_become_abilities() {
        let exports =
            [IDENTITY, VOLUMES, "cofferdam:storage/snapshots@0.1.2", "cofferdam:storage/new-thing@0.1.9"];
        assert_eq!(load_result(&[], &exports, &[]).unwrap().abilities, [Ability::Snapshots].into());
        let error = load_error(&[], &[IDENTITY, VOLUMES, "cofferdam:storage/snapshots@0.2.0"]);
        assert!(error.contains("speaks `cofferdam:storage/snapshots@0.2.0`"), "{error}");
    }

    #[test]
    fn documented_inert_imports_match_the_linker() {
        let document = include_str!("../../../docs/threat-model.md");
        let (_, section) = document.split_once("link *inert*").unwrap();
        let (table, _) = section.split_once("Everything else is refused").unwrap();
        let mut listed: Vec<_> = table.split('`').filter(|word| word.starts_with("wasi:")).collect();
        listed.sort_unstable();
        let mut linked = INERT_IMPORTS.to_vec();
        linked.sort_unstable();
        assert_eq!(listed, linked);
    }

    #[test]
    fn missing_mandatory_export_is_named_in_the_error() {
        let error = load_error(&[], &[IDENTITY]);
        assert_eq!(error, format!("x.wasm: does not export `{VOLUMES}`, which every backend must"));
        let error = load_error(&[], &["cofferdam:storage/identity@0.2.0", VOLUMES]);
        assert!(error.contains("speaks `cofferdam:storage/identity@0.2.0`"), "{error}");
    }
}
