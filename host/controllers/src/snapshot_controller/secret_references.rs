//! The Secret that a VolumeSnapshotClass names, and the parameters that are not for the driver. Source:
//! external-snapshotter's `GetSecretReference` and `RemovePrefixedParameters`.

use cofferdam_domain::{
    VolumeSnapshotClass, VolumeSnapshotContentName, VolumeSnapshotKey,
    dns::{is_dns_label, is_dns_subdomain},
    names::RESERVED_PARAMETER_PREFIX,
    storage::Parameters,
    volume::SecretRef,
};

use crate::template::{self, UnknownTokens};

/// The two parameters of a class that name a Secret, without the reserved prefix.
struct SecretParameters {
    name: &'static str,
    namespace: &'static str,
}

/// The Secret of CreateSnapshot and DeleteSnapshot.
const SNAPSHOTTER: SecretParameters =
    SecretParameters { name: "snapshotter-secret-name", namespace: "snapshotter-secret-namespace" };
/// The Secret of ListSnapshots.
const LISTER: SecretParameters =
    SecretParameters { name: "snapshotter-list-secret-name", namespace: "snapshotter-list-secret-namespace" };
/// Parameters that are not for the driver. The last four are those of VolumeGroupSnapshots.
const RESERVED: [&str; 8] = [
    SNAPSHOTTER.name,
    SNAPSHOTTER.namespace,
    LISTER.name,
    LISTER.namespace,
    "group-snapshotter-secret-name",
    "group-snapshotter-secret-namespace",
    "group-snapshotter-get-secret-name",
    "group-snapshotter-get-secret-namespace",
];

/// The reason why the parameters of a VolumeSnapshotClass cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotParameterError {
    /// One of the two parameters of a Secret is missing or empty.
    #[error(
        "VolumeSnapshotClass {class} has only one of {RESERVED_PARAMETER_PREFIX}{name} and \
         {RESERVED_PARAMETER_PREFIX}{namespace}; expected both or neither, and not empty"
    )]
    Incomplete {
        /// Name of the class.
        class: String,
        /// Parameter of the Secret's name, without the prefix.
        name: &'static str,
        /// Parameter of the Secret's namespace, without the prefix.
        namespace: &'static str,
    },
    /// A template has tokens without a value.
    #[error("VolumeSnapshotClass {class} has invalid tokens in {key}: {}; expected {expected}", .tokens.join(", "))]
    Tokens {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
        /// The tokens.
        tokens: Vec<String>,
        /// The tokens that have a value.
        expected: &'static str,
    },
    /// A template expands to no valid name.
    #[error("VolumeSnapshotClass {class} has {key} {value:?}; expected {expected}")]
    Value {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
        /// The expanded value.
        value: String,
        /// The values that are valid.
        expected: &'static str,
    },
    /// A parameter has the reserved prefix and is unknown.
    #[error(
        "VolumeSnapshotClass {class} has the parameter {key}; expected none with the prefix {RESERVED_PARAMETER_PREFIX} but those of Secrets"
    )]
    Unknown {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
    },
}

/// The tokens of a template that have a value.
struct Tokens<'a> {
    content: Option<&'a VolumeSnapshotContentName>,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl Tokens<'_> {
    fn value_of(&self, token: &str) -> Option<&str> {
        match token {
            "volumesnapshotcontent.name" => self.content.map(VolumeSnapshotContentName::as_str),
            "volumesnapshot.namespace" => self.namespace,
            "volumesnapshot.name" => self.name,
            _ => None,
        }
    }

    const fn expected(&self) -> &'static str {
        if self.content.is_none() {
            return "none, because all snapshots are listed";
        }
        match (self.namespace, self.name) {
            (Some(_), Some(_)) => {
                "${volumesnapshotcontent.name}, ${volumesnapshot.namespace} or ${volumesnapshot.name}"
            }
            (Some(_), None) => "${volumesnapshotcontent.name} or ${volumesnapshot.namespace}",
            (None, _) => "${volumesnapshotcontent.name}",
        }
    }
}

