//! Label and field selectors.

use serde_json::Value;

use crate::descriptors::Kind;
use crate::status::Status;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

/// Which objects of a kind a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Pointer into the object, wanted text, and whether it must be equal.
    fields: Vec<(Field, String, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    pointer: &'static str,
    /// What an absent field counts as.
    default: &'static str,
}

impl Selector {
    /// Parses both selectors of a request.
    pub(crate) fn parse(kind: Kind, labels: &str, fields: &str) -> Result<Self, Status> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(kind, fields)? })
    }

    /// Selects every object.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|(field, wanted, equal)| (field.of(object) == *wanted) == *equal)
    }
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object.get("metadata")?.get("labels")?.get(key)?.as_str();
        let number = |key: &str| label(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => label(key).is_some_and(|value| values.iter().any(|one| one == value)),
            Self::NotIn(key, values) => label(key).is_none_or(|value| values.iter().all(|one| one != value)),
            Self::Exists(key) => label(key).is_some(),
            Self::Missing(key) => label(key).is_none(),
            Self::Greater(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

impl Field {
    fn of(&self, object: &Value) -> String {
        match object.pointer(self.pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => {
                self.default.to_owned()
            }
        }
    }
}

/// Splits at commas outside of parentheses.
fn requirements(selector: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, character) in selector.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(selector.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(selector.get(start..));
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn parse_labels(selector: &str) -> Result<Vec<Requirement>, Status> {
    requirements(selector).into_iter().map(parse_label).collect()
}

fn parse_label(text: &str) -> Result<Requirement, Status> {
    let wrong = |why: &str| Status::bad_request(format!("unable to parse requirement: {why} in \"{text}\""));
    let key = |key: &str| {
        let key = key.trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if key.is_empty() || !key.chars().all(fits) {
            return Err(wrong("<nil>: Invalid value: a label key was expected"));
        }
        Ok(key.to_owned())
    };
    let value = |value: &str| {
        let value = value.trim();
        if value.len() > 63
            || !value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        {
            return Err(wrong("values: Invalid value: a label value was expected"));
        }
        Ok(value.to_owned())
    };
    let number = |text: &str| {
        text.trim()
            .parse::<i64>()
            .map_err(|_| wrong("for 'Gt', 'Lt' operators, the value must be an integer"))
    };
    if let Some(rest) = text.strip_prefix('!') {
        return Ok(Requirement::Missing(key(rest)?));
    }
    if let Some((head, list)) = text.split_once('(') {
        let list = list.trim_end().strip_suffix(')').ok_or_else(|| wrong("expected: ')'"))?;
        let values = list.split(',').map(value).collect::<Result<Vec<_>, _>>()?;
        return match head.trim().rsplit_once(char::is_whitespace) {
            Some((name, "in")) => Ok(Requirement::In(key(name)?, values)),
            Some((name, "notin")) => Ok(Requirement::NotIn(key(name)?, values)),
            Some(_) | None => Err(wrong("expected: in, notin")),
        };
    }
    if let Some((name, wanted)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(key(name)?, vec![value(wanted)?]));
    }
    if let Some((name, wanted)) = text.split_once('=') {
        let wanted = wanted.strip_prefix('=').unwrap_or(wanted);
        return Ok(Requirement::In(key(name)?, vec![value(wanted)?]));
    }
    if let Some((name, bound)) = text.split_once('>') {
        return Ok(Requirement::Greater(key(name)?, number(bound)?));
    }
    if let Some((name, bound)) = text.split_once('<') {
        return Ok(Requirement::Less(key(name)?, number(bound)?));
    }
    Ok(Requirement::Exists(key(text)?))
}

fn parse_fields(kind: Kind, selector: &str) -> Result<Vec<(Field, String, bool)>, Status> {
    let mut fields = Vec::new();
    for part in selector.split(',').filter(|part| !part.is_empty()) {
        let (name, wanted, equal) = if let Some((name, wanted)) = part.split_once("!=") {
            (name, wanted, false)
        } else if let Some((name, wanted)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (name, wanted, true)
        } else {
            let why = format!("invalid selector: '{selector}'; can't understand '{part}'");
            return Err(Status::bad_request(why));
        };
        fields.push((field(kind, name)?, wanted.to_owned(), equal));
    }
    Ok(fields)
}

/// The fields by which objects can be selected, per kind.
fn field(kind: Kind, name: &str) -> Result<Field, Status> {
    let own: &[(&str, &'static str, &'static str)] = match kind {
        Kind::Pod => &[
            ("spec.nodeName", "/spec/nodeName", ""),
            ("spec.restartPolicy", "/spec/restartPolicy", "Always"),
            ("spec.schedulerName", "/spec/schedulerName", "default-scheduler"),
            ("spec.serviceAccountName", "/spec/serviceAccountName", ""),
            ("spec.hostNetwork", "/spec/hostNetwork", "false"),
            ("status.phase", "/status/phase", ""),
            ("status.nominatedNodeName", "/status/nominatedNodeName", ""),
        ],
        Kind::Event => &[
            ("involvedObject.kind", "/involvedObject/kind", ""),
            ("involvedObject.namespace", "/involvedObject/namespace", ""),
            ("involvedObject.name", "/involvedObject/name", ""),
            ("involvedObject.uid", "/involvedObject/uid", ""),
            ("involvedObject.apiVersion", "/involvedObject/apiVersion", ""),
            ("involvedObject.resourceVersion", "/involvedObject/resourceVersion", ""),
            ("involvedObject.fieldPath", "/involvedObject/fieldPath", ""),
            ("reason", "/reason", ""),
            ("reportingComponent", "/reportingComponent", ""),
            ("source", "/source/component", ""),
            ("type", "/type", ""),
        ],
        Kind::Namespace => &[("status.phase", "/status/phase", "")],
        Kind::Node => &[("spec.unschedulable", "/spec/unschedulable", "false")],
        Kind::Secret => &[("type", "/type", "")],
        Kind::PersistentVolume
        | Kind::PersistentVolumeClaim
        | Kind::ConfigMap
        | Kind::ServiceAccount
        | Kind::StorageClass
        | Kind::CsiDriver
        | Kind::CsiNode
        | Kind::CsiStorageCapacity
        | Kind::VolumeAttachment
        | Kind::VolumeAttributesClass
        | Kind::Lease => &[],
    };
    if name == "metadata.name" {
        return Ok(Field { pointer: "/metadata/name", default: "" });
    }
    if name == "metadata.namespace" {
        return Ok(Field { pointer: "/metadata/namespace", default: "" });
    }
    if let Some((_, pointer, default)) = own.iter().find(|(own, _, _)| *own == name) {
        return Ok(Field { pointer, default });
    }
    Err(Status::bad_request(if own.is_empty() {
        format!("\"{name}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {name}")
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Kind, Selector};

    fn selects(labels: &str, fields: &str) -> bool {
        let object = json!({
            "metadata": {"name": "one", "labels": {"app": "db", "tier": "3", "a.b/c": ""}},
            "status": {"phase": "Running"},
        });
        Selector::parse(Kind::Pod, labels, fields).unwrap().matches(&object)
    }

    #[test]
    fn labels_and_fields_select() {
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=db", "", true),
            ("app==db,tier", "", true),
            ("app!=db", "", false),
            ("missing!=x", "", true),
            ("app in (web, db)", "", true),
            ("app notin (web,db)", "", false),
            ("missing notin (a)", "", true),
            ("!app", "", false),
            ("!missing,app", "", true),
            ("a.b/c=", "", true),
            ("tier>2,tier<4", "", true),
            ("tier>3", "", false),
            ("", "metadata.name=one", true),
            ("", "metadata.name!=one", false),
            ("", "status.phase=Running,spec.nodeName=", true),
            ("", "spec.restartPolicy=Always", true),
        ] {
            assert_eq!(selects(labels, fields), expected, "{labels:?} {fields:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (labels, fields, expected) in [
            ("app in web", "", "a label key was expected"),
            ("app among (web)", "", "expected: in, notin"),
            ("app in (web", "", "expected: ')'"),
            ("=x", "", "a label key"),
            ("a>b", "", "must be an integer"),
            ("", "spec.color=red", "field label not supported: spec.color"),
            ("", "metadata.name", "can't understand 'metadata.name'"),
        ] {
            let error = Selector::parse(Kind::Pod, labels, fields).unwrap_err();
            assert!(error.message.contains(expected), "{labels:?} {fields:?}: {}", error.message);
        }
        let error = Selector::parse(Kind::Lease, "", "spec.x=1").unwrap_err();
        assert!(error.message.contains("is not a known field selector"), "{}", error.message);
    }
}
