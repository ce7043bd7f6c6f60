//! Create, update and patch.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::descriptors::{self, ResourceDescriptor, ResourceKind, Subresource};
use crate::fields::{self, Endpoint, ManagedFields};
use crate::inner::Inner;
use crate::meta;
use crate::patch;
use crate::request::{FieldValidation, PatchType, Query, Target};
use crate::schema;
use crate::status::{FieldError, Status, body_excerpt};
use crate::store::{self, CommitError, StoreChange, StoredObject};
use crate::strategy;
use crate::validate;

/// Maximum attempts of a write that conflicts with concurrent writes of the same object.
pub(crate) const MAX_RETRIES: usize = 16;

/// Warnings of a request, whether it succeeds or not.
#[derive(Debug, Default)]
pub(crate) struct Warnings(RefCell<Vec<String>>);

impl Warnings {
    fn add(&self, unknown: Vec<String>) {
        let mut warnings = self.0.borrow_mut();
        for field in unknown {
            let warning = format!("unknown field \"{field}\"");
            // A retried write repeats its warnings.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }

    /// The warnings.
    pub(crate) fn into_inner(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// Options of a write request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteOptions<'a> {
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
    /// The field manager: for a client's request `fieldManager` of the query, else the program's name in the
    /// `User-Agent`.
    pub(crate) manager: &'a str,
    /// True if an apply takes over fields of other managers.
    pub(crate) force: bool,
    pub(crate) warnings: &'a Warnings,
}

/// Maximum length of a field manager's name in bytes.
const MAX_MANAGER_BYTES: usize = 128;

impl<'a> WriteOptions<'a> {
    /// Parses the query. `options` is the kind that messages name, such as `CreateOptions`. `agent` is the
    /// client's `User-Agent`. `patch` is the type of a patch; `None` for other requests.
    pub(crate) fn parse(
        options: &'static str,
        query: &'a Query,
        agent: &'a str,
        patch: Option<PatchType>,
        warnings: &'a Warnings,
    ) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let named = query.get("fieldManager");
        if patch == Some(PatchType::Apply) {
            if named.is_empty() {
                errors.push(FieldError::required("fieldManager", "is required for apply patch"));
            }
        } else if patch.is_some() && query.has("force") {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        if named.len() > MAX_MANAGER_BYTES {
            errors.push(FieldError::too_long("fieldManager", MAX_MANAGER_BYTES));
        }
        for (at, character) in named.char_indices().filter(|(_, character)| character.is_control()) {
            let code = u32::from(character);
            let detail = format!("invalid character U+{code:04X} (at position {at})");
            errors.push(FieldError::invalid("fieldManager", &Value::from(named), &detail));
        }
        let dry_run = query.dry_run(&mut errors);
        let fields = match query.get("fieldValidation") {
            "Strict" => FieldValidation::Strict,
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported("fieldValidation", other, &known));
                FieldValidation::Ignore
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid_options(options, &errors));
        }
        let manager = if named.is_empty() { agent_prefix(agent) } else { named };
        Ok(Self { dry_run, field_validation: fields, manager, force: query.flag("force"), warnings })
    }
}

/// The program's name in a `User-Agent`: the text before the first slash, truncated to the maximum length.
fn agent_prefix(agent: &str) -> &str {
    let name = agent.split('/').next().unwrap_or_default();
    let end = name
        .char_indices()
        .map(|(at, one)| at + one.len_utf8())
        .take_while(|end| *end <= MAX_MANAGER_BYTES)
        .last();
    name.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl Inner {
    /// Creates an object.
    pub(crate) fn create(
        &self,
        target: &Target,
        body: Value,
        options: WriteOptions<'_>,
    ) -> Result<Arc<StoredObject>, Status> {
        let kind = target.resource.id;
        let DecodedBody { mut value, managed_fields: sent } =
            decode_body(target.resource, body, BodySource::Client, options)?;
        if !meta::text(&value, "/metadata/resourceVersion").is_empty() {
            return Err(Status::resource_version_on_create());
        }
        check_namespace(target, &value)?;
        meta::edit_meta(&mut value, |meta| {
            meta.remove("deletionTimestamp");
            meta.remove("deletionGracePeriodSeconds");
        });
        strategy::set_defaults(kind, &mut value);
        let endpoint = Endpoint { kind, subresource: Subresource::Main };
        let before = fields::initial_managed_fields(sent.as_ref(), &ManagedFields::default());
        let change = (schema::empty(kind), &value);
        let managed = fields::update(endpoint, &before, change, options.manager, &self.managed_fields_time());
        self.insert(target, value, managed, options)
    }

    /// Sets the metadata, the initial status and the admission plugins' fields of a new object, validates it,
    /// and stores it unless the request is a dry run.
    pub(crate) fn insert(
        &self,
        target: &Target,
        mut value: Value,
        managed: ManagedFields,
        options: WriteOptions<'_>,
    ) -> Result<Arc<StoredObject>, Status> {
        let resource = target.resource;
        self.set_system_metadata(resource, &target.namespace, &mut value);
        strategy::prepare_create(resource.id, &mut value, (self.now)());
        self.admit_create(resource.id, &mut value)?;
        schema::fill(resource.id, &mut value);
        let errors = validate::create(resource, &value);
        let name = meta::name(&value).to_owned();
        if !errors.is_empty() {
            return Err(Status::invalid(resource, &name, &errors));
        }
        if options.dry_run {
            self.check_creatable(target, &name)?;
            return Ok(StoredObject::transient(resource.id, 0, value, managed));
        }
        let key = store::key(&target.namespace, &name);
        self.store.commit(resource.id, &key, None, StoreChange::Put(value, managed)).map_err(|error| {
            match error {
                CommitError::Conflict => Status::already_exists(resource, &name),
                CommitError::NamespaceMissing => {
                    Status::not_found(ResourceKind::Namespace.resource(), &target.namespace)
                }
                CommitError::NamespaceTerminating => Status::terminating(resource, &name, &target.namespace),
            }
        })
    }

    /// The current time in the format of managed fields.
    pub(crate) fn managed_fields_time(&self) -> String {
        meta::text(&json!({"now": meta::timestamp((self.now)())}), "/now").to_owned()
    }

    /// Checks for a dry run that a commit could create the object.
    fn check_creatable(&self, target: &Target, name: &str) -> Result<(), Status> {
        if target.resource.namespaced {
            let namespaces = ResourceKind::Namespace.resource();
            let namespace = self
                .store
                .get(ResourceKind::Namespace, &target.namespace)
                .ok_or_else(|| Status::not_found(namespaces, &target.namespace))?;
            if meta::deleting(&namespace.value) {
                return Err(Status::terminating(target.resource, name, &target.namespace));
            }
        }
        match self.store.get(target.resource.id, &store::key(&target.namespace, name)) {
            Some(_) => Err(Status::already_exists(target.resource, name)),
            None => Ok(()),
        }
    }

    /// Sets the system metadata of a new object, and its name from `generateName` if it has none.
    fn set_system_metadata(&self, resource: &ResourceDescriptor, namespace: &str, value: &mut Value) {
        let now = meta::timestamp((self.now)());
        let uid = self.uid();
        meta::edit_meta(value, |meta| {
            for system in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "managedFields",
                "resourceVersion",
                "selfLink",
            ] {
                meta.remove(system);
            }
            let has_no_name = meta.get("name").and_then(Value::as_str).unwrap_or_default().is_empty();
            if has_no_name && let Some(prefix) = meta.get("generateName").and_then(Value::as_str) {
                // Names are limited to 63 characters, so a long prefix is truncated.
                let prefix: String = prefix.chars().take(58).collect();
                meta.insert("name".to_owned(), Value::String(format!("{prefix}{}", self.name_suffix())));
            }
            if resource.namespaced {
                meta.insert("namespace".to_owned(), Value::String(namespace.to_owned()));
            } else {
                meta.remove("namespace");
            }
            if resource.has_generation {
                meta.insert("generation".to_owned(), Value::from(1));
            }
            meta.insert("creationTimestamp".to_owned(), now);
            meta.insert("uid".to_owned(), Value::String(uid));
        });
    }

    /// Replaces an object, or creates it if its kind allows a PUT to do so. Returns the object and true if it
    /// was created.
    pub(crate) fn update(
        &self,
        target: &Target,
        body: Value,
        options: WriteOptions<'_>,
    ) -> Result<(Arc<StoredObject>, bool), Status> {
        let subresource = target.write_endpoint()?;
        let DecodedBody { value, managed_fields: sent } =
            decode_body(target.resource, body, BodySource::Client, options)?;
        check_namespace(target, &value)?;
        for _ in 0..MAX_RETRIES {
            let current = match self.find(target) {
                Ok(current) => current,
                Err(_) if target.resource.allow_create_on_update && subresource == Subresource::Main => {
                    check_name(target, &value)?;
                    return Ok((self.create(target, value, options)?, true));
                }
                Err(status) => return Err(status),
            };
            check_uid(target, &current, &value)?;
            let next = DecodedBody { value: value.clone(), managed_fields: sent.clone() };
            if let Some(done) =
                self.update_managed_and_replace(target, subresource, &current, next, options)?
            {
                return Ok((done, false));
            }
        }
        Err(Status::too_many_conflicts(target.resource, target.name()))
    }

    /// Patches an object.
    pub(crate) fn patch(
        &self,
        target: &Target,
        patch_type: PatchType,
        body: &[u8],
        options: WriteOptions<'_>,
    ) -> Result<Arc<StoredObject>, Status> {
        let subresource = target.write_endpoint()?;
        let change = patch::parse(patch_type, body)?;
        for _ in 0..MAX_RETRIES {
            let current = self.find(target)?;
            // Managed fields are large and rarely patched.
            let whole = if change.has_field("managedFields") {
                current.to_response()
            } else {
                current.with_type_meta()
            };
            let patched = change.apply(target.resource.id, whole)?;
            let next = decode_body(target.resource, patched.clone(), BodySource::Patch, options)
                .map_err(|error| change.patch_error(&patched, error))?;
            check_namespace(target, &next.value)?;
            if let Some(done) =
                self.update_managed_and_replace(target, subresource, &current, next, options)?
            {
                return Ok(done);
            }
        }
        Err(Status::too_many_conflicts(target.resource, target.name()))
    }

    /// Updates the managed fields and replaces `current`. `None` if another request changed the object
    /// meanwhile.
    fn update_managed_and_replace(
        &self,
        target: &Target,
        subresource: Subresource,
        current: &Arc<StoredObject>,
        next: DecodedBody,
        options: WriteOptions<'_>,
    ) -> Result<Option<Arc<StoredObject>>, Status> {
        let DecodedBody { mut value, managed_fields: sent } = next;
        let kind = target.resource.id;
        strategy::set_defaults(kind, &mut value);
        // Managed fields cannot be set through a subresource.
        let sent = sent.filter(|_| subresource == Subresource::Main);
        let mut managed = fields::initial_managed_fields(sent.as_ref(), &current.managed_fields);
        // A cleared list disables tracking.
        if !managed.is_empty() {
            let change = (&current.value, &value);
            managed = fields::update(
                Endpoint { kind, subresource },
                &managed,
                change,
                options.manager,
                &self.managed_fields_time(),
            );
        }
        self.replace(target, subresource, current, (value, managed), options)
    }

    /// Validates the new state and replaces `current`, or removes it if it is terminating and can be removed.
    /// A removal is followed by garbage collection. Stores nothing in a dry run, or if at most the times of
    /// managed fields differ. `None` if another request changed the object meanwhile.
    pub(crate) fn replace(
        &self,
        target: &Target,
        subresource: Subresource,
        current: &Arc<StoredObject>,
        (mut next, managed): (Value, ManagedFields),
        options: WriteOptions<'_>,
    ) -> Result<Option<Arc<StoredObject>>, Status> {
        let resource = target.resource;
        let name = target.name();
        check_name(target, &next)?;
        check_versions(resource, current, &next)?;
        let old = &current.value;
        let immutable = validate::immutable_metadata(old, &next);
        if !immutable.is_empty() {
            return Err(Status::invalid(resource, name, &immutable));
        }
        copy_system_metadata(old, &mut next);
        strategy::prepare_update(resource, subresource, old, &mut next, (self.now)());
        schema::fill(resource.id, &mut next);
        let errors = validate::update(resource, subresource, old, &next);
        if !errors.is_empty() {
            return Err(Status::invalid(resource, name, &errors));
        }
        if subresource == Subresource::Main {
            self.admit_update(resource.id, old, &next)?;
        }
        if next == *old && managed.is_equal_ignoring_times(&current.managed_fields) {
            return Ok(Some(Arc::clone(current)));
        }
        if options.dry_run {
            return Ok(Some(StoredObject::transient(resource.id, current.version, next, managed)));
        }
        let key = store::key(&target.namespace, name);
        // The kubelet updates the status of a terminating pod and deletes it itself.
        let is_removed =
            meta::deleting(old) && !meta::has_grace(old) && self.is_removable(resource.id, &next);
        // The removal of the last finalizer deletes the stored object; the response has the object of the
        // request.
        let change = if is_removed {
            StoreChange::Remove(old.clone(), current.managed_fields.clone())
        } else {
            StoreChange::Put(next.clone(), managed.clone())
        };
        match self.store.commit(resource.id, &key, Some(current.version), change) {
            Ok(_) if is_removed => {
                let answer = StoredObject::transient(resource.id, current.version, next, managed);
                self.collect_garbage(vec![Arc::clone(&answer)]);
                Ok(Some(answer))
            }
            Ok(written) => Ok(Some(written)),
            Err(
                CommitError::Conflict | CommitError::NamespaceMissing | CommitError::NamespaceTerminating,
            ) => Ok(None),
        }
    }
}

/// A decoded body.
#[derive(Debug)]
pub(crate) struct DecodedBody {
    pub(crate) value: Value,
    /// `metadata.managedFields` of the body; `None` if absent.
    managed_fields: Option<Value>,
}

/// The origin of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodySource {
    /// A request.
    Client,
    /// A patch of the stored object.
    Patch,
}