/// Returns the Secret of CreateSnapshot and DeleteSnapshot. `None` if the class names none.
///
/// # Errors
/// [`SnapshotParameterError`]
pub fn snapshot_secret(
    class: &VolumeSnapshotClass,
    snapshot: &VolumeSnapshotKey,
    content: &VolumeSnapshotContentName,
) -> Result<Option<SecretRef>, SnapshotParameterError> {
    let name =
        Tokens { content: Some(content), namespace: Some(&snapshot.namespace), name: Some(&snapshot.name) };
    // A user must not select a Secret of another namespace with the name of a VolumeSnapshot.
    let namespace = Tokens { name: None, ..name };
    find_secret(class, &SNAPSHOTTER, &name, &namespace)
}

/// Returns the Secret of ListSnapshots. `None` if the class names none.
///
/// # Errors
/// [`SnapshotParameterError`]
pub fn list_secret(
    class: &VolumeSnapshotClass,
    content: &VolumeSnapshotContentName,
) -> Result<Option<SecretRef>, SnapshotParameterError> {
    let tokens = Tokens { content: Some(content), namespace: None, name: None };
    find_secret(class, &LISTER, &tokens, &tokens)
}

/// Returns the Secret of a ListSnapshots call that is for no content. `None` if the class names none.
///
/// # Errors
/// [`SnapshotParameterError`]; also if the Secret depends on a content.
pub fn list_secret_without_content(
    class: &VolumeSnapshotClass,
) -> Result<Option<SecretRef>, SnapshotParameterError> {
    let tokens = Tokens { content: None, namespace: None, name: None };
    find_secret(class, &LISTER, &tokens, &tokens)
}

fn find_secret(
    class: &VolumeSnapshotClass,
    parameters: &SecretParameters,
    name_tokens: &Tokens<'_>,
    namespace_tokens: &Tokens<'_>,
) -> Result<Option<SecretRef>, SnapshotParameterError> {
    let parameter = |suffix: &str| {
        let key = format!("{RESERVED_PARAMETER_PREFIX}{suffix}");
        class.parameters.get(&key).map(|value| (key, value.as_str()))
    };
    let (name, namespace) = match (parameter(parameters.name), parameter(parameters.namespace)) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) if !name.1.is_empty() && !namespace.1.is_empty() => (name, namespace),
        _ => {
            let SecretParameters { name, namespace } = *parameters;
            let class = class.name.to_string();
            return Err(SnapshotParameterError::Incomplete { class, name, namespace });
        }
    };
    let found_namespace = expand(class, &namespace, namespace_tokens)?;
    let found_name = expand(class, &name, name_tokens)?;
    let invalid = |key: String, value: String, expected| SnapshotParameterError::Value {
        class: class.name.to_string(),
        key,
        value,
        expected,
    };
    if !is_dns_label(&found_namespace) {
        return Err(invalid(namespace.0, found_namespace, "a DNS label, as names of namespaces are"));
    }
    if !is_dns_subdomain(&found_name) {
        return Err(invalid(name.0, found_name, "a DNS subdomain, as names of Secrets are"));
    }
    Ok(Some(SecretRef { namespace: found_namespace.into(), name: found_name.into() }))
}

/// Expands the template of a parameter, given by key and text.
fn expand(
    class: &VolumeSnapshotClass,
    (key, template): &(String, &str),
    tokens: &Tokens<'_>,
) -> Result<String, SnapshotParameterError> {
    template::expand(template, |token| tokens.value_of(token)).map_err(|UnknownTokens(unknown)| {
        SnapshotParameterError::Tokens {
            class: class.name.to_string(),
            key: key.clone(),
            tokens: unknown.into_iter().map(|token| format!("{token:?}")).collect(),
            expected: tokens.expected(),
        }
    })
}

/// Returns the parameters of a class that are for the driver.
///
/// # Errors
/// [`SnapshotParameterError::Unknown`]
pub fn driver_parameters(class: &VolumeSnapshotClass) -> Result<Parameters, SnapshotParameterError> {
    let mut parameters = Parameters::new();
    for (key, value) in &class.parameters {
        match key.strip_prefix(RESERVED_PARAMETER_PREFIX) {
            None => {
                parameters.insert(key.clone(), value.clone());
            }
            Some(reserved) if RESERVED.contains(&reserved) => {}
            Some(_) => {
                let class = class.name.to_string();
                return Err(SnapshotParameterError::Unknown { class, key: key.clone() });
            }
        }
    }
    Ok(parameters)
}
