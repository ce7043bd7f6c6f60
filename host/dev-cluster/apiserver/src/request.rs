//! Parses URLs and headers of requests.

use http::{HeaderMap, Method, header};

use crate::descriptors::{self, ResourceDescriptor, ResourceKind, Subresource, VERSION};
use crate::status::{FieldError, Status};

/// The object or collection that a URL names. `name` is `None` for a collection, `subresource` is `None` for
/// the object itself.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: &'static ResourceDescriptor,
    /// The namespace; empty for all namespaces and for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Target {
    /// The name of the object; empty for a collection.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns `true` for a request other than a list or watch to all namespaces.
    pub(crate) fn is_misplaced(&self, method: &Method) -> bool {
        self.resource.namespaced && self.namespace.is_empty() && ![Method::GET, Method::HEAD].contains(method)
    }

    /// The endpoint that the target names: the object itself or a subresource. An error if the kind has no
    /// such subresource, and for `pods/binding`, which has its own handler.
    pub(crate) fn write_endpoint(&self) -> Result<Subresource, Status> {
        match self.subresource.as_deref() {
            None => Ok(Subresource::Main),
            Some("status") if self.resource.has_status => Ok(Subresource::Status),
            Some("finalize") if self.resource.id == ResourceKind::Namespace => Ok(Subresource::Finalize),
            Some(_) if self.resource.is_custom => Err(Status::not_found(self.resource, self.name())),
            Some(_) => Err(Status::no_such_resource()),
        }
    }
}

/// Parses a path. `None` if there is no such resource.
pub(crate) fn target(path: &str) -> Option<Target> {
    let mut parts = path.trim_matches('/').split('/').map(decode);
    let group = match parts.next()?.as_str() {
        "api" => String::new(),
        "apis" => parts.next()?,
        _ => return None,
    };
    if parts.next()? != VERSION {
        return None;
    }
    let rest: Vec<String> = parts.collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (namespace, plural, name, subresource) = match rest.as_slice() {
        ["namespaces", name, sub @ ("status" | "finalize")] => ("", "namespaces", Some(*name), Some(*sub)),
        ["namespaces", namespace, plural] => (*namespace, *plural, None, None),
        ["namespaces", namespace, plural, name] => (*namespace, *plural, Some(*name), None),
        ["namespaces", namespace, plural, name, sub] => (*namespace, *plural, Some(*name), Some(*sub)),
        [plural] => ("", *plural, None, None),
        [plural, name] => ("", *plural, Some(*name), None),
        [plural, name, sub] => ("", *plural, Some(*name), Some(*sub)),
        _ => return None,
    };
    let resource = descriptors::find(&group, plural)?;
    // `/api/v1/pods` lists all namespaces, but the path of a pod includes its namespace.
    if resource.namespaced == namespace.is_empty() && (name.is_some() || !resource.namespaced) {
        return None;
    }
    if name == Some("") {
        return None;
    }
    Some(Target {
        resource,
        namespace: namespace.to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    })
}

/// Percent-decodes one path segment.
fn decode(segment: &str) -> String {
    if !segment.contains('%') {
        return segment.to_owned();
    }
    // A plus sign is literal in a path, but a space in a form.
    let form = format!("={}", segment.replace('+', "%2B"));
    form_urlencoded::parse(form.as_bytes()).next().map(|(_, value)| value.into_owned()).unwrap_or_default()
}

/// A `resourceVersion` that is not a number. The message is that of kube-apiserver.
#[derive(Debug, thiserror::Error)]
#[error("resourceVersion: Invalid value: \"{0}\": strconv.ParseUint: parsing \"{0}\": invalid syntax")]
pub(crate) struct InvalidVersion(String);

/// `fieldValidation`: the treatment of unknown fields. `Strict` rejects the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Strict,
    /// Unknown fields are dropped with a warning.
    Warn,
    /// Unknown fields are dropped.
    Ignore,
}