/// Checks `apiVersion` and `kind`, drops them, and decodes the rest.
fn decode_body(
    resource: &ResourceDescriptor,
    mut body: Value,
    source: BodySource,
    options: WriteOptions<'_>,
) -> Result<DecodedBody, Status> {
    if !body.is_object() {
        return Err(Status::bad_request(
            "couldn't get version/kind; json parse error: an object was expected",
        ));
    }
    if resource.is_custom {
        check_custom_type(resource, &body, source)?;
    }
    let version = meta::remove(&mut body, "apiVersion");
    let kind = meta::remove(&mut body, "kind");
    check_type(resource, text_or_empty(version.as_ref()), text_or_empty(kind.as_ref()))?;
    let metadata = body.get_mut("metadata").and_then(Value::as_object_mut);
    let sent = metadata.and_then(|metadata| metadata.remove("managedFields"));
    options.warnings.add(schema::decode(resource, &mut body, options.field_validation)?);
    Ok(DecodedBody { value: body, managed_fields: sent.filter(|sent| !sent.is_null()) })
}

fn text_or_empty(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

/// Checks `apiVersion` and `kind` of a custom resource, which are required. The kinds of custom resources
/// have no Go types, so the messages differ from those of [`check_type`].
fn check_custom_type(resource: &ResourceDescriptor, body: &Value, source: BodySource) -> Result<(), Status> {
    let (version, kind) = (meta::text(body, "/apiVersion"), meta::text(body, "/kind"));
    let expected = resource.api_version();
    if source == BodySource::Client {
        if kind.is_empty() {
            let text = body.to_string();
            return Err(Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in \
                 '{text}' ({})",
                resource.kind,
                body_excerpt(text.as_bytes())
            )));
        }
        if version != expected {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({expected})"
            )));
        }
    }
    let mut errors = Vec::new();
    for (field, found, expected) in [("kind", kind, resource.kind), ("apiVersion", version, &expected)] {
        if found != expected {
            let detail = format!("must be {expected}");
            errors.push(FieldError::invalid(field, &Value::from(found), &detail));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid_type(resource, kind, meta::name(body), &errors))
    }
}

