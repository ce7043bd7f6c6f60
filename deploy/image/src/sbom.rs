//! Bills of materials in the format CycloneDX 1.6.

use std::collections::BTreeSet;

use flate2::read::ZlibDecoder;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Architecture, Entry, ImageError, Package, Result, elf::section};

/// The section in which `cargo auditable` stores the list of crates: JSON, compressed by zlib.
const CRATES_SECTION: &str = ".dep-v0";
/// Bytes of a package URL that are not escaped.
const PURL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A crate of the program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Crate {
    name: String,
    version: String,
    /// `crates.io`, `git`, `local` or `registry`.
    source: String,
    #[serde(default)]
    kind: CrateKind,
    /// Indices in the list.
    #[serde(default)]
    dependencies: Vec<usize>,
    #[serde(default)]
    root: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CrateKind {
    /// Only build scripts and procedural macros use it.
    Build,
    #[default]
    Runtime,
}

#[derive(Deserialize)]
struct CrateTable {
    packages: Vec<Crate>,
}

/// Reads the list of crates that `cargo auditable` wrote into a program.
pub(crate) fn read_crates(file: &str, program: &[u8]) -> Result<Vec<Crate>> {
    let Some(compressed) = section(file, program, CRATES_SECTION)? else {
        return Err(ImageError::NoCrates(file.to_owned()));
    };
    let invalid = |problem: String| ImageError::Crates { file: file.to_owned(), problem };
    let table: CrateTable =
        serde_json::from_reader(ZlibDecoder::new(compressed)).map_err(|error| invalid(error.to_string()))?;
    let crates = table.packages;
    let outside = |index: &&usize| **index >= crates.len();
    if let Some(index) = crates.iter().flat_map(|of| &of.dependencies).find(outside) {
        return Err(invalid(format!(
            "a dependency has the index {index}, expected less than {}",
            crates.len()
        )));
    }
    if crates.iter().filter(|of| of.root).count() != 1 {
        return Err(invalid("expected one root".to_owned()));
    }
    Ok(crates)
}

impl Crate {
    fn reference(&self) -> String {
        let Self { name, version, source, .. } = self;
        if self.is_public() { self.purl() } else { format!("{source}:{name}@{version}") }
    }

    /// Only crates of crates.io have a package URL: of others, somebody else could publish one of that name.
    fn is_public(&self) -> bool {
        self.source == "crates.io"
    }

    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", escape(&self.name), escape(&self.version))
    }

    fn component(&self) -> Value {
        let kind = if self.root { "application" } else { "library" };
        let mut component =
            json!({"type": kind, "bom-ref": self.reference(), "name": self.name, "version": self.version});
        let scope = match self.kind {
            CrateKind::Build => "excluded",
            CrateKind::Runtime => "required",
        };
        insert(&mut component, "scope", scope.into());
        if self.is_public() {
            insert(&mut component, "purl", self.purl().into());
        }
        component
    }
}

/// The bill of materials of an image.
pub(crate) struct Bom<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    /// Digest of the image's manifest, with `sha256:`.
    pub(crate) digest: &'a str,
    /// Time of creation in RFC 3339.
    pub(crate) created: &'a str,
    pub(crate) architecture: Architecture,
    pub(crate) crates: &'a [Crate],
    pub(crate) packages: &'a [&'a Package],
}

impl Bom<'_> {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let image = format!("pkg:oci/{}@{}?arch={}", self.name, escape(self.digest), self.architecture);
        let distribution = self.distribution();
        let mut components: Vec<Value> = self.crates.iter().map(Crate::component).collect();
        if let Some((id, version)) = &distribution {
            let reference = format!("{id}-{version}");
            components.push(
                json!({"type": "operating-system", "bom-ref": reference, "name": id, "version": version}),
            );
        }
        components
            .extend(self.packages.iter().map(|package| debian_component(package, distribution.as_ref())));
        let mut dependencies: Vec<Value> = Vec::new();
        for of in self.crates {
            let uses = of.dependencies.iter().filter_map(|index| self.crates.get(*index));
            let uses: BTreeSet<String> = uses.map(Crate::reference).collect();
            dependencies.push(json!({"ref": of.reference(), "dependsOn": uses}));
        }
        let packages = self.packages.iter().map(|package| debian_purl(package, distribution.as_ref()));
        let roots = self.crates.iter().filter(|of| of.root).map(Crate::reference);
        let contained: BTreeSet<String> = roots.chain(packages).collect();
        dependencies.push(json!({"ref": image, "dependsOn": contained}));
        let mut text = serde_json::to_vec_pretty(&json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": self.serial_number(),
            "version": 1,
            "metadata": {
                "timestamp": self.created,
                "tools": {"components": [
                    {"type": "application", "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")},
                ]},
                "component": {
                    "type": "container",
                    "bom-ref": image,
                    "name": self.name,
                    "version": self.version,
                    "purl": image,
                },
            },
            "components": components,
            "dependencies": dependencies,
        }))
        .unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// A UUID of version 8 (RFC 9562) from the image's digest: the same image has the same number.
    fn serial_number(&self) -> String {
        let digest = self.digest.trim_start_matches("sha256:");
        let part = |start: usize, end: usize| digest.get(start..end).unwrap_or_default();
        format!(
            "urn:uuid:{}-{}-8{}-8{}-{}",
            part(0, 8),
            part(8, 12),
            part(12, 15),
            part(15, 18),
            part(18, 30)
        )
    }

    /// `ID` and `VERSION_ID` of the distribution.
    fn distribution(&self) -> Option<(String, String)> {
        let release = self.packages.iter().find_map(|package| package.files.get("usr/lib/os-release"))?;
        let Entry::File { data, .. } = release else { return None };
        let text = String::from_utf8_lossy(data);
        let value = |key: &str| {
            let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            values.map(|value| value.trim_matches('"').to_owned()).next()
        };
        Some((value("ID")?, value("VERSION_ID")?))
    }
}

fn debian_component(package: &Package, distribution: Option<&(String, String)>) -> Value {
    let purl = debian_purl(package, distribution);
    let pin = &package.pin;
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": pin.name,
        "version": pin.version,
        "scope": "required",
        "purl": purl,
        // The digest of the package, of whose files the image has some.
        "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
    });
    if let Some(maintainer) = package.field("Maintainer") {
        insert(&mut component, "publisher", maintainer.into());
    }
    component
}

/// The package URL, with the name of the source package where it is another one: advisories are about
/// sources.
fn debian_purl(package: &Package, distribution: Option<&(String, String)>) -> String {
    let pin = &package.pin;
    let (name, version) = (escape(&pin.name), escape(&pin.version));
    let mut purl = format!("pkg:deb/debian/{name}@{version}?arch={}", pin.architecture);
    if let Some((id, version)) = distribution {
        purl.push_str(&format!("&distro={}", escape(&format!("{id}-{version}"))));
    }
    if let Some(source) = package.field("Source") {
        // `NAME (VERSION)`, with a version if it differs from the package's.
        let source = source.replace(" (", "@").replace(')', "");
        purl.push_str(&format!("&upstream={}", escape(&source)));
    }
    purl
}

fn insert(component: &mut Value, key: &str, value: Value) {
    if let Value::Object(fields) = component {
        fields.insert(key.to_owned(), value);
    }
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, PURL).to_string()
}
