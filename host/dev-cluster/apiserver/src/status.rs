//! The `Status` object of failed requests.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::descriptors::ResourceDescriptor;

/// The error of a request. `kubectl` prints its message, and clients evaluate `reason` and `code`.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) code: StatusCode,
    /// True if the response has `details` even if they are empty.
    keep_empty_details: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    details: Map<String, Value>,
    /// `metadata.continue`: the token to continue an expired list.
    continue_token: Option<String>,
}

/// A violated rule of a field, with kube-apiserver's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    reason: &'static str,
    body: String,
}

impl FieldError {
    /// A required field is missing.
    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let body =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { field: field.into(), reason: "FieldValueRequired", body }
    }

    /// An invalid value. Text is quoted, and structures are printed as JSON.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let mut shown = value.to_string();
        // Long values are truncated to limit the response.
        if let Some((end, _)) = shown.char_indices().nth(1024) {
            shown.truncate(end);
            shown.push('…');
        }
        Self {
            field: field.into(),
            reason: "FieldValueInvalid",
            body: format!("Invalid value: {shown}: {detail}"),
        }
    }

    /// A value of another type than `expected`, in the words of kube-apiserver's validation by schemas.
    /// `path` is the path from the root of the schema, and `found` a type, or a string that has not the
    /// format.
    pub(crate) fn type_invalid(field: impl Into<String>, path: &str, expected: &str, found: &str) -> Self {
        let found = Value::from(found);
        let body = format!("Invalid value: {found}: {path} in body must be of type {expected}: {found}");
        Self { field: field.into(), reason: "FieldValueTypeInvalid", body }
    }

    /// An object that violates a rule of its schema. The message omits the object.
    pub(crate) fn violated_rule(field: impl Into<String>, message: &str) -> Self {
        Self { field: field.into(), reason: "FieldValueInvalid", body: format!("Invalid value: {message}") }
    }

    /// Returns `true` if kube-apiserver does not check the rules of a schema because of this error.
    pub(crate) fn prevents_rules(&self) -> bool {
        matches!(
            self.reason,
            "FieldValueRequired" | "FieldValueNotSupported" | "FieldValueTooLong" | "FieldValueTypeInvalid"
        )
    }

    /// The field must not be set or changed.
    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { field: field.into(), reason: "FieldValueForbidden", body: format!("Forbidden: {detail}") }
    }

    /// The value is not one of the supported values.
    pub(crate) fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|one| format!("\"{one}\"")).collect();
        Self {
            field: field.into(),
            reason: "FieldValueNotSupported",
            body: format!("Unsupported value: \"{value}\": supported values: {}", list.join(", ")),
        }
    }

    /// The value, which is not a string, is not one of the supported values.
    pub(crate) fn not_supported_value(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|one| format!("\"{one}\"")).collect();
        Self {
            field: field.into(),
            reason: "FieldValueNotSupported",
            body: format!("Unsupported value: {value}: supported values: {}", list.join(", ")),
        }
    }

    /// Some of the values are not supported.
    pub(crate) fn not_supported_list(field: impl Into<String>, values: &[&str], supported: &[&str]) -> Self {
        let quoted =
            |list: &[&str]| list.iter().map(|one| format!("\"{one}\"")).collect::<Vec<_>>().join(", ");
        Self {
            field: field.into(),
            reason: "FieldValueNotSupported",
            body: format!("Unsupported value: [{}]: supported values: {}", quoted(values), quoted(supported)),
        }
    }

    /// The value has too many bytes.
    pub(crate) fn too_long(field: impl Into<String>, most: usize) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueTooLong",
            body: format!("Too long: may not be more than {most} bytes"),
        }
    }

    /// Another manager owns the field.
    pub(crate) fn manager_conflict(field: impl Into<String>, manager: &str) -> Self {
        Self { field: field.into(), reason: "FieldManagerConflict", body: format!("conflict with {manager}") }
    }

    /// The value is a duplicate.
    pub(crate) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueDuplicate",
            body: format!("Duplicate value: \"{value}\""),
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}