/// Checks `apiVersion` and `kind` of a body, if present, against the resource.
fn check_type(resource: &ResourceDescriptor, version: &str, kind: &str) -> Result<(), Status> {
    let (expected, wanted) = (resource.api_version(), resource.kind);
    let version = if version.is_empty() { expected.as_str() } else { version };
    let kind = if kind.is_empty() { wanted } else { kind };
    if version == expected && kind == wanted {
        return Ok(());
    }
    let short = |version: &str| version.rsplit('/').next().unwrap_or_default().to_owned();
    let package = |group: &str| match group.split('.').next() {
        Some("") | None => "core".to_owned(),
        Some(group) => group.to_owned(),
    };
    let known = descriptors::RESOURCES.iter().any(|one| one.api_version() == version && one.kind == kind);
    let why = if known {
        format!(
            "converting ({}.{kind}) to ({}.{wanted}): unknown conversion",
            short(version),
            package(resource.group)
        )
    } else {
        format!(
            "no kind \"{kind}\" is registered for version \"{version}\" in scheme \
             \"pkg/runtime/scheme.go:111\""
        )
    };
    Err(Status::bad_request(format!(
        "{kind} in version \"{}\" cannot be handled as a {wanted}: {why}",
        short(version)
    )))
}

pub(crate) fn check_namespace(target: &Target, value: &Value) -> Result<(), Status> {
    let given = meta::namespace(value);
    if !given.is_empty() && given != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

pub(crate) fn check_name(target: &Target, value: &Value) -> Result<(), Status> {
    let given = meta::name(value);
    if given.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name()
        )));
    }
    if given != target.name() {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({})",
            target.name()
        )));
    }
    Ok(())
}

