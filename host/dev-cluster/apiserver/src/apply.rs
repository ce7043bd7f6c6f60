//! Server-side apply.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::descriptors::{ResourceDescriptor, Subresource};
use crate::fields::{self, ApplyError, ApplyResult, Conflict, Endpoint, ManagedFields};
use crate::inner::Inner;
use crate::meta;
use crate::request::Target;
use crate::schema;
use crate::status::{FieldError, Status};
use crate::store::StoredObject;
use crate::strategy;
use crate::write::{MAX_RETRIES, WriteOptions, check_name, check_namespace};

/// Annotation with the last configuration of client-side `kubectl apply`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Field manager of `kubectl apply --server-side`.
const KUBECTL_MANAGER: &str = "kubectl";

impl Inner {
    /// Applies a configuration, which is the body of a server-side apply. Returns the object and true if it
    /// was created.
    pub(crate) fn apply(
        &self,
        target: &Target,
        body: &[u8],
        options: WriteOptions<'_>,
    ) -> Result<(Arc<StoredObject>, bool), Status> {
        let subresource = target.write_endpoint()?;
        let configuration = parse(body)?;
        for _ in 0..MAX_RETRIES {
            let current = match self.find(target) {
                Ok(current) => current,
                Err(_) if subresource == Subresource::Main => {
                    return Ok((self.create_applied(target, &configuration, options)?, true));
                }
                Err(status) => return Err(status),
            };
            let stored = (&current.value, &current.managed_fields);
            let next = self.merge_config(target, subresource, stored, &configuration, options)?;
            check_namespace(target, &next.0)?;
            if let Some(done) = self.replace(target, subresource, &current, next, options)? {
                return Ok((done, false));
            }
        }
        Err(Status::too_many_conflicts(target.resource, target.name()))
    }

    fn create_applied(
        &self,
        target: &Target,
        config: &Value,
        options: WriteOptions<'_>,
    ) -> Result<Arc<StoredObject>, Status> {
        let no_managers = ManagedFields::default();
        let stored = (schema::empty(target.resource.id), &no_managers);
        let (value, managed) = self.merge_config(target, Subresource::Main, stored, config, options)?;
        check_namespace(target, &value)?;
        check_name(target, &value)?;
        let uid = meta::text(&value, "/metadata/uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(target.resource, target.name(), &why));
        }
        self.insert(target, value, managed, options)
    }

    /// Merges the configuration into an object. Returns the merged object and its managed fields.
    fn merge_config(
        &self,
        target: &Target,
        subresource: Subresource,
        (live, managed): (&Value, &ManagedFields),
        config: &Value,
        options: WriteOptions<'_>,
    ) -> Result<(Value, ManagedFields), Status> {
        let resource = target.resource;
        let body = check_type(resource, config)?;
        let endpoint = Endpoint { kind: resource.id, subresource };
        let now = self.managed_fields_time();
        let apply = |force| fields::apply(endpoint, managed, (live, &body), (options.manager, force), &now);
        let applied = match apply(options.force) {
            Err(ApplyError::Conflicts(conflicts)) if options.manager == KUBECTL_MANAGER => {
                let remaining = without_client_side_applied(resource, conflicts, live);
                if remaining.is_empty() { apply(true) } else { Err(ApplyError::Conflicts(remaining)) }
            }
            other => other,
        };
        let ApplyResult { mut value, managed } = applied.map_err(|error| match error {
            ApplyError::Malformed(why) => Status::internal(format!(
                "failed to create typed patch object ({}): {why}",
                describe_config(resource, &body)
            )),
            ApplyError::MalformedObject(why) => Status::internal(format!(
                "failed to create manager for existing fields: failed to convert new object ({}) to smd \
                 typed: {why}",
                describe_config(resource, live)
            )),
            ApplyError::Conflicts(conflicts) => {
                let error = |conflict: &Conflict| {
                    FieldError::manager_conflict(&conflict.path, &conflict.manager.describe())
                };
                let errors: Vec<FieldError> = conflicts.iter().map(error).collect();
                Status::apply_conflict(fields::describe(&conflicts), &errors)
            }
        })?;
        schema::decode_applied(resource, &mut value).map_err(|error| {
            let why = error.message.split_once(": ").map_or("", |(_, why)| why).to_owned();
            Status::internal(format!(
                "failed to convert new object ({}) to proper version: unable to convert unstructured object \
                 to {}: {why}",
                describe_config(resource, &body),
                group_version_kind(resource)
            ))
        })?;
        strategy::set_defaults(resource.id, &mut value);
        if options.manager == KUBECTL_MANAGER {
            sync_last_applied(&mut value, config);
        }
        Ok((value, managed))
    }
}