fn join_errors(errors: &[FieldError]) -> String {
    match errors {
        [one] => one.to_string(),
        many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn causes(errors: &[FieldError]) -> Vec<Value> {
    errors
        .iter()
        .map(|error| json!({"reason": error.reason, "message": error.body, "field": error.field}))
        .collect()
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            keep_empty_details: false,
            reason,
            message: message.into(),
            details: Map::new(),
            continue_token: None,
        }
    }

    /// An error that is not about an object. Its empty `details` are serialized.
    fn generic(code: StatusCode, reason: &'static str, message: &str) -> Self {
        Self { keep_empty_details: true, ..Self::new(code, reason, message) }
    }

    fn with_object(mut self, resource: &ResourceDescriptor, kind: &str, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".to_owned(), json!(name));
        }
        if !resource.group.is_empty() {
            self.details.insert("group".to_owned(), json!(resource.group));
        }
        self.details.insert("kind".to_owned(), json!(kind));
        self
    }

    fn with_causes(mut self, causes: Vec<Value>) -> Self {
        self.details.insert("causes".to_owned(), Value::Array(causes));
        self
    }

    pub(crate) fn not_found(resource: &ResourceDescriptor, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified_resource());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with_object(resource, resource.plural, name)
    }

    pub(crate) fn no_such_resource() -> Self {
        Self::generic(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn already_exists(resource: &ResourceDescriptor, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified_resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).with_object(resource, resource.plural, name)
    }

    pub(crate) fn conflict(resource: &ResourceDescriptor, name: &str, why: &str) -> Self {
        Self::conflict_on(resource, &resource.qualified_resource(), name, why)
    }

    /// A conflict. `what` is the name of the resource or subresource in the message, such as `pods/binding`.
    pub(crate) fn conflict_on(resource: &ResourceDescriptor, what: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_object(resource, resource.plural, name)
    }

    pub(crate) fn object_modified(resource: &ResourceDescriptor, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(resource: &ResourceDescriptor, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", resource.qualified_resource());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_object(resource, resource.plural, name)
    }

    pub(crate) fn terminating(resource: &ResourceDescriptor, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        Self::forbidden(resource, name, &why).with_causes(vec![json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        })])
    }

    pub(crate) fn invalid(resource: &ResourceDescriptor, name: &str, errors: &[FieldError]) -> Self {
        let message = format!("{} \"{name}\" is invalid: {}", resource.qualified_kind(), join_errors(errors));
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_object(resource, resource.kind, name)
            .with_causes(causes(errors))
    }

    /// A body whose `apiVersion` or `kind` is not that of the custom resource. Messages have the body's kind.
    pub(crate) fn invalid_type(
        resource: &ResourceDescriptor,
        kind: &str,
        name: &str,
        errors: &[FieldError],
    ) -> Self {
        let message = format!("{kind}.{} \"{name}\" is invalid: {}", resource.group, join_errors(errors));
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_object(resource, kind, name)
            .with_causes(causes(errors))
    }

    /// Invalid options of a request, such as `ListOptions`.
    pub(crate) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let mut status = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{kind}.meta.k8s.io \"\" is invalid: {}", join_errors(errors)),
        );
        status.details.insert("group".to_owned(), json!("meta.k8s.io"));
        status.details.insert("kind".to_owned(), json!(kind));
        status.with_causes(causes(errors))
    }

    /// The conflicts of a server-side apply.
    pub(crate) fn apply_conflict(message: String, conflicts: &[FieldError]) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_causes(causes(conflicts))
    }

    /// An error with code 500 and an empty reason.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// A JSON patch that cannot be parsed or applied, such as for an unknown operation or a failed `test`.
    /// kube-apiserver returns no details.
    pub(crate) fn patch_rejected() -> Self {
        Self::generic(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::generic(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(crate) fn not_acceptable() -> Self {
        Self::generic(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
        )
    }

    /// As [`Status::not_acceptable`], for custom resources.
    pub(crate) fn not_acceptable_custom() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
        )
    }

    pub(crate) fn unsupported_media(accepted: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// The content type of a PATCH request is not that of a patch.
    pub(crate) fn unsupported_patch() -> Self {
        Self::generic(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            "415: Unsupported Media Type",
        )
    }

    /// The patched object cannot be decoded.
    pub(crate) fn invalid_patch_result(shown: &str, why: &str) -> Self {
        let error = FieldError::invalid("patch", &Value::from(shown), why);
        let message = format!(" \"\" is invalid: {error}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_causes(causes(&[error]))
    }

    /// A failed precondition of a deletion.
    pub(crate) fn precondition_failed(resource: &ResourceDescriptor, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified_kind());
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_object(resource, resource.kind, name)
    }

    /// An update without the required resourceVersion.
    pub(crate) fn resource_version_required(resource: &ResourceDescriptor, name: &str) -> Self {
        let detail = "must be specified for an update";
        let error = FieldError::invalid("metadata.resourceVersion", &Value::from(0), detail);
        let message = format!("{} \"{name}\" is invalid: {error}", resource.qualified_resource());
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_object(resource, resource.plural, name)
            .with_causes(causes(&[error]))
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// Adds a token to continue the list in the current state.
    pub(crate) fn with_continue(self, token: String) -> Self {
        Self { continue_token: Some(token), ..self }
    }

    pub(crate) fn too_old(requested: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    pub(crate) fn future_version(requested: u64, current: u64) -> Self {
        let mut status = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Too large resource version: {requested}, current: {current}"),
        )
        .with_causes(vec![json!({
            "reason": "ResourceVersionTooLarge",
            "message": "Too large resource version",
        })]);
        status.details.insert("retryAfterSeconds".to_owned(), json!(1));
        status
    }

    pub(crate) fn resource_version_on_create() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "",
            "resourceVersion should not be set on objects to be created",
        )
    }

    pub(crate) fn too_many_conflicts(resource: &ResourceDescriptor, name: &str) -> Self {
        Self::conflict(resource, name, "the object kept changing while this request was retried")
    }

    /// The `Status` object as JSON.
    pub(crate) fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.continue_token.as_ref().map_or_else(|| json!({}),
                |next| json!({ "continue": next })),
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code.as_u16(),
        });
        if let Value::Object(map) = &mut status {
            if self.details.is_empty() && !self.keep_empty_details {
                map.remove("details");
            }
            if self.reason.is_empty() {
                map.remove("reason");
            }
        }
        status
    }
}

/// The start of a body for messages: as text if it may be JSON, else in hexadecimal digits.
pub(crate) fn body_excerpt(body: &[u8]) -> String {
    const MOST: usize = 30;
    let start = body.get(..MOST).unwrap_or(body);
    let shown = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(start).into_owned(),
        Some(_) => crate::random::hex(start),
    };
    if body.len() > MOST { format!("{shown} ...") } else { shown }
}
