//! What a component asks for and offers, by name, judged before anything of it runs.

use std::{collections::BTreeSet, fmt};

use cofferdam_domain::storage::Ability;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use cofferdam_backend::checks::printable;

/// The contract's package.
const PACKAGE: &str = "cofferdam:storage";
/// The contract's version.
pub(crate) const OUR_VERSION: &str = "0.1.0";
/// Interfaces that every backend exports.
pub(crate) const MANDATORY: [&str; 2] = ["identity", "volumes"];

/// One ability that a backend is given. A component that imports one that it was not granted is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grant {
    /// Lines in the log.
    Log,
    /// Wall clock and random bytes.
    Ambient,
    /// The backend's own settings.
    Settings,
    /// The call's secrets as handles.
    Secrets,
    /// What stands in the call's secrets.
    Reveal,
    /// Logins that outlive a call.
    Session,
    /// HTTP requests to the origins that the operator names.
    Http,
    /// Keyed blobs that outlive a call.
    State,
    /// A directory of the host.
    Pool,
}

impl Grant {
    /// Every grant.
    pub const ALL: [Self; 9] = [
        Self::Log,
        Self::Ambient,
        Self::Settings,
        Self::Secrets,
        Self::Reveal,
        Self::Session,
        Self::Http,
        Self::State,
        Self::Pool,
    ];

    /// What a backend is given unless its configuration says otherwise: what stays within this process and shows it nothing
    /// but its own.
    pub const DEFAULT: [Self; 6] =
        [Self::Log, Self::Ambient, Self::Settings, Self::Secrets, Self::Session, Self::State];

    /// How an operator gives it.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::Http => {
                "name the origins of its requests in sections [[backend.NAME.http.origins]], or by --origin where the \
                 command has it"
                    .to_owned()
            }
            Self::Pool => {
                "name its directory in a section [backend.NAME.pool], or by --pool where the command has it".to_owned()
            }
            Self::Log
            | Self::Ambient
            | Self::Settings
            | Self::Secrets
            | Self::Reveal
            | Self::Session
            | Self::State => {
                format!("add {self} to its grants, or by --grant where the command has it")
            }
        }
    }

    /// Name of the interface that it opens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Ambient => "ambient",
            Self::Settings => "settings",
            Self::Secrets => "secrets",
            Self::Reveal => "reveal",
            Self::Session => "session",
            Self::Http => "http",
            Self::State => "state",
            Self::Pool => "pool",
        }
    }

    fn of(interface: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grant| grant.as_str() == interface)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.as_str())
    }
}

/// An interface of the contract in a version that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVersion(String);

impl fmt::Display for FoundVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a component is, without having run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Every import, as the component spells it.
    pub imports: Vec<String>,
    /// Every export, as the component spells it.
    pub exports: Vec<String>,
    /// The grants among the imports.
    pub grants: BTreeSet<Grant>,
    /// The optional interfaces among the exports.
    pub abilities: BTreeSet<Ability>,
}

impl Manifest {
    /// Reads a component by the names of what it imports and exports.
    pub(crate) fn read(
        component: &str,
        imports: Vec<String>,
        exports: Vec<String>,
    ) -> Result<Self, LoadError> {
        let grants = grants(component, &imports)?;
        let abilities = abilities(component, &exports)?;
        Ok(Self { imports, exports, grants, abilities })
    }

    /// Refuses a component that imports more than its operator grants.
    pub(crate) fn check(&self, component: &str, granted: &BTreeSet<Grant>) -> Result<(), LoadError> {
        let Some(missing) = self.grants.difference(granted).next() else { return Ok(()) };
        let of_grant = |import: &&String| Name::parse(import).of_contract() == Some(missing.as_str());
        Err(LoadError::NotGranted {
            name: component.to_owned(),
            import: self.imports.iter().find(of_grant).map(|import| printable(import)).unwrap_or_default(),
            grant: *missing,
        })
    }

    /// The imports that are linked with nothing behind them, as the component spells them.
    pub fn inert(&self) -> impl Iterator<Item = &str> {
        self.imports.iter().map(String::as_str).filter(|import| is_inert(Name::parse(import)))
    }
}

/// WASI interfaces that the runtimes of guest languages import without needing them. They are linked with nothing behind
/// them: no environment, no arguments, no directory, no input; clocks and randomness work; output goes to the log.
/// Sockets and HTTP are not among them.
pub(crate) const INERT: [&str; 20] = [
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
struct Name<'a> {
    path: &'a str,
    version: Option<&'a str>,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Self {
        match name.split_once('@') {
            Some((path, version)) => Self { path, version: Some(version) },
            None => Self { path: name, version: None },
        }
    }

    /// The interface, if it is one of the contract's, in whatever version.
    fn of_contract(self) -> Option<&'a str> {
        self.path.strip_prefix(PACKAGE)?.strip_prefix('/')
    }

    /// Whether semantic versioning lets this stand in for ours: the same minor version while the major one is 0.
    fn is_ours(self) -> bool {
        let track = |version: &str| {
            let (core, pre) =
                version.split_once('-').map_or((version, None), |(core, pre)| (core, Some(pre.to_owned())));
            let mut parts = core.split('.').map(str::to_owned);
            (parts.next(), parts.next(), pre)
        };
        self.version.is_some_and(|version| track(version) == track(OUR_VERSION))
    }
}

fn foreign(component: &str, name: &str) -> LoadError {
    LoadError::ForeignContract { name: component.to_owned(), found: FoundVersion(printable(name)) }
}