/// The query of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// The first value of a parameter; empty if absent.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// Returns `true` if a flag is set. As in kube-apiserver, only an empty value, `0` and `false` are false.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.iter().any(|(key, value)| key == name && !matches!(value.as_str(), "" | "0" | "false"))
    }

    /// A parameter that is a number; `None` if it is absent, empty or negative.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        match self.get(name) {
            "" => Ok(None),
            text => match text.parse::<i64>() {
                // Negative numbers count as absent.
                Ok(number) => Ok(u64::try_from(number).ok()),
                Err(_) => {
                    Err(Status::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax")))
                }
            },
        }
    }

    /// `resourceVersion`; `None` if absent or empty.
    pub(crate) fn version(&self) -> Result<Option<u64>, InvalidVersion> {
        match self.get("resourceVersion") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| InvalidVersion(text.to_owned())),
        }
    }

    /// Returns `true` if `dryRun` is set. A value other than `All` adds an error.
    pub(crate) fn dry_run(&self, errors: &mut Vec<FieldError>) -> bool {
        let values: Vec<&str> =
            self.0.iter().filter(|(key, _)| key == "dryRun").map(|(_, value)| value.as_str()).collect();
        dry_run(if values == [""] { &[] } else { &values }, errors)
    }

    /// Returns `true` if a parameter exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }
}

/// Returns `true` if a dry run is requested by one of the values. Values other than `All` add an error.
pub(crate) fn dry_run(values: &[&str], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|one| *one != "All") {
        errors.push(FieldError::not_supported_list("dryRun", values, &["All"]));
    }
    !values.is_empty()
}

/// The response format that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Object,
    /// `PartialObjectMetadata`.
    Metadata,
    Table,
}

/// The discovery format that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    Plain,
    Aggregated,
}

struct MediaRange<'a> {
    essence: &'a str,
    object_kind: &'a str,
    group: &'a str,
    version: &'a str,
}

/// Returns `true` if the OpenAPI v2 document is requested in protobuf, by its media type.
pub(crate) fn wants_protobuf_openapi(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.contains("com.github.proto-openapi.spec.v2")
}

fn parse_accept(headers: &HeaderMap) -> Vec<MediaRange<'_>> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let range = |text| {
        let mut range = MediaRange { essence: "", object_kind: "", group: "", version: "" };
        for (index, part) in str::split(text, ';').map(str::trim).enumerate() {
            match part.split_once('=') {
                None if index == 0 => range.essence = part,
                Some(("as", value)) => range.object_kind = value,
                Some(("g", value)) => range.group = value,
                Some(("v", value)) => range.version = value,
                Some(_) | None => {}
            }
        }
        range
    };
    accept.split(',').map(range).collect()
}

impl MediaRange<'_> {
    fn is_json(&self) -> bool {
        matches!(self.essence, "application/json" | "application/*" | "*/*" | "")
    }
}

/// The first supported format in the client's `Accept` header: JSON objects, tables or metadata. Objects if
/// the header is absent.
pub(crate) fn response_format(
    headers: &HeaderMap,
    resource: &ResourceDescriptor,
) -> Result<ResponseFormat, Status> {
    for range in parse_accept(headers).iter().filter(|range| range.is_json()) {
        let meta_v1 = range.group == "meta.k8s.io" && range.version == "v1";
        match range.object_kind {
            "" => return Ok(ResponseFormat::Object),
            "Table" if meta_v1 => return Ok(ResponseFormat::Table),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if meta_v1 => {
                return Ok(ResponseFormat::Metadata);
            }
            _ => {}
        }
    }
    Err(if resource.is_custom { Status::not_acceptable_custom() } else { Status::not_acceptable() })
}

/// The discovery format that the `Accept` header requests; plain if it requests no supported one.
pub(crate) fn discovery(headers: &HeaderMap) -> Discovery {
    let first = parse_accept(headers).into_iter().find(|range| {
        range.is_json()
            && (range.object_kind.is_empty()
                || (range.object_kind == "APIGroupDiscoveryList" && range.version == "v2"))
    });
    if first.is_some_and(|range| range.object_kind == "APIGroupDiscoveryList") {
        Discovery::Aggregated
    } else {
        Discovery::Plain
    }
}

/// The type of a PATCH body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    /// Server-side apply.
    Apply,
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// The patch type of the content type. Custom resources have no strategic merge patches.
pub(crate) fn patch_type(headers: &HeaderMap, resource: &ResourceDescriptor) -> Result<PatchType, Status> {
    match content_type(headers) {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        _ if resource.is_custom => Err(Status::unsupported_media(
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )),
        "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
        _ => Err(Status::unsupported_patch()),
    }
}

/// Returns `true` if the body is in Kubernetes' protobuf format.
pub(crate) fn is_protobuf(headers: &HeaderMap) -> bool {
    content_type(headers) == "application/vnd.kubernetes.protobuf"
}

