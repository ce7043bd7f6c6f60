//! `metadata.managedFields`: who owns which fields.

use std::sync::{Arc, OnceLock};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::set::Set;
use crate::meta;

/// Updaters beyond this many are merged into one entry.
const MAX_UPDATERS: usize = 10;

/// The name of that entry.
const ANCIENT: &str = "ancient-changes";

/// Who wrote and how: what tells two entries apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Writer {
    /// Server-side apply, not an update.
    pub(crate) applies: bool,
    pub(crate) manager: String,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
}

impl Writer {
    /// An applier stays itself when it changes to another version.
    pub(crate) fn is(&self, other: &Writer) -> bool {
        self.applies == other.applies
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.applies || self.api_version == other.api_version)
    }

    /// The writer as conflicts name it.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("\"{}\"", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource \"{}\"", self.subresource));
        }
        if !self.applies {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn operation(&self) -> &'static str {
        if self.applies { "Apply" } else { "Update" }
    }
}

/// What one writer owns.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) writer: Writer,
    /// RFC 3339 in whole seconds; absent when a client wrote the entry without.
    pub(crate) time: Option<String>,
    pub(crate) set: Set,
    json: OnceLock<Option<Box<RawValue>>>,
}

impl Entry {
    pub(crate) fn new(writer: Writer, time: Option<String>, set: Set) -> Arc<Self> {
        Arc::new(Self { writer, time, set, json: OnceLock::new() })
    }

    fn from_value(value: &Value) -> Option<Arc<Self>> {
        let text = |member: &str| meta::text(value, member).to_owned();
        let applies = match meta::text(value, "/operation") {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if text("/apiVersion").is_empty() || text("/fieldsType") != "FieldsV1" {
            return None;
        }
        let set = match value.get("fieldsV1") {
            Some(fields) => Set::from_value(fields)?,
            None => Set::default(),
        };
        let writer = Writer {
            applies,
            manager: text("/manager"),
            api_version: text("/apiVersion"),
            subresource: text("/subresource"),
        };
        let time = Some(text("/time")).filter(|time| !time.is_empty());
        Some(Self::new(writer, time, set))
    }

    fn same_but_time(&self, other: &Entry) -> bool {
        self.writer == other.writer && self.set == other.set
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.writer.manager.is_empty() {
            map.serialize_entry("manager", &self.writer.manager)?;
        }
        map.serialize_entry("operation", self.writer.operation())?;
        map.serialize_entry("apiVersion", &self.writer.api_version)?;
        if let Some(time) = &self.time {
            map.serialize_entry("time", time)?;
        }
        map.serialize_entry("fieldsType", "FieldsV1")?;
        map.serialize_entry("fieldsV1", &self.set)?;
        if !self.writer.subresource.is_empty() {
            map.serialize_entry("subresource", &self.writer.subresource)?;
        }
        map.end()
    }
}

/// The entries of an object. Cheap to clone; an entry that does not change is serialised once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Managed(Vec<Arc<Entry>>);

impl Serialize for Managed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for entry in &self.0 {
            // Texts and maps of texts cannot fail to serialise into memory.
            let json = entry.json.get_or_init(|| serde_json::value::to_raw_value(&**entry).ok());
            list.serialize_element(json)?;
        }
        list.end()
    }
}

impl Managed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter()
    }

    /// The entry of a writer.
    pub(crate) fn get(&self, writer: &Writer) -> Option<&Arc<Entry>> {
        self.0.iter().find(|entry| entry.writer.is(writer))
    }

    /// The list as objects carry it.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// What a client sent. `None`: nothing that could be used.
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let entries: Option<Vec<_>> = value.as_array()?.iter().map(Entry::from_value).collect();
        entries.map(Self)
    }

    /// A client clears the list with an empty list or one empty entry.
    pub(crate) fn is_reset(value: &Value) -> bool {
        match value.as_array().map(Vec::as_slice) {
            Some([]) => true,
            Some([one]) => one.as_object().is_some_and(Map::is_empty),
            Some(_) | None => false,
        }
    }

    /// Puts entries into their order and drops those that own nothing.
    pub(crate) fn from_entries(entries: Vec<Arc<Entry>>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().filter(|entry| !entry.set.is_empty()).collect();
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (!entry.writer.applies, entry.time.clone());
            key(a).cmp(&key(b)).then_with(|| {
                let rest = |writer: &Writer| {
                    (writer.manager.clone(), writer.api_version.clone(), writer.subresource.clone())
                };
                rest(&a.writer).cmp(&rest(&b.writer))
            })
        });
        Self(entries)
    }

    /// Keeps the earlier times where nothing but times differs.
    pub(crate) fn same_but_times(&self, other: &Managed) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().all(|entry| other.get(&entry.writer).is_some_and(|one| entry.same_but_time(one)))
    }

    /// Merges the oldest updaters while there are too many.
    pub(crate) fn capped(self) -> Self {
        let updaters = self.0.iter().filter(|entry| !entry.writer.applies).count();
        if updaters <= MAX_UPDATERS {
            return self;
        }
        let (appliers, mut updaters): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|entry| entry.writer.applies);
        // They stand in the order of time already; the merged entry takes one place itself.
        let surplus = updaters.len() - MAX_UPDATERS + 1;
        let old: Vec<_> = updaters.drain(..surplus).collect();
        let Some(last) = old.last() else { return Self::from_entries(appliers) };
        let writer =
            Writer { manager: ANCIENT.to_owned(), subresource: String::new(), ..last.writer.clone() };
        let set = old.iter().fold(Set::default(), |set, entry| set.union(entry.set.clone()));
        updaters.push(Entry::new(writer, last.time.clone(), set));
        updaters.extend(appliers);
        Self::from_entries(updaters)
    }
}