/// The grants that a component needs; an import that nobody offers is an error.
fn grants(component: &str, imports: &[String]) -> Result<BTreeSet<Grant>, LoadError> {
    let mut grants = BTreeSet::new();
    for import in imports {
        let name = Name::parse(import);
        let unknown = || LoadError::UnknownImport {
            name: component.to_owned(),
            import: printable(import),
            advice: advice(name.path),
        };
        match name.of_contract() {
            Some(_) if !name.is_ours() => return Err(foreign(component, import)),
            Some("types") => {}
            Some(interface) => {
                grants.insert(Grant::of(interface).ok_or_else(unknown)?);
            }
            None if is_inert(name) => {}
            None => return Err(unknown()),
        }
    }
    Ok(grants)
}

/// The abilities that a component has. Exports that are not the contract's are tool chains' own and tolerated; the
/// contract's in another version are not: the ability would be lost without a word.
fn abilities(component: &str, exports: &[String]) -> Result<BTreeSet<Ability>, LoadError> {
    let ours = |export: &String| {
        let name = Name::parse(export);
        match name.of_contract() {
            Some(_) if !name.is_ours() => Some(Err(foreign(component, export))),
            interface => interface.map(|interface| Ok(interface.to_owned())),
        }
    };
    let interfaces = exports.iter().filter_map(ours).collect::<Result<BTreeSet<_>, _>>()?;
    match MANDATORY.into_iter().find(|mandatory| !interfaces.contains(*mandatory)) {
        Some(mandatory) => Err(LoadError::MissingExport {
            name: component.to_owned(),
            export: format!("{PACKAGE}/{mandatory}@{OUR_VERSION}"),
        }),
        None => Ok(interfaces.iter().filter_map(|interface| Ability::of(interface)).collect()),
    }
}

/// Any 0.2 of WASI: the linker matches versions of one track.
fn is_inert(name: Name<'_>) -> bool {
    INERT.contains(&name.path)
        && name.version.is_some_and(|version| version.starts_with("0.2.") && !version.contains('-'))
}

/// What a vendor can do about an import that nobody offers.
fn advice(path: &str) -> String {
    let way_out = match path.split_once('/').map_or(path, |(package, _)| package) {
        "wasi:http" => {
            "use the contract's `http` import; JavaScript: build with `disableFeatures: ['http', 'fetch-event']`"
        }
        "wasi:sockets" => {
            "use the contract's `http` import; Python: build with `componentize-py componentize --stub-wasi`"
        }
        _ => {
            let grants: Vec<_> = Grant::ALL.into_iter().map(Grant::as_str).collect();
            return format!("it offers {PACKAGE}/{{{}}} and parts of WASI 0.2", grants.join(", "));
        }
    };
    way_out.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = "cofferdam:storage/identity@0.1.0";
    const VOLUMES: &str = "cofferdam:storage/volumes@0.1.0";

    fn verdict(imports: &[&str], exports: &[&str], granted: &[Grant]) -> Result<Manifest, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let manifest = Manifest::read("x.wasm", owned(imports), owned(exports));
        manifest
            .and_then(|manifest| {
                manifest.check("x.wasm", &granted.iter().copied().collect()).map(|()| manifest)
            })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_granted_and_inert_is_accepted() {
        let imports =
            ["cofferdam:storage/types@0.1.0", "cofferdam:storage/state@0.1.3", "wasi:cli/stderr@0.2.12"];
        let manifest =
            verdict(&imports, &[IDENTITY, VOLUMES, "init", "exports"], &[Grant::State, Grant::Log]).unwrap();
        assert_eq!(manifest.grants, [Grant::State].into());
        assert_eq!(manifest.inert().collect::<Vec<_>>(), ["wasi:cli/stderr@0.2.12"]);
    }

    #[test]
    fn everything_else_is_refused_by_name() {
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
            let error = verdict(&[import], &[IDENTITY, VOLUMES], &[]).unwrap_err();
            assert!(
                error.starts_with("x.wasm: ") && error.contains(expected) && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_exported_is_an_ability() {
        let exports =
            [IDENTITY, VOLUMES, "cofferdam:storage/snapshots@0.1.2", "cofferdam:storage/new-thing@0.1.9"];
        assert_eq!(verdict(&[], &exports, &[]).unwrap().abilities, [Ability::Snapshots].into());
        let error = verdict(&[], &[IDENTITY, VOLUMES, "cofferdam:storage/snapshots@0.2.0"], &[]).unwrap_err();
        assert!(error.contains("speaks `cofferdam:storage/snapshots@0.2.0`"), "{error}");
    }

    #[test]
    fn what_links_inert_is_documented() {
        let document = include_str!("../../../docs/threat-model.md");
        let (_, section) = document.split_once("link *inert*").unwrap();
        let (table, _) = section.split_once("Everything else is refused").unwrap();
        let mut listed: Vec<_> = table.split('`').filter(|word| word.starts_with("wasi:")).collect();
        listed.sort_unstable();
        let mut linked = INERT.to_vec();
        linked.sort_unstable();
        assert_eq!(listed, linked);
    }

    #[test]
    fn mandatory_exports_are_named() {
        let error = verdict(&[], &[IDENTITY], &[]).unwrap_err();
        assert_eq!(error, format!("x.wasm: does not export `{VOLUMES}`, which every backend must"));
        let error = verdict(&[], &["cofferdam:storage/identity@0.2.0", VOLUMES], &[]).unwrap_err();
        assert!(error.contains("speaks `cofferdam:storage/identity@0.2.0`"), "{error}");
    }
}