/// Parses a configuration, which is YAML or JSON.
fn parse(body: &[u8]) -> Result<Value, Status> {
    if let Ok(value @ Value::Object(_)) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let malformed = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
    let text = std::str::from_utf8(body)
        .map_err(|_| malformed("error converting YAML to JSON: yaml: invalid Unicode".to_owned()))?;
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| malformed(format!("error converting YAML to JSON: yaml: {error}")))?;
    let found = match value {
        Value::Object(_) => return Ok(value),
        Value::Null => return Ok(json!({})),
        Value::Array(_) => "array",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
    };
    Err(malformed(format!(
        "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type \
         map[string]interface {{}}"
    )))
}

/// Checks `apiVersion` and `kind` against the target and removes them. Rejects managedFields.
fn check_type(resource: &ResourceDescriptor, config: &Value) -> Result<Value, Status> {
    let mut body = config.clone();
    let version = meta::remove(&mut body, "apiVersion");
    let kind = meta::remove(&mut body, "kind");
    let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind) = (text(&version), text(&kind));
    if version != resource.api_version() || kind != resource.kind {
        let version = if version.contains('/') { version } else { format!("/{version}") };
        return Err(Status::bad_request(format!("invalid object type: {version}, Kind={kind}")));
    }
    if body.pointer("/metadata/managedFields").is_some_and(|sent| !sent.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    Ok(body)
}

fn group_version_kind(resource: &ResourceDescriptor) -> String {
    let slash = if resource.group.is_empty() { "/" } else { "" };
    format!("{slash}{}, Kind={}", resource.api_version(), resource.kind)
}

/// Name of the configuration in messages.
fn describe_config(resource: &ResourceDescriptor, config: &Value) -> String {
    format!("{}/{}; {}", meta::namespace(config), meta::name(config), group_version_kind(resource))
}

/// Removes conflicts over fields that an earlier client-side `kubectl apply` set and that have not changed
/// since.
fn without_client_side_applied(
    resource: &ResourceDescriptor,
    conflicts: Vec<Conflict>,
    live: &Value,
) -> Vec<Conflict> {
    let annotations = live.pointer("/metadata/annotations");
    let last = annotations.and_then(|all| all.get(LAST_APPLIED)?.as_str());
    let last = last.and_then(|text| serde_json::from_str::<Value>(text).ok());
    match last {
        Some(last) if meta::text(&last, "/apiVersion") == resource.api_version() => {
            fields::without_client_side_applied(resource.id, conflicts, &last, live)
        }
        Some(_) | None => conflicts,
    }
}

/// Sets the last-applied annotation of client-side apply to the configuration, if the object has the
/// annotation.
fn sync_last_applied(value: &mut Value, config: &Value) {
    let annotated = value
        .pointer("/metadata/annotations")
        .and_then(|all| all.get(LAST_APPLIED)?.as_str())
        .is_some_and(|text| !text.is_empty());
    if !annotated {
        return;
    }
    let mut config = config.clone();
    meta::edit_meta(&mut config, |metadata| {
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    });
    let text = Value::String(format!("{config}\n"));
    meta::edit_meta(value, |metadata| {
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.insert(LAST_APPLIED.to_owned(), text);
        }
    });
}
