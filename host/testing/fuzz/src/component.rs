//! Component files, as `cofferdam backend inspect` and the loader of backends read them.

mod names;

use std::{collections::BTreeSet, fs, io, path::PathBuf, sync::LazyLock};

use cofferdam_wasm::{
    CompiledCache, ComponentInfo, ComponentSource, Engine, EngineOptions, Grant, Limits, LoadError,
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use self::names::Names;
use crate::message::assert_printable;

/// First line of an input that describes a component.
const NAMES: &[u8] = b"names\n";
/// First bytes of a component: the magic number, version 13, layer 1.
const COMPONENT_HEADER: &[u8] = b"\0asm\x0d\0\x01\0";
const PACKAGE: &str = "cofferdam:storage/";
/// Larger inputs are skipped: they cost time in the compiler and show nothing about the names.
const MAX_INPUT_BYTES: usize = 64 << 10;
/// Most bytes of a message without the file's name: a text of 1,000 bytes, and the host's text around it.
const MAX_MESSAGE_BYTES: usize = 1_500;

/// An engine, and the file that it reads.
struct Inspector {
    runtime: Runtime,
    engine: Engine,
    _directory: TempDir,
    file: PathBuf,
}

static INSPECTOR: LazyLock<Option<Inspector>> = LazyLock::new(|| Inspector::start().ok());

/// Inspects a file. The input is the file, or starts with the line `names`: the further lines are
/// `import NAME FUNCTION…` and `export NAME FUNCTION…`, and the file is a component with these instances.
///
/// - Every import of an inspected component is granted by name or inert, in a supported version.
/// - Grants and abilities are those of the imports and exports, and the mandatory exports are present.
/// - Only a file with the header of a component is compiled.
/// - A rejection is a printable message that starts with the file, and names a rejected import.
pub fn component(data: &[u8]) {
    assert!(INSPECTOR.is_some(), "the engine does not start");
    let Some(inspector) = &*INSPECTOR else { return };
    if data.len() > MAX_INPUT_BYTES {
        return;
    }
    let names = data.strip_prefix(NAMES).map(|lines| Names::parse(&String::from_utf8_lossy(lines)));
    let bytes = names.as_ref().map_or_else(|| data.to_vec(), Names::component);
    let found = inspector.inspect(&bytes);
    match &found {
        Ok(info) => {
            check_info(info, &bytes);
            if let Some(names) = &names {
                assert_eq!(info.interfaces.imports, names.imports());
                assert_eq!(info.interfaces.exports, names.exports());
            }
        }
        Err(error) => inspector.check_error(error, &bytes, names.as_ref()),
    }
}

impl Inspector {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().build()?;
        let options = EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() };
        let engine = Engine::new(options).map_err(io::Error::other)?;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("x.wasm");
        Ok(Self { runtime, engine, _directory: directory, file })
    }

    fn inspect(&self, bytes: &[u8]) -> Result<ComponentInfo, LoadError> {
        let written = fs::write(&self.file, bytes);
        assert!(written.is_ok(), "{written:?}");
        let source = ComponentSource::File(self.file.clone());
        self.runtime.block_on(self.engine.inspect(source, &Limits::default()))
    }

    fn check_error(&self, error: &LoadError, bytes: &[u8], names: Option<&Names>) {
        let message = error.to_string();
        let text =
            message.strip_prefix(&*self.file.to_string_lossy()).and_then(|text| text.strip_prefix(": "));
        assert!(text.is_some(), "{message}");
        assert_printable(text.unwrap_or_default(), MAX_MESSAGE_BYTES);
        assert!(!matches!(error, LoadError::Internal { .. }), "a panic of the host: {message}");

        let is_component = bytes.starts_with(COMPONENT_HEADER);
        let is_other_file = matches!(error, LoadError::NotAComponent { .. });
        assert_eq!(is_other_file, !is_component, "{message}");
        if let (LoadError::UnknownImport { import, .. }, Some(names)) = (error, names) {
            assert!(names.imports().contains(import), "{message}");
        }
    }
}

fn check_info(info: &ComponentInfo, bytes: &[u8]) {
    assert!(bytes.starts_with(COMPONENT_HEADER));
    assert_eq!(usize::try_from(info.size), Ok(bytes.len()));
    let interfaces = &info.interfaces;
    let (contract, others): (Vec<_>, Vec<_>) =
        interfaces.imports.iter().map(String::as_str).partition(|import| import.starts_with(PACKAGE));
    assert!(interfaces.inert_imports().eq(others.iter().copied()));
    for import in others {
        assert!(import.starts_with("wasi:") && import.contains("@0.2."), "{import}");
        assert!(!import.starts_with("wasi:http") && !import.starts_with("wasi:sockets"), "{import}");
    }
    let grant_of = |import: &str| {
        let interface = contract_interface(import);
        assert!(interface.is_some(), "the version of {import}");
        let grant = Grant::ALL.into_iter().find(|grant| Some(grant.as_str()) == interface);
        assert!(grant.is_some() || interface == Some("types"), "{import}");
        grant
    };
    assert_eq!(interfaces.grants, contract.into_iter().filter_map(grant_of).collect());

    let exports: BTreeSet<&str> =
        interfaces.exports.iter().filter_map(|export| contract_interface(export)).collect();
    for mandatory in ["identity", "volumes"] {
        assert!(exports.contains(mandatory), "{exports:?}");
    }
    for ability in &interfaces.abilities {
        assert!(exports.contains(ability.to_string().as_str()), "{ability} of {exports:?}");
    }
    assert!(interfaces.abilities.len() <= exports.len());
}

/// The interface of a name of the contract in a version that this host supports, 0.1.x.
fn contract_interface(name: &str) -> Option<&str> {
    let (interface, version) = name.strip_prefix(PACKAGE)?.split_once('@')?;
    (version.starts_with("0.1.") && !version.contains('-')).then_some(interface)
}
