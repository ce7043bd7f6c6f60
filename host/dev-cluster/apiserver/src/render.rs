//! Response formats: objects, metadata and tables, as single objects, lists and watch frames.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::descriptors::{ResourceDescriptor, ResourceKind};
use crate::request::ResponseFormat;
use crate::status::Status;
use crate::store::{StoredObject, WatchEventType, frame};
use crate::table;

/// `includeObject` of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// Renders objects of one kind for one client.
#[derive(Debug, Clone)]
pub(crate) struct Renderer {
    kind: ResourceKind,
    format: ResponseFormat,
    include: IncludeObject,
    now: Timestamp,
    /// True if a watch has sent the column definitions of its table; it sends them once.
    columns_sent: bool,
}

/// `metadata` of a list.
#[derive(Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) version: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining_item_count: Option<usize>,
}

impl ListMeta {
    fn to_value(&self) -> Value {
        let mut meta = serde_json::Map::new();
        if let Some(next) = &self.continue_token {
            meta.insert("continue".to_owned(), json!(next));
        }
        if let Some(remaining) = self.remaining_item_count {
            meta.insert("remainingItemCount".to_owned(), json!(remaining));
        }
        meta.insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        Value::Object(meta)
    }
}

impl Renderer {
    pub(crate) fn new(
        kind: ResourceKind,
        view: ResponseFormat,
        include: &str,
        now: Timestamp,
    ) -> Result<Self, Status> {
        let include = match include {
            "" | "Metadata" => IncludeObject::Metadata,
            "None" => IncludeObject::None,
            "Object" => IncludeObject::Object,
            other => {
                return Err(Status::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: \"{other}\": \
                     must be 'Metadata', 'Object', 'None', or empty"
                )));
            }
        };
        Ok(Self { kind, format: view, include, now, columns_sent: false })
    }

    /// Returns `true` if the client gets whole objects, not metadata or tables. The response then contains
    /// the stored bytes.
    pub(crate) fn is_object_format(&self) -> bool {
        self.format == ResponseFormat::Object
    }

    /// Sets the time at which the ages in table rows are computed.
    pub(crate) fn set_time(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Renders an object.
    pub(crate) fn object(&self, object: &StoredObject) -> Bytes {
        match self.format {
            ResponseFormat::Object => object.json().clone(),
            ResponseFormat::Metadata => partial_object_metadata(object).to_string().into(),
            ResponseFormat::Table => {
                let version = json!({"resourceVersion": object.version.to_string()});
                self.table(version, vec![self.row(object)], true).to_string().into()
            }
        }
    }

    /// Renders a watch frame.
    pub(crate) fn frame(&mut self, event_type: WatchEventType, object: &StoredObject) -> Bytes {
        match self.format {
            ResponseFormat::Object => frame(event_type, object.json()),
            ResponseFormat::Metadata => {
                frame(event_type, partial_object_metadata(object).to_string().as_bytes())
            }
            ResponseFormat::Table => {
                let meta = json!({"resourceVersion": object.version.to_string()});
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let table = self.table(meta, vec![self.row(object)], columns);
                frame(event_type, table.to_string().as_bytes())
            }
        }
    }

    /// Renders a list.
    pub(crate) fn list<'a>(
        &self,
        meta: &ListMeta,
        objects: impl ExactSizeIterator<Item = &'a StoredObject>,
    ) -> Bytes {
        let resource = self.kind.resource();
        match self.format {
            ResponseFormat::Object => object_list(resource, meta, objects),
            ResponseFormat::Metadata => {
                let items: Vec<Value> = objects.map(partial_object_metadata).collect();
                let list = json!({
                    "apiVersion": "meta.k8s.io/v1",
                    "kind": "PartialObjectMetadataList",
                    "metadata": meta.to_value(),
                    "items": items,
                });
                list.to_string().into()
            }
            ResponseFormat::Table => {
                let rows = objects.map(|object| self.row(object)).collect();
                self.table(meta.to_value(), rows, true).to_string().into()
            }
        }
    }

    fn row(&self, object: &StoredObject) -> Value {
        let mut row = json!({"cells": table::cells(self.kind, &object.value, self.now)});
        let row_object = match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_object_metadata(object),
            IncludeObject::Object => object.to_response(),
        };
        if let Value::Object(map) = &mut row {
            map.insert("object".to_owned(), row_object);
        }
        row
    }

    fn table(&self, meta: Value, rows: Vec<Value>, columns: bool) -> Value {
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": if columns { table::columns(self.kind) } else { Value::Null },
            "rows": rows,
        })
    }

    /// Renders a bookmark. With `initial_events_end`, it has the annotation that marks the end of the initial
    /// events of a watch.
    pub(crate) fn bookmark(&self, version: u64, initial_events_end: bool) -> Bytes {
        let resource = self.kind.resource();
        let mut meta = json!({"resourceVersion": version.to_string()});
        if initial_events_end && let Value::Object(map) = &mut meta {
            map.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = match self.format {
            ResponseFormat::Object => {
                json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": meta})
            }
            ResponseFormat::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
            }
            ResponseFormat::Table => {
                let row = json!({"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
                }});
                self.table(json!({"resourceVersion": version.to_string()}), vec![row], false)
            }
        };
        format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into()
    }
}

/// Sets the member `continue` of a list's metadata if it is missing and the items are custom resources: those
/// lists have it also if it is empty.
pub(crate) fn set_empty_continue(resource: &ResourceDescriptor, meta: &mut Value) {
    if resource.is_custom
        && let Value::Object(meta) = meta
    {
        meta.entry("continue").or_insert_with(|| json!(""));
    }
}

/// Renders an ERROR frame, which ends a watch.
pub(crate) fn error_frame(status: &Status) -> Bytes {
    format!("{}\n", json!({"type": "ERROR", "object": status.to_value()})).into()
}

fn object_list<'a>(
    resource: &ResourceDescriptor,
    meta: &ListMeta,
    objects: impl ExactSizeIterator<Item = &'a StoredObject>,
) -> Bytes {
    let mut meta = meta.to_value();
    set_empty_continue(resource, &mut meta);
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{meta},\"items\":[",
        resource.kind,
        resource.api_version(),
    );
    let mut bytes = Vec::with_capacity(head.len() + objects.len() * 1024 + 2);
    bytes.extend_from_slice(head.as_bytes());
    for (index, object) in objects.enumerate() {
        bytes.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        bytes.extend_from_slice(object.list_item_bytes());
    }
    bytes.extend_from_slice(b"]}");
    bytes.into()
}

fn partial_object_metadata(object: &StoredObject) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.metadata(),
    })
}
