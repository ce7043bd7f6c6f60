//! `metadata.managedFields`: field ownership by manager.

use std::sync::{Arc, OnceLock};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::set::FieldSet;
use crate::meta;

/// Maximum number of entries with the operation Update. If there are more, the oldest are merged into one.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Manager of the entry into which the oldest Update entries are merged.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// The identity of an entry of managedFields: manager, operation, apiVersion and subresource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FieldManager {
    /// True if the operation is Apply, not Update.
    pub(crate) is_apply: bool,
    pub(crate) manager: String,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
}

impl FieldManager {
    /// Returns `true` if both are the same manager. The apiVersion is ignored if the operation is Apply.
    pub(crate) fn is_same_manager(&self, other: &FieldManager) -> bool {
        self.is_apply == other.is_apply
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.is_apply || self.api_version == other.api_version)
    }

    /// The manager in conflict messages.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("\"{}\"", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource \"{}\"", self.subresource));
        }
        if !self.is_apply {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn operation(&self) -> &'static str {
        if self.is_apply { "Apply" } else { "Update" }
    }
}

/// An entry of managedFields.
#[derive(Debug)]
pub(crate) struct ManagedFieldsEntry {
    pub(crate) manager: FieldManager,
    /// Time in RFC 3339 with whole seconds. `None` if a client wrote the entry without it, or if the first
    /// apply of the manager did not change the object.
    pub(crate) time: Option<String>,
    pub(crate) fields: FieldSet,
    json: OnceLock<Option<Box<RawValue>>>,
}

impl ManagedFieldsEntry {
    pub(crate) fn new(writer: FieldManager, time: Option<String>, set: FieldSet) -> Arc<Self> {
        Arc::new(Self { manager: writer, time, fields: set, json: OnceLock::new() })
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
            Some(fields) => FieldSet::from_value(fields)?,
            None => FieldSet::default(),
        };
        let writer = FieldManager {
            is_apply: applies,
            manager: text("/manager"),
            api_version: text("/apiVersion"),
            subresource: text("/subresource"),
        };
        let time = Some(text("/time")).filter(|time| !time.is_empty());
        Some(Self::new(writer, time, set))
    }

    fn is_equal_ignoring_time(&self, other: &ManagedFieldsEntry) -> bool {
        self.manager == other.manager && self.fields == other.fields
    }
}

impl Serialize for ManagedFieldsEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.manager.manager.is_empty() {
            map.serialize_entry("manager", &self.manager.manager)?;
        }
        map.serialize_entry("operation", self.manager.operation())?;
        map.serialize_entry("apiVersion", &self.manager.api_version)?;
        if let Some(time) = &self.time {
            map.serialize_entry("time", time)?;
        }
        map.serialize_entry("fieldsType", "FieldsV1")?;
        map.serialize_entry("fieldsV1", &self.fields)?;
        if !self.manager.subresource.is_empty() {
            map.serialize_entry("subresource", &self.manager.subresource)?;
        }
        map.end()
    }
}

/// The managedFields of an object. Clones share entries, and each entry is serialized once.
#[derive(Debug, Clone, Default)]
pub(crate) struct ManagedFields(Vec<Arc<ManagedFieldsEntry>>);

impl Serialize for ManagedFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for entry in &self.0 {
            // Strings and maps of strings always serialize.
            let json = entry.json.get_or_init(|| serde_json::value::to_raw_value(&**entry).ok());
            list.serialize_element(json)?;
        }
        list.end()
    }
}

impl ManagedFields {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ManagedFieldsEntry>> {
        self.0.iter()
    }

    /// The entry of a manager.
    pub(crate) fn get(&self, writer: &FieldManager) -> Option<&Arc<ManagedFieldsEntry>> {
        self.0.iter().find(|entry| entry.manager.is_same_manager(writer))
    }

    /// `metadata.managedFields` as JSON.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Parses the list of a client. `None` if it is invalid.
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let entries: Option<Vec<_>> = value.as_array()?.iter().map(ManagedFieldsEntry::from_value).collect();
        entries.map(Self)
    }

    /// Returns `true` if a client clears the list: with an empty list or one empty entry.
    pub(crate) fn is_reset(value: &Value) -> bool {
        match value.as_array().map(Vec::as_slice) {
            Some([]) => true,
            Some([one]) => one.as_object().is_some_and(Map::is_empty),
            Some(_) | None => false,
        }
    }

    /// Sorts entries and drops those without fields.
    pub(crate) fn from_entries(entries: Vec<Arc<ManagedFieldsEntry>>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().filter(|entry| !entry.fields.is_empty()).collect();
        entries.sort_by(|a, b| {
            let key = |entry: &ManagedFieldsEntry| (!entry.manager.is_apply, entry.time.clone());
            key(a).cmp(&key(b)).then_with(|| {
                let rest = |writer: &FieldManager| {
                    (writer.manager.clone(), writer.api_version.clone(), writer.subresource.clone())
                };
                rest(&a.manager).cmp(&rest(&b.manager))
            })
        });
        Self(entries)
    }

    /// Returns `true` if both are equal except for times.
    pub(crate) fn is_equal_ignoring_times(&self, other: &ManagedFields) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .all(|entry| other.get(&entry.manager).is_some_and(|one| entry.is_equal_ignoring_time(one)))
    }

    /// Merges the oldest Update entries into one if there are more than [`MAX_UPDATE_MANAGERS`].
    pub(crate) fn merge_oldest_updaters(self) -> Self {
        let updaters = self.0.iter().filter(|entry| !entry.manager.is_apply).count();
        if updaters <= MAX_UPDATE_MANAGERS {
            return self;
        }
        let (appliers, mut updaters): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|entry| entry.manager.is_apply);
        // They are sorted by time. The merged entry counts, too.
        let excess = updaters.len() - MAX_UPDATE_MANAGERS + 1;
        let old: Vec<_> = updaters.drain(..excess).collect();
        let Some(last) = old.last() else { return Self::from_entries(appliers) };
        let writer = FieldManager {
            manager: ANCIENT_CHANGES.to_owned(),
            subresource: String::new(),
            ..last.manager.clone()
        };
        let set = old.iter().fold(FieldSet::default(), |set, entry| set.union(entry.fields.clone()));
        updaters.push(ManagedFieldsEntry::new(writer, last.time.clone(), set));
        updaters.extend(appliers);
        Self::from_entries(updaters)
    }
}