/// Checks that the resourceVersion of a body is that of the stored object. A body may omit it if the kind
/// allows that.
fn check_versions(resource: &ResourceDescriptor, current: &StoredObject, next: &Value) -> Result<(), Status> {
    let name = current.name();
    match meta::text(next, "/metadata/resourceVersion") {
        "" | "0" if resource.allow_unconditional_update => Ok(()),
        "" | "0" => Err(Status::resource_version_required(resource, name)),
        version => match version.parse::<u64>() {
            Ok(version) if version == current.version => Ok(()),
            Ok(_) => Err(Status::object_modified(resource, name)),
            Err(_) => {
                Err(Status::internal(format!("strconv.ParseUint: parsing \"{version}\": invalid syntax")))
            }
        },
    }
}

/// Checks that the uid of a body is that of the stored object. A body may omit it.
fn check_uid(target: &Target, current: &StoredObject, next: &Value) -> Result<(), Status> {
    let resource = target.resource;
    let uid = meta::text(next, "/metadata/uid");
    if uid.is_empty() || uid == current.uid() {
        return Ok(());
    }
    let group = if resource.is_custom { format!("{}/", resource.group) } else { String::new() };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
        if resource.id == ResourceKind::Node { "minions" } else { resource.plural },
        store::key(&target.namespace, target.name()),
        current.uid()
    );
    Err(Status::conflict(resource, current.name(), &why))
}

/// Copies the metadata that an update cannot change from the stored object to the new one. The name is not
/// copied.
fn copy_system_metadata(old: &Value, next: &mut Value) {
    let kept = old.get("metadata").and_then(Value::as_object);
    meta::edit_meta(next, |meta| {
        for system in [
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generateName",
            "generation",
            "namespace",
            "resourceVersion",
            "selfLink",
            "uid",
        ] {
            match kept.and_then(|kept| kept.get(system)) {
                Some(value) => meta.insert(system.to_owned(), value.clone()),
                None => meta.remove(system),
            };
        }
    });
}
