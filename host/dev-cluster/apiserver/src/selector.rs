//! Label and field selectors.

use serde_json::Value;

use crate::descriptors::ResourceKind;
use crate::status::Status;
use crate::validate::names;

/// A malformed label selector. The messages are those of kube-apiserver.
#[derive(Debug, thiserror::Error)]
enum LabelSelectorError {
    /// An unexpected token.
    #[error("found '{found}', expected: {expected}")]
    UnexpectedToken {
        /// The token; empty at the end.
        found: String,
        /// The expected tokens.
        expected: &'static str,
    },
    /// No opening parenthesis after `in` or `notin`. The text is the token that was found instead.
    #[error("found '{0}' expected: '('")]
    NoParenthesis(String),
    /// An invalid key or value.
    #[error("{path}: Invalid value: \"{value}\": {problem}")]
    InvalidValue {
        /// Path of the value.
        path: String,
        /// The value.
        value: String,
        /// The violated rule.
        problem: &'static str,
    },
    /// A malformed requirement.
    #[error("unable to parse requirement: {0}")]
    Requirement(#[source] Box<Self>),
}

impl LabelSelectorError {
    fn unexpected(found: &str, expected: &'static str) -> Self {
        Self::UnexpectedToken { found: found.to_owned(), expected }
    }
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    GreaterThan(String, i64),
    LessThan(String, i64),
}

/// The label and field selectors of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Field, value, and true for `=` or false for `!=`.
    fields: Vec<(SelectableField, String, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SelectableField {
    pointer: &'static str,
    /// Value that the selector compares if the object does not have the field.
    default: &'static str,
}

impl Selector {
    /// Parses both selectors of a request.
    pub(crate) fn parse(kind: ResourceKind, labels: &str, fields: &str) -> Result<Self, Status> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(kind, fields)? })
    }

    /// Returns `true` if the selector matches every object.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns `true` if an object matches.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|(field, wanted, equal)| (field.value_in(object) == *wanted) == *equal)
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
            Self::DoesNotExist(key) => label(key).is_none(),
            Self::GreaterThan(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::LessThan(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

impl SelectableField {
    fn value_in(&self, object: &Value) -> String {
        match object.pointer(self.pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => {
                self.default.to_owned()
            }
        }
    }
}

/// Splits a label selector into tokens, as Kubernetes' lexer does.
fn tokenize(selector: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = selector.chars().peekable();
    while let Some(first) = rest.next() {
        let mut token = String::from(first);
        if first.is_whitespace() {
            continue;
        }
        if is_symbol(first) {
            // `==` and `!=` are the only operators of two characters.
            if matches!(first, '=' | '!') && rest.peek() == Some(&'=') {
                token.extend(rest.next());
            }
        } else {
            while let Some(next) = rest.next_if(|next| !is_symbol(*next) && !next.is_whitespace()) {
                token.push(next);
            }
        }
        words.push(token);
    }
    words
}

fn is_symbol(character: char) -> bool {
    matches!(character, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_identifier(token: &str) -> bool {
    token.chars().next().is_some_and(|first| !is_symbol(first))
}

fn parse_labels(selector: &str) -> Result<Vec<Requirement>, Status> {
    let tokens = tokenize(selector);
    let mut parser = LabelSelectorParser { tokens: &tokens };
    let mut requirements = Vec::new();
    parser.requirements(&mut requirements).map_err(|error| Status::bad_request(error.to_string()))?;
    Ok(requirements)
}

struct LabelSelectorParser<'a> {
    tokens: &'a [String],
}

impl<'a> LabelSelectorParser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.first().map_or("", String::as_str)
    }

    fn next(&mut self) -> &'a str {
        let Some((first, rest)) = self.tokens.split_first() else { return "" };
        self.tokens = rest;
        first
    }

    fn requirements(&mut self, found: &mut Vec<Requirement>) -> Result<(), LabelSelectorError> {
        while !self.tokens.is_empty() {
            if !is_identifier(self.peek()) && self.peek() != "!" {
                return Err(LabelSelectorError::unexpected(self.peek(), "!, identifier, or 'end of string'"));
            }
            found.push(self.requirement().map_err(|error| LabelSelectorError::Requirement(Box::new(error)))?);
            match self.next() {
                "" => return Ok(()),
                "," if is_identifier(self.peek()) || self.peek() == "!" => {}
                "," => return Err(LabelSelectorError::unexpected(self.peek(), "identifier after ','")),
                other => return Err(LabelSelectorError::unexpected(other, "',' or 'end of string'")),
            }
        }
        Ok(())
    }

    fn requirement(&mut self) -> Result<Requirement, LabelSelectorError> {
        let missing = self.peek() == "!";
        if missing {
            self.next();
        }
        let key = self.next();
        if !is_identifier(key) {
            return Err(LabelSelectorError::unexpected(key, "identifier"));
        }
        if let Some(problem) = names::qualified_name(key).first() {
            return Err(LabelSelectorError::InvalidValue {
                path: "<nil>".to_owned(),
                value: key.to_owned(),
                problem,
            });
        }
        let key = key.to_owned();
        if missing {
            return Ok(Requirement::DoesNotExist(key));
        }
        match self.peek() {
            "" | "," => return Ok(Requirement::Exists(key)),
            _ => {}
        }
        let operator = self.next();
        match operator {
            "in" | "notin" => {
                let values = self.values(&key)?;
                Ok(if operator == "in" {
                    Requirement::In(key, values)
                } else {
                    Requirement::NotIn(key, values)
                })
            }
            "=" | "==" | "!=" => {
                let value = if is_identifier(self.peek()) { self.next() } else { "" };
                check_value(&key, 0, value)?;
                let values = vec![value.to_owned()];
                Ok(if operator == "!=" {
                    Requirement::NotIn(key, values)
                } else {
                    Requirement::In(key, values)
                })
            }
            ">" | "<" | "gt" | "lt" => {
                let value = if is_identifier(self.peek()) { self.next() } else { "" };
                let number = value.parse().map_err(|_| LabelSelectorError::InvalidValue {
                    path: "values[0]".to_owned(),
                    value: value.to_owned(),
                    problem: "for 'Gt', 'Lt' operators, the value must be an integer",
                })?;
                let greater = matches!(operator, ">" | "gt");
                Ok(if greater {
                    Requirement::GreaterThan(key, number)
                } else {
                    Requirement::LessThan(key, number)
                })
            }
            other => Err(LabelSelectorError::unexpected(other, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn values(&mut self, key: &str) -> Result<Vec<String>, LabelSelectorError> {
        let open = self.next();
        if open != "(" {
            return Err(LabelSelectorError::NoParenthesis(open.to_owned()));
        }
        let mut values = Vec::new();
        loop {
            match self.peek() {
                ")" | "," => values.push(String::new()),
                word if is_identifier(word) => values.push(self.next().to_owned()),
                other => return Err(LabelSelectorError::unexpected(other, "',', ')' or identifier")),
            }
            match self.next() {
                "," => {}
                ")" => break,
                other => return Err(LabelSelectorError::unexpected(other, "',' or ')'")),
            }
        }
        for (index, value) in values.iter().enumerate() {
            check_value(key, index, value)?;
        }
        Ok(values)
    }
}

fn check_value(key: &str, index: usize, value: &str) -> Result<(), LabelSelectorError> {
    match names::label_value(value) {
        Some(problem) => Err(LabelSelectorError::InvalidValue {
            path: format!("values[{index}][{key}]"),
            value: value.to_owned(),
            problem,
        }),
        None => Ok(()),
    }
}

fn parse_fields(kind: ResourceKind, selector: &str) -> Result<Vec<(SelectableField, String, bool)>, Status> {
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
        fields.push((selectable_field(kind, name)?, wanted.to_owned(), equal));
    }
    Ok(fields)
}

/// Finds a selectable field of a kind by its name; the error is that of an unknown field.
fn selectable_field(kind: ResourceKind, name: &str) -> Result<SelectableField, Status> {
    let supported: &[(&str, &'static str, &'static str)] = match kind {
        ResourceKind::Pod => &[
            ("spec.nodeName", "/spec/nodeName", ""),
            ("spec.restartPolicy", "/spec/restartPolicy", "Always"),
            ("spec.schedulerName", "/spec/schedulerName", "default-scheduler"),
            ("spec.serviceAccountName", "/spec/serviceAccountName", ""),
            ("spec.hostNetwork", "/spec/hostNetwork", "false"),
            ("status.phase", "/status/phase", ""),
            ("status.nominatedNodeName", "/status/nominatedNodeName", ""),
        ],
        ResourceKind::Event => &[
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
        ResourceKind::Namespace => &[("status.phase", "/status/phase", "")],
        ResourceKind::Node => &[("spec.unschedulable", "/spec/unschedulable", "false")],
        ResourceKind::Secret => &[("type", "/type", "")],
        ResourceKind::PersistentVolume
        | ResourceKind::PersistentVolumeClaim
        | ResourceKind::ConfigMap
        | ResourceKind::ServiceAccount
        | ResourceKind::StorageClass
        | ResourceKind::CsiDriver
        | ResourceKind::CsiNode
        | ResourceKind::CsiStorageCapacity
        | ResourceKind::VolumeAttachment
        | ResourceKind::VolumeAttributesClass
        | ResourceKind::Lease
        | ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => &[],
    };
    if name == "metadata.name" {
        return Ok(SelectableField { pointer: "/metadata/name", default: "" });
    }
    let resource = kind.resource();
    if name == "metadata.namespace" && (resource.namespaced || !resource.is_custom) {
        return Ok(SelectableField { pointer: "/metadata/namespace", default: "" });
    }
    if let Some((_, pointer, default)) = supported.iter().find(|(supported, _, _)| *supported == name) {
        return Ok(SelectableField { pointer, default });
    }
    Err(Status::bad_request(if supported.is_empty() && !resource.is_custom {
        format!("\"{name}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {name}")
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ResourceKind, Selector};

    fn matches_example(labels: &str, fields: &str) -> bool {
        let object = json!({
            "metadata": {"name": "one", "labels": {"app": "db", "tier": "3", "a.b/c": ""}},
            "status": {"phase": "Running"},
        });
        Selector::parse(ResourceKind::Pod, labels, fields).unwrap().matches(&object)
    }

    #[test]
    fn objects_are_selected_by_labels_and_fields() {
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
            assert_eq!(matches_example(labels, fields), expected, "{labels:?} {fields:?}");
        }
    }

    #[test]
    fn invalid_selectors_are_rejected_with_a_reason() {
        for (labels, fields, expected) in [
            ("app in web", "", "found 'web' expected: '('"),
            ("app among (web)", "", "found 'among', expected: in, notin"),
            ("app in (web", "", "found '', expected: ',' or ')'"),
            ("=x", "", "found '=', expected: !, identifier"),
            ("a>b", "", "must be an integer"),
            ("a=-b-", "", "values[0][a]: Invalid value: \"-b-\""),
            ("a/b/c", "", "<nil>: Invalid value: \"a/b/c\""),
            ("", "spec.color=red", "field label not supported: spec.color"),
            ("", "metadata.name", "can't understand 'metadata.name'"),
        ] {
            let error = Selector::parse(ResourceKind::Pod, labels, fields).unwrap_err();
            assert!(error.message.contains(expected), "{labels:?} {fields:?}: {}", error.message);
        }
        let error = Selector::parse(ResourceKind::Lease, "", "spec.x=1").unwrap_err();
        assert!(error.message.contains("is not a known field selector"), "{}", error.message);
    }
}
