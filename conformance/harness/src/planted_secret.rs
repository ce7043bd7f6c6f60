//! A search for a Secret value that is unique for the run.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Request;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    discovery::{Discovery, verbs},
};
use memchr::memmem::Finder;

use crate::process::ManagedProcess;

/// Size of the parts of a process's memory that are searched one after the other.
const MEMORY_PART: usize = 1 << 20;
/// Minimum length of a value's part that the search looks for, in bytes.
const MIN_MARKER_LENGTH: usize = 24;

/// A value that nothing but a Secret may have.
#[derive(Clone)]
pub(crate) struct PlantedSecret {
    value: String,
    encodings: Vec<Finder<'static>>,
}

impl PlantedSecret {
    /// A random value with characters that JSON and URLs escape.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn random() -> Result<Self> {
        let mut random = [0; MIN_MARKER_LENGTH / 2];
        getrandom::fill(&mut random)?;
        let marker = lower_hex(&random);
        Ok(Self::new(format!("\"{marker}\\/ä%"), &marker))
    }

    /// The value of a Secret in the cluster: at least 24 letters and digits, which are unique.
    ///
    /// # Errors
    /// If the Secret or the key is missing, or the value has another form.
    pub(crate) async fn read(client: &Client, namespace: &str, name: &str, key: &str) -> Result<Self> {
        let secret = Api::<Secret>::namespaced(client.clone(), namespace).get(name).await?;
        let value = secret.data.and_then(|mut data| data.remove(key)).context("a Secret without the key")?;
        let value = String::from_utf8(value.0)?;
        let is_marker = value.len() >= MIN_MARKER_LENGTH && value.bytes().all(|b| b.is_ascii_alphanumeric());
        ensure!(
            is_marker,
            "{namespace}/{name}, {key}: expected at least {MIN_MARKER_LENGTH} letters and digits"
        );
        Ok(Self::new(value.clone(), &value))
    }

    /// A value that contains `marker`, which JSON and percent-encoding leave unchanged. The other encodings
    /// are hexadecimal, in lower and in upper case, and base64.
    fn new(value: String, marker: &str) -> Self {
        let hexadecimal = lower_hex(marker.as_bytes());
        let mut encodings = vec![marker.to_owned(), hexadecimal.to_uppercase(), hexadecimal];
        // The base64 of a part depends on its position in the value, modulo 3, except for its first and last
        // characters.
        for prefix in ["", "x", "xx"] {
            let encoded = STANDARD.encode(format!("{prefix}{marker}"));
            encodings.extend(encoded.get(4..28).map(str::to_owned));
        }
        let encodings = encodings.iter().map(|encoding| Finder::new(encoding).into_owned()).collect();
        Self { value, encodings }
    }

    /// The value.
    pub(crate) fn value(&self) -> &str {
        &self.value
    }

    fn is_in(&self, text: &[u8]) -> bool {
        self.encodings.iter().any(|encoding| encoding.find(text).is_some())
    }

    /// Searches all files below `directory`: logs, saved metrics, and the audit log with the bodies of
    /// requests.
    ///
    /// # Errors
    /// If the value is found, or a file cannot be read.
    pub(crate) fn ensure_not_in_files(&self, directory: &Path) -> Result<()> {
        let (_, hits) = self.search_files(directory)?;
        ensure!(hits.is_empty(), "the value of the Secret is in {hits:?}");
        Ok(())
    }

    /// Number of files below `directory`, and the paths of those that contain the value.
    fn search_files(&self, directory: &Path) -> Result<(usize, BTreeSet<String>)> {
        let mut files = Vec::new();
        list_files(directory, &mut files)?;
        let mut hits = BTreeSet::new();
        for path in &files {
            if self.is_in(&fs::read(path)?) {
                hits.insert(path.display().to_string());
            }
        }
        Ok((files.len(), hits))
    }

    /// Searches the logs below `directory`, every object of the cluster, every page of metrics, and the
    /// memory of Cofferdam's processes. Fails if the value is found outside of the Secret and of the memory.
    /// Returns a note with the numbers.
    ///
    /// # Errors
    /// If the value is found, or something cannot be read, or the search does not find it in the Secret.
    pub(crate) async fn search(
        &self,
        client: &Client,
        directory: &Path,
        processes: impl IntoIterator<Item = &ManagedProcess>,
        namespace: &str,
        secret: &str,
    ) -> Result<String> {
        self.ensure_encodings_are_found()?;
        let (logs, mut hits) = self.search_files(directory)?;
        let mut objects = 0;
        let mut is_secret_found = false;
        for group in Discovery::new(client.clone()).run().await?.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                if !capabilities.supports_operation(verbs::LIST) {
                    continue;
                }
                let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
                for object in api.list(&ListParams::default()).await?.items {
                    objects += 1;
                    if !self.is_in(&serde_json::to_vec(&object)?) {
                        continue;
                    }
                    let is_secret = resource.kind == "Secret"
                        && object.metadata.namespace.as_deref() == Some(namespace)
                        && object.metadata.name.as_deref() == Some(secret);
                    if is_secret {
                        is_secret_found = true;
                    } else {
                        hits.insert(format!("{} {:?}", resource.kind, object.metadata.name));
                    }
                }
            }
        }
        ensure!(is_secret_found, "the search does not find the Secret itself");
        let page = client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
        if self.is_in(page.as_bytes()) {
            hits.insert("metrics of kube-apiserver".to_owned());
        }
        let mut memory_hits = Vec::new();
        for process in processes {
            // The programs of a driver may have no metrics.
            if process.metrics_client().is_ok() && self.is_in(process.metrics_page().await?.as_bytes()) {
                hits.insert(format!("metrics of {}", process.name()));
            }
            let id = process.id().with_context(|| format!("{} does not run", process.name()))?;
            if self.is_in_memory(id)? {
                memory_hits.push(process.name().to_owned());
            }
        }
        ensure!(hits.is_empty(), "the value of the Secret is in {hits:?}");
        let in_memory = if memory_hits.is_empty() { "no process".to_owned() } else { memory_hits.join(", ") };
        Ok(format!(
            "the Secret's value is in 0 of {logs} logs, 0 of {objects} objects and 0 pages of metrics; after the \
             calls, in the memory of {in_memory}"
        ))
    }

    /// Proves that the search finds a planted value in each encoding.
    fn ensure_encodings_are_found(&self) -> Result<()> {
        let percent: String = self.value.bytes().map(percent_encoded).collect();
        let json = serde_json::to_string(&self.value)?;
        let hexadecimal = lower_hex(self.value.as_bytes());
        let mut planted = vec![self.value.clone(), percent, json, hexadecimal.to_uppercase(), hexadecimal];
        planted.extend(["", "x", "xx"].map(|prefix| STANDARD.encode(format!("{prefix}{}", self.value))));
        for text in planted {
            ensure!(self.is_in(format!("before {text} after").as_bytes()), "a planted value is not found");
        }
        ensure!(!self.is_in(b"before and after"), "a value is found that is not planted");
        Ok(())
    }

    fn is_in_memory(&self, id: u32) -> Result<bool> {
        let maps = fs::read_to_string(format!("/proc/{id}/maps"))?;
        let mut memory = File::open(format!("/proc/{id}/mem"))?;
        let overlap = self.encodings.iter().map(|encoding| encoding.needle().len()).max().unwrap_or_default();
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let (start, end) = range.context("a mapping without a range")?;
            let (mut at, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
            let mut part = vec![0; MEMORY_PART + overlap];
            while at < end {
                let length = usize::try_from(end - at)?.min(part.len());
                let part = part.get_mut(..length).context("a part that is too long")?;
                memory.seek(SeekFrom::Start(at))?;
                // The process may have unmapped it meanwhile.
                if memory.read_exact(part).is_ok() && self.is_in(part) {
                    return Ok(true);
                }
                at += u64::try_from(MEMORY_PART)?;
            }
        }
        Ok(false)
    }
}

fn lower_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn percent_encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
}

fn list_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            list_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