/// The format of a body that is not a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyType {
    Json,
    Yaml,
}

/// The body format of requests other than PATCH: JSON or YAML.
pub(crate) fn body_type(headers: &HeaderMap) -> Result<BodyType, Status> {
    match content_type(headers) {
        "" | "application/json" | "*/*" => Ok(BodyType::Json),
        "application/yaml" => Ok(BodyType::Yaml),
        _ => Err(Status::unsupported_media(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Returns `true` if the path is that of any version of a served group, or below it.
pub(crate) fn is_resource_path(path: &str) -> bool {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", _, ..] => true,
        ["apis", group, _, ..] => descriptors::GROUPS.contains(group),
        _ => false,
    }
}

/// Returns `true` if the path is that of the group of custom resources, or below it.
pub(crate) fn is_custom_path(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    parts.next() == Some("apis") && parts.next().is_some_and(descriptors::is_custom_group)
}

/// The `User-Agent` header; empty if it is absent.
pub(crate) fn user_agent(headers: &HeaderMap) -> &str {
    headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// The verb of a method on a target.
pub(crate) fn verb(method: &Method, target: &Target, query: &Query) -> Result<Verb, Status> {
    let is_object = target.name.is_some();
    match (method.as_str(), is_object) {
        ("GET", false) if query.flag("watch") => Ok(Verb::Watch),
        ("GET" | "HEAD", true) => Ok(Verb::Get),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        ("POST", false) if target.namespace.is_empty() != target.resource.namespaced => Ok(Verb::Create),
        ("POST", true) if target.subresource.is_some() => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) => Ok(Verb::Patch),
        ("DELETE", true) => Ok(Verb::Delete),
        ("DELETE", false) => Ok(Verb::DeleteCollection),
        _ => Err(Status::method_not_allowed()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::{Discovery, ResponseFormat, discovery, response_format, target};

    #[test]
    fn paths_are_parsed_to_targets() {
        for (path, expected) in [
            ("/api/v1/pods", Some(("pods", "", "", ""))),
            ("/api/v1/namespaces", Some(("namespaces", "", "", ""))),
            ("/api/v1/namespaces/a", Some(("namespaces", "", "a", ""))),
            ("/api/v1/namespaces/a/status", Some(("namespaces", "", "a", "status"))),
            ("/api/v1/namespaces/a/pods/b", Some(("pods", "a", "b", ""))),
            ("/api/v1/namespaces/a/pods/b/status", Some(("pods", "a", "b", "status"))),
            ("/api/v1/persistentvolumes/p%2Fq", Some(("persistentvolumes", "", "p/q", ""))),
            ("/apis/storage.k8s.io/v1/storageclasses/x", Some(("storageclasses", "", "x", ""))),
            ("/apis/storage.k8s.io/v1beta1/storageclasses", None),
            ("/api/v1/pods/b", None),
            ("/api/v1/namespaces/a/persistentvolumes", None),
            ("/api/v1/unknowns", None),
            ("/healthz", None),
        ] {
            let found = target(path);
            let found = found.as_ref().map(|target| {
                let sub = target.subresource.as_deref().unwrap_or_default();
                (target.resource.plural, target.namespace.as_str(), target.name(), sub)
            });
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn the_first_servable_media_type_wins() {
        for (accept, expected) in [
            (None, Some(ResponseFormat::Object)),
            (Some("*/*"), Some(ResponseFormat::Object)),
            (Some("application/vnd.kubernetes.protobuf, application/json"), Some(ResponseFormat::Object)),
            (Some("application/vnd.kubernetes.protobuf"), None),
            (
                Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
                Some(ResponseFormat::Table),
            ),
            (
                Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"),
                Some(ResponseFormat::Object),
            ),
            (
                Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                Some(ResponseFormat::Metadata),
            ),
            (Some("application/yaml"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert("accept", accept.parse().unwrap());
            }
            assert_eq!(
                response_format(&headers, crate::descriptors::ResourceKind::ConfigMap.resource()).ok(),
                expected,
                "{accept:?}"
            );
        }
    }

    #[test]
    fn aggregated_discovery_is_selected_by_media_type() {
        let mut headers = HeaderMap::new();
        assert_eq!(discovery(&headers), Discovery::Plain);
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        headers.insert("accept", accept.parse().unwrap());
        assert_eq!(discovery(&headers), Discovery::Aggregated);
    }
}
